(ns thrum.item-timeout-test
  "A deadline for each call of f in the map family. Times are a virtual clock's."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.alarms :as alarms]
   [thrum.core :as t]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.wait :as wait]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]]
   [thrum.virtual-clock :as virtual-clock]))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- sleep! [ms]
  (wait/sleep! (deadline/in-ms ms))
  ms)

(defn- facts [^Throwable t]
  (let [[context] (keep #(when (= :thrum/context (:type (ex-data %))) (ex-data %))
                        (.getSuppressed t))]
    (cond-> {:type (t/error-type t)} context (assoc :index (:index context)))))

(defn- in-virtual-time
  "Returns [value-or-facts ms] of f in virtual time."
  [f]
  (let [{:keys [value thrown nanos alive planned]} (virtual-clock/run 1 f)]
    (is (= [0 0] [alive planned]))
    [(if thrown (facts thrown) value) (quot (long nanos) 1000000)]))

(def ^:private at-10 {:limit 4, :item-timeout-ms 10})

(def ^:private times [3 9 50 4 5 6 7 8])

(def ^:private eager-forms
  {:pmapv #(t/pmapv at-10 sleep! times)
   :prun! #(t/prun! at-10 sleep! times)
   :several #(t/pmapv at-10 (fn [a b] (sleep! (+ (long a) (long b)))) times (repeat 0))})

(def ^:private lazy-forms
  {:pmap #(doall (t/pmap at-10 sleep! times))
   :upmap #(doall (t/upmap at-10 sleep! times))
   :pfor #(doall (t/pfor at-10 [ms times] (sleep! ms)))
   :transducer #(into [] (t/pmap at-10 sleep!) times)
   :inputs #(into [] (sequence (t/pmap at-10 (fn [a _] (sleep! a))) times times))})

(deftest a-late-item-fails-the-form
  (doseq [[form run] (merge eager-forms lazy-forms)]
    (testing form
      (is (= [{:type :thrum/timeout, :index 2} 10] (in-virtual-time run))))))

(deftest items-in-time-are-as-without
  (is (= [[3 9 4] 9] (in-virtual-time #(t/pmapv at-10 sleep! [3 9 4]))))
  (testing "each has a time of its own, from the beginning of its call"
    (is (= [[9 9 9] 27]
           (in-virtual-time #(t/pmapv {:limit 1, :item-timeout-ms 10} sleep! [9 9 9])))))
  (testing "0 ms never runs it"
    (let [calls (atom 0)]
      (is (= :thrum/timeout
             (t/error-type
               (thrown (t/pmapv {:limit 1, :item-timeout-ms 0} (fn [_] (swap! calls inc)) [1])))))
      (is (= 0 @calls)))))

(deftest the-elements-before-a-late-item-come-first
  (is (= [[3 9 :thrum/timeout] 10]
         (in-virtual-time
           (fn []
             (let [results (t/pmap at-10 sleep! times)]
               (conj (vec (take 2 results)) (t/error-type (thrown (nth results 2))))))))))

(deftest the-other-tasks-of-pmap-tasks-go-on
  (is (= [[3 9 :thrum/timeout 4 5 6 7 8] 18]
         (in-virtual-time
           (fn []
             (mapv #(try (t/value %) (catch Exception e (t/error-type e)))
                   (t/pmap-tasks at-10 sleep! times)))))))

(deftest what-an-item-started-ends-with-it
  (let [ended (atom 0)
        nap (fn [_] (try (sleep! 500) (finally (swap! ended inc))))]
    (is (= [{:type :thrum/timeout, :index 0} 10]
           (in-virtual-time #(t/pmapv at-10 (fn [_] (t/pmapv 3 nap (range 3))) [1]))))
    (is (= 3 @ended))))

(deftest the-earlier-of-two-deadlines-decides
  (testing "an outer one is the outer form's"
    (is (= [:outer 5]
           (in-virtual-time #(t/with-timeout [5 :outer] (t/pmapv at-10 sleep! [50 60]))))))
  (testing "an item's is a failure inside the outer form"
    (is (= [{:type :thrum/timeout, :index 1} 10]
           (in-virtual-time #(t/with-timeout [20 :outer] (t/pmapv at-10 sleep! [5 60]))))))
  (testing "an inner one is the item's own"
    (is (= [[:inner] 5]
           (in-virtual-time
             #(t/pmapv at-10 (fn [ms] (t/with-timeout [5 :inner] (sleep! ms))) [50]))))))

(deftest a-shield-in-an-item-delays-its-end
  (is (= [{:type :thrum/timeout, :index 0} 30]
         (in-virtual-time
           #(t/pmapv at-10
                     (fn [ms] (try (sleep! ms) (finally (t/shield 100 (sleep! 20)))))
                     [50])))))

(deftest a-late-attempt-is-tried-again
  (testing "around the form"
    (is (= [[1] 12]
           (in-virtual-time
             (fn []
               (let [waits (atom [50 1])]
                 (t/retry {:schedule (t/constant 1)}
                          (let [[ms] (first (swap-vals! waits rest))]
                            (t/pmapv at-10 sleep! [ms])))))))))
  (testing "in an item, the time is that of all attempts"
    (let [attempts (atom 0)]
      (is (= [{:type :thrum/timeout, :index 0} 10]
             (in-virtual-time
               (fn []
                 (t/pmapv at-10
                          (fn [_]
                            (t/retry {:schedule (t/constant 1)} (swap! attempts inc) (sleep! 50)))
                          [1])))))
      (is (= 1 @attempts)))))

(deftest an-item-that-ignores-its-deadline-delays-the-form
  (alarms/by-hand
    (fn [alarms]
      (let [interrupted (promise), gate (promise)
            stubborn (fn [_]
                       (alarms/ring! alarms)
                       (loop []
                         (or (try
                               (deref gate 5000 :late)
                               (catch InterruptedException _ (deliver interrupted true) nil))
                             (recur))))
            [_ outcome] (gate/start "caller"
                                    #(t/pmapv {:limit 1, :item-timeout-ms 60000} stubborn [1]))]
        (is (deref interrupted 5000 nil))
        (is (= ::waits (deref outcome 20 ::waits)))
        (deliver gate :done)
        (testing "and its value counts: it is not late once it has returned"
          (is (= {:value [:done]} (deref outcome 5000 nil))))))))

(deftest an-interrupt-of-a-deadline-does-not-reach-the-next-item
  (alarms/by-hand
    (fn [alarms]
      (let [late (fn [_]
                   (alarms/ring! alarms)
                   [(try (Thread/sleep 5000) (catch InterruptedException _ :interrupted))
                    (.isInterrupted (Thread/currentThread))])]
        (is (= (repeat 3 [:interrupted false])
               (t/pmapv {:limit 1, :item-timeout-ms 60000} late (range 3))))))))
