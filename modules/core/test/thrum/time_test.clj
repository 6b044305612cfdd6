(ns thrum.time-test
  "Forms whose work begins at a time: hedges and periodic calls. Their times are a virtual clock's."
  (:require
   [clojure.datafy :refer [datafy]]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.wait :as wait]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]]
   [thrum.virtual-clock :as virtual-clock])
  (:import
   (java.util.concurrent CancellationException)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- now-ms [] (quot (deadline/now) 1000000))

(defn- sleep! [ms] (wait/sleep! (deadline/in-ms ms)))

(defn- outcome
  "Returns [value-or-throwable ms] of f in virtual time."
  [f]
  (let [{:keys [value thrown nanos]} (virtual-clock/run 1 f)]
    [(or thrown value) (quot (long nanos) 1000000)]))

(deftest no-time-is-left-after-the-deadline
  (let [left (atom nil)]
    (is (= [:late 20]
           (outcome #(t/with-timeout [10 :late]
                       (t/with-scope [s]
                         (t/shield 1000 (sleep! 20))
                         (reset! left [(t/remaining-ms) (:remaining-ms (datafy s))])
                         (sleep! 10))))))
    (is (= [0 0] @left))))

;; hedge

(deftest a-quick-first-form-is-alone
  (let [ran (atom 0)]
    (is (= [:a 79] (outcome #(t/hedge {:after-ms 80} (do (sleep! 79) :a) (swap! ran inc)))))
    (is (= 0 @ran))))

(deftest a-second-form-begins-when-the-first-is-slow
  (let [began (atom []), lost (atom 0)
        form (fn [ms v]
               #(do
                  (swap! began conj (now-ms))
                  (try
                    (sleep! ms)
                    v
                    (catch CancellationException e (swap! lost inc) (throw e)))))]
    (is (= [:b 90]
           (outcome #(t/hedge-call {:after-ms 80} [(form 500 :a) (form 10 :b) (form 1 :c)]))))
    (is (= [0 80] @began))
    (is (= 1 @lost))
    (testing "the first may still win"
      (is (= [:a 100] (outcome #(t/hedge-call {:after-ms 80} [(form 100 :a) (form 60 :b)])))))
    (testing "and each further form waits as long again"
      (reset! began [])
      (is (= [:c 161]
             (outcome #(t/hedge-call {:after-ms 80} [(form 500 :a) (form 500 :b) (form 1 :c)]))))
      (is (= [0 80 160] @began)))))

(deftest a-failure-brings-the-next-form-at-once
  (let [fail (fn [ms data] #(do (sleep! ms) (throw (ex-info "no" data))))]
    (is (= [:b 5] (outcome #(t/hedge-call {:after-ms 80} [(fail 5 {}) (constantly :b)]))))
    (testing "and when all have failed the first in time is thrown"
      (let [[e ms] (outcome #(t/hedge-call {:after-ms 80} [(fail 100 {:i 0}) (fail 10 {:i 1})]))]
        (is (= {:i 1} (ex-data e)))
        (is (= [{:i 0}] (filter :i (map ex-data (.getSuppressed ^Throwable e)))))
        (is (= 100 ms))))))

(deftest a-hedge-has-the-deadline-of-its-option-and-of-what-is-around
  (is (= [:thrum/timeout 30]
         (-> (outcome #(t/hedge {:after-ms 80, :timeout-ms 30} (sleep! 500) 1))
             (update 0 t/error-type))))
  (is (= [:late 100]
         (outcome #(t/with-timeout [100 :late]
                     (t/hedge {:after-ms 80} (sleep! 500) (sleep! 500)))))))

(deftest an-interrupt-between-two-forms-ends-the-hedge
  (let [running (promise), ended (promise), ran (atom 0)
        form #(try
                (deliver running true)
                (Thread/sleep 60000)
                (finally (deliver ended true)))
        [^Thread thread outcome]
        (gate/start "caller" (fn [] (t/hedge {:after-ms 60000} (form) (swap! ran inc))))]
    (is (deref running 5000 nil))
    (.interrupt thread)
    (is (instance? InterruptedException (:thrown (deref outcome 5000 nil))))
    (is (realized? ended))
    (is (= 0 @ran))))

(deftest a-hedge-needs-a-time-and-a-form
  (doseq [options [{} {:after-ms -1} {:after-ms nil} {:limit 1, :after-ms 1} nil]]
    (is (= :thrum/invalid (t/error-type (thrown (t/hedge options 1))))))
  (is (= :thrum/invalid (t/error-type (thrown (t/hedge-call {:after-ms 1} [])))))
  (is (= 1 (t/hedge {:after-ms 1} 1))))

;; every!

(defn- calls
  "Returns the ms at which every! begins calls within 100 ms; each takes the next of these times."
  [options times]
  (let [began (atom []), times (atom times)
        f (fn []
            (swap! began conj (now-ms))
            (let [[ms] @times] (swap! times rest) (when (pos? (long (or ms 0))) (sleep! ms))))]
    (is (= [nil 100] (outcome #(t/with-scope [s] (t/every! s options f) (sleep! 100) nil))))
    @began))

(deftest calls-come-at-a-fixed-rate
  (is (= [0 30 60 90] (calls {:ms 30} [])))
  (is (= [0 30 60 90] (calls {:ms 30, :fixed :rate} [10 29 1])))
  (testing "what a long call misses is left out"
    (is (= [0 60 90] (calls {:ms 30} [31])))
    (is (= [0 30 60 90] (calls {:ms 30} [30])))
    (is (= [0 90] (calls {:ms 30} [61])))))

(deftest calls-come-after-a-fixed-delay
  (is (= [0 30 60 90] (calls {:ms 30, :fixed :delay} [])))
  (is (= [0 40 71] (calls {:ms 30, :fixed :delay} [10 1]))))

(deftest a-period-may-be-longer-than-time
  (doseq [fixed [:rate :delay]]
    (is (= [0] (calls {:ms Long/MAX_VALUE, :fixed fixed} [10])))))

(deftest a-periodic-task-ends-with-its-scope
  (let [ended (promise)]
    (is (= :body
           (t/with-scope [s]
             (let [called (promise)]
               (t/every! s {:ms 60000}
                         #(try
                            (deliver called true)
                            (Thread/sleep 60000)
                            (finally (deliver ended true))))
               (deref called 5000 nil)
               :body))))
    (is (realized? ended)))
  (testing "with its deadline"
    (is (= [[:late 50] 2]
           (let [n (atom 0)]
             [(outcome #(t/with-timeout [50 :late]
                          (t/with-scope [s]
                            (t/every! s {:ms 40} (fn [] (swap! n inc)))
                            (t/fork s (sleep! 500)))))
              @n]))))
  (testing "and by a cancel"
    (t/with-scope [s]
      (let [task (t/every! s {:ms 1, :name "beat"} (fn []))]
        (is (re-find #"/beat-0$" (second (re-find #"#<task (\S+)" (pr-str task)))))
        (t/cancel! task :enough)
        (is (= :thrum/cancelled (t/error-type (thrown (t/value task)))))))))

(deftest a-failing-periodic-task-fails-its-scope
  (let [failure (ex-info "no" {}), n (atom 0)
        fail #(when (= 3 (swap! n inc)) (throw failure))]
    (is (identical? failure
                    (thrown (t/with-scope [s] (t/every! s {:ms 1} fail) (Thread/sleep 60000)))))
    (is (= 3 @n)))
  (is (= :body (t/with-scope [s {:on-error :keep}]
                 (thrown (t/value (t/every! s {:ms 1} #(throw (Exception. "no")))))
                 :body))))

(deftest wrong-periods-are-refused
  (t/with-scope [s]
    (doseq [options [{} {:ms 0} {:ms 1.5} {:ms 1, :fixed :never} {:ms 1, :daemon? true}]]
      (is (= :thrum/invalid (t/error-type (thrown (t/every! s options +))))))
    (is (= :thrum/invalid (t/error-type (thrown (t/every! s {:ms 1} 1)))))))
