(ns thrum.joiner-options-test
  "Options of all, race, any and settle: how many at once, for how long, and in which threads."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [clojure.test.check.clojure-test :refer [defspec]]
   [clojure.test.check.generators :as gen]
   [clojure.test.check.properties :as prop]
   [thrum.alarms :as alarms]
   [thrum.core :as t]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent CancellationException)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- my-name [] (.getName (Thread/currentThread)))

(deftest at-most-so-many-run-at-once
  (doseq [call [t/all-call t/settle-call]]
    (let [inside (AtomicLong.), most (atom 0)
          f (fn []
              (swap! most max (.incrementAndGet inside))
              (Thread/yield)
              (.decrementAndGet inside)
              :value)]
      (is (= 50 (count (call {:limit 3} (repeat 50 f)))))
      (is (<= 1 @most 3)))))

(deftest a-scope-in-a-task-takes-no-others-place
  (doseq [call [t/all-call t/settle-call]]
    (let [opened (promise), third (promise)
          values (call {:limit 2}
                   [#(t/with-scope [s]
                       @(t/fork s 1)
                       (deliver opened true)
                       (deref third 5000 :never-ran))
                    #(deref opened 5000 :never-opened)
                    #(deliver third :ran)])]
      (is (#{:ran {:value :ran}} (first values))))))

(deftest the-values-stay-in-the-order-of-the-forms
  (is (= [1 2 3] (t/all {:limit 1} 1 2 3)))
  (is (= [{:value 1} {:value 2} {:value 3}] (t/settle {:limit 2} 1 2 3)))
  (is (= [] (t/all-call {:limit 1} []))))

(deftest what-is-decided-starts-nothing-more
  (let [ran (atom [])
        run (fn [x] #(swap! ran conj x))
        fail #(throw (ex-info "no" {:type ::no}))]
    (is (= [:a] (t/race-call {:limit 1} [(run :a) (run :b)])))
    (is (= [:a :c] (t/any-call {:limit 1} [fail (run :c) (run :d)])))
    (is (= ::no (t/error-type (thrown (t/all-call {:limit 1} [(run :e) fail (run :f)])))))
    (is (= [:a :c :e] @ran))))

(deftest a-time-limit-is-a-deadline
  (is (= :thrum/timeout (t/error-type (thrown (t/all {:timeout-ms 5} 1 (Thread/sleep 60000))))))
  (is (= :thrum/timeout (t/error-type (thrown (t/race {:timeout-ms 0} 1 2)))))
  (is (= [1 2] (t/all {:timeout-ms 60000} 1 2)))
  (testing "of which settle reports what there is, also what had not been started"
    (alarms/by-hand
      (fn [alarms]
        (is (= [{:value 1} {:cancelled :thrum/timeout} {:cancelled :thrum/timeout}]
               (t/settle {:timeout-ms 60000, :limit 1}
                         1
                         (do (alarms/ring! alarms) (Thread/sleep 60000))
                         3))))))
  (testing "also where the time was over at once"
    (is (= [{:cancelled :thrum/timeout}] (t/settle {:timeout-ms 0} 1)))
    (is (= [] (t/settle-call {:timeout-ms 0} [])))))

(deftest a-name-and-a-wrap-are-those-of-the-tasks
  (is (every? #(re-matches #"load-\d+/\d" %) (t/all {:name "load"} (my-name) (my-name))))
  (is (= [:wrapped 1]
         (t/race {:wrap (fn [thunk] (fn [] [:wrapped (thunk)]))} 1 (do (Thread/sleep 60000) 2)))))

(deftest options-are-a-map-before-other-forms
  (is (= [{:limit 1}] (t/all {:limit 1})))
  (let [options {:name "load"}, none nil, one 1]
    (is (= [options] (t/all options)))
    (is (every? #(re-matches #"load-\d+/\d" %) (t/all options (my-name) (my-name))))
    (is (= :other (t/race options :other)))
    (doseq [call [#(t/all none 1) #(t/settle one (inc one))]]
      (is (= :thrum/invalid (t/error-type (thrown (call))))))
    (is (= [:one 2] (t/all :one 2)))
    (is (= [1 2] (t/all-call options [(constantly 1) (constantly 2)]))))
  (is (= [{:a 1} 2] (t/plet [x {:a 1} y 2] [x y])))
  (let [e (thrown (t/all {:limt 1} 1 2))]
    (is (= [:thrum/invalid :limt] ((juxt :type :option) (ex-data e))))
    (is (str/includes? (ex-message e) "did you mean :limit?")))
  (is (= :thrum/invalid (t/error-type (thrown (t/any {:limit 0} 1 2))))))

(deftest a-cancel-while-others-wait-for-their-turn-ends-all
  (doseq [call [t/all-call t/race-call t/any-call]]
    (let [running (promise), ran (atom 0)
          wait #(do (deliver running true) (Thread/sleep 60000))
          e (promise)]
      (t/with-scope [s]
        (let [task (t/fork s (try
                               (call {:limit 1} [wait #(swap! ran inc)])
                               (catch Throwable t (deliver e t) (throw t))))]
          (is (deref running 5000 false))
          (t/cancel! task :enough)))
      (is (instance? CancellationException (deref e 5000 nil)))
      (is (= 0 @ran)))))

(deftest an-interrupt-while-others-wait-for-their-turn-ends-all
  (doseq [call [t/all-call t/race-call t/any-call t/settle-call]]
    (let [running (promise), ended (promise), ran (atom 0)
          wait #(try
                  (deliver running true)
                  (Thread/sleep 60000)
                  (finally (deliver ended true)))
          more #(swap! ran inc)
          [^Thread thread outcome] (gate/start "caller" #(call {:limit 1} [wait more]))]
      (is (deref running 5000 false))
      (.interrupt thread)
      (is (instance? InterruptedException (:thrown (deref outcome 5000 nil))))
      (is (realized? ended))
      (is (= 0 @ran)))))

(defspec a-limit-changes-no-outcome 60
  (prop/for-all [limit (gen/choose 1 4)
                 outcomes (gen/vector (gen/frequency [[4 gen/nat] [1 (gen/return :fail)]]) 1 8)]
    (let [f (fn [outcome]
              #(if (= :fail outcome) (throw (ex-info "no" {:type ::no})) outcome))
          fs (map f outcomes)
          data #(or (find % :value) (t/error-type (:error %)))
          try-all #(try (t/all-call % fs) (catch Exception e (t/error-type e)))]
      (and (= (try-all {}) (try-all {:limit limit}))
           (= (map data (t/settle-call fs)) (map data (t/settle-call {:limit limit} fs)))))))

(deftest what-a-cancel-keeps-from-being-started-leaves-no-shorter-vector
  (let [values (promise)]
    (thrown
      (t/with-scope [s]
        (let [wraps (atom 0)
              wrap (fn [thunk] (when (= 2 (swap! wraps inc)) (t/cancel! s)) thunk)]
          (try
            (deliver values (t/all {:limit 1, :wrap wrap} 1 2))
            (catch CancellationException _ (deliver values :cancelled))))))
    (is (= :cancelled @values))))

(deftest an-interrupt-of-the-caller-carries-what-has-failed-before
  (let [failure (ex-info "no" {}), second-runs (promise)
        hedge #(thrown (t/hedge {:after-ms 60000}
                         (throw failure)
                         (do (deliver second-runs true) (Thread/sleep 60000))))
        [^Thread caller outcome] (gate/start "caller" hedge)]
    (is (true? (deref second-runs 5000 :late)))
    (.interrupt caller)
    (let [^Throwable t (:value (deref outcome 5000 nil))]
      (is (instance? InterruptedException t))
      (is (some #{failure} (.getSuppressed t))))))
