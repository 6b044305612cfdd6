(ns thrum.rate-test
  "Rate limiters: so many in a time, in the order of asking. Their times are a virtual clock's."
  (:require
   [clojure.datafy :refer [datafy]]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [clojure.test.check.clojure-test :refer [defspec]]
   [clojure.test.check.generators :as gen]
   [clojure.test.check.properties :as prop]
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

(defn- in-virtual-time [f]
  (let [{:keys [value thrown]} (virtual-clock/run 1 f)]
    (if thrown (throw thrown) value)))

(defn- passes
  "Returns the ms at which one caller after the other passes; each asks for so many permits, after a
  pause."
  [n options asks]
  (in-virtual-time
    (fn []
      (let [rate (t/rate-limiter n options)]
        (mapv (fn [[pause permits]]
                (sleep! pause)
                (t/acquire! rate permits)
                (now-ms))
              asks)))))

(deftest permits-are-spread-evenly
  (is (= [0 100 200 300] (passes 10 {} (repeat 4 [0 1]))))
  (is (= [0 250 500] (passes 4 {:per-ms 1000} (repeat 3 [0 1]))))
  (is (= [30 130 230] (passes 10 {} [[30 1] [30 1] [0 1]]))))

(deftest a-burst-passes-at-once-after-a-pause
  (is (= [0 0 0 100 200] (passes 10 {:burst 3} (repeat 5 [0 1]))))
  (is (= [0 0 0 250 250 300] (passes 10 {:burst 3} [[0 1] [0 1] [0 1] [250 1] [0 1] [0 1]]))))

(deftest several-permits-cost-as-many
  (is (= [0 200 500] (passes 10 {:burst 3} [[0 3] [0 2] [0 3]])))
  (is (= :thrum/invalid (t/error-type (thrown (t/acquire! (t/rate-limiter 10 {:burst 3}) 4))))))

(defn- most-in
  "Returns how many of the permits were had within some window of so many ms."
  [ms times]
  (apply max
         0
         (for [[at] times]
           (reduce + (for [[other n] times :when (<= at other (+ at ms -1))] n)))))

(defspec no-window-has-more-than-the-rate-and-a-burst 60
  (prop/for-all [burst (gen/choose 1 4)
                 asks (gen/vector (gen/tuple (gen/elements [0 0 0 7 40 300]) (gen/choose 1 4))
                                  1
                                  12)]
    (let [asks (mapv (fn [[pause n]] [pause (min n burst)]) asks)
          times (map vector (passes 100 {:burst burst} asks) (map second asks))]
      (every? #(<= (most-in % times) (+ burst (quot % 10))) [10 20 50 100]))))

(deftest callers-pass-in-the-order-of-asking
  (is (= (map vector (range 20) (map #(* 100 %) (range 1 21)))
         (in-virtual-time
           (fn []
             (let [rate (t/rate-limiter 10), passed (atom [])]
               (t/acquire! rate)
               (t/with-scope [s]
                 (dotimes [i 20]
                   (t/fork s (t/with-permit rate (swap! passed conj [i (now-ms)])))
                   (sleep! 1)))
               @passed))))))

(deftest a-caller-that-gives-up-leaves-its-turn-to-the-next
  (is (= [[:rejected 50] [:c 100]]
         (in-virtual-time
           (fn []
             (let [rate (t/rate-limiter 10), trail (atom [])
                   note #(swap! trail conj [% (now-ms)])]
               (t/acquire! rate)
               (t/with-scope [s]
                 (t/fork s (t/with-timeout [50 (note :rejected)] (t/acquire! rate)))
                 (sleep! 1)
                 (t/fork s (t/acquire! rate) (note :c)))
               @trail))))))

(deftest a-caller-that-is-refused-leaves-its-turn-to-the-next
  (is (= [[:a 100] [:rejected 100] [:c 200]]
         (in-virtual-time
           (fn []
             (let [rate (t/rate-limiter 10 {:burst 5, :wait-ms 150}), trail (atom [])
                   note #(swap! trail conj [% (now-ms)])]
               (t/acquire! rate 5)
               (t/with-scope [s]
                 (t/fork s (t/acquire! rate) (note :a))
                 (sleep! 1)
                 (t/fork s (when (thrown (t/acquire! rate 5)) (note :rejected)))
                 (sleep! 59)
                 (t/fork s (t/acquire! rate) (note :c)))
               @trail))))))

(deftest a-thousand-that-give-up-cost-no-time-of-the-rate
  (is (= 100
         (in-virtual-time
           (fn []
             (let [rate (t/rate-limiter 10)]
               (t/acquire! rate)
               (t/settle-call {:timeout-ms 20} (repeat 1000 #(t/acquire! rate)))
               (t/acquire! rate)
               (is (= 0 (:waiting (datafy rate))))
               (now-ms)))))))

(deftest a-wait-that-is-too-long-is-refused
  (testing "by the queue, at once"
    (is (= {:type :thrum/rejected, :limiter "api", :permits 10, :per-ms 1000, :burst 1, :queue 0
            :waiting 0, :rejected 1}
           (ex-data (in-virtual-time
                      #(let [rate (t/rate-limiter 10 {:queue 0, :name "api"})]
                         (t/acquire! rate)
                         (thrown (t/acquire! rate))))))))
  (testing "by :wait-ms, as soon as that is sure"
    (let [[e ms] (in-virtual-time
                   #(let [rate (t/rate-limiter 10 {:wait-ms 50})]
                      (t/acquire! rate)
                      [(thrown (t/acquire! rate)) (now-ms)]))]
      (is (= "No permit within 50 ms (10 in 1000 ms, 0 waiting)" (ex-message e)))
      (is (= 0 ms)))))

(deftest a-try-does-not-wait-and-does-not-overtake
  (let [rate (t/rate-limiter 1 {:per-ms 60000, :burst 2})]
    (is (some? (t/try-acquire! rate)))
    (is (nil? (t/try-acquire! rate 2)))
    (is (nil? (t/release! (t/try-acquire! rate))))
    (is (nil? (t/try-acquire! rate)))
    (is (= {:permits 1, :per-ms 60000, :burst 2, :waiting 0, :rejected 0} (datafy rate)))))

(deftest no-call-overtakes-one-that-waits-for-more
  (let [rate (t/rate-limiter 1 {:per-ms 60000, :burst 2}), passed (promise)]
    (t/acquire! rate)
    (t/with-scope [s]
      (t/fork s {:daemon? true} (t/acquire! rate 2))
      (is (gate/eventually 5000 #(= 1 (:waiting (datafy rate)))))
      (is (nil? (t/try-acquire! rate)))
      (t/fork s {:daemon? true} (t/acquire! rate) (deliver passed true))
      (is (gate/eventually 5000 #(= 2 (:waiting (datafy rate)))))
      (is (not (realized? passed))))))

(deftest an-interrupted-or-cancelled-caller-leaves-the-queue
  (let [rate (t/rate-limiter 1 {:per-ms 60000})]
    (t/acquire! rate)
    (let [[^Thread thread outcome] (gate/start "waiter" #(t/acquire! rate))
          task (do (gate/eventually 5000 #(= 1 (:waiting (datafy rate))))
                   (t/future (t/acquire! rate)))]
      (is (gate/eventually 5000 #(= 2 (:waiting (datafy rate)))))
      (t/cancel! task)
      (is (gate/eventually 5000 #(= 1 (:waiting (datafy rate)))))
      (.interrupt thread)
      (is (instance? InterruptedException (:thrown (deref outcome 5000 nil))))
      (is (= 0 (:waiting (datafy rate)))))))

(deftest cancelled-or-interrupted-work-takes-no-permit
  (let [rate (t/rate-limiter 1 {:per-ms 60000})
        cancelled (promise)]
    (thrown (t/with-scope [s]
              (t/cancel! s)
              (deliver cancelled (thrown (t/acquire! rate)))))
    (is (instance? CancellationException @cancelled))
    (.interrupt (Thread/currentThread))
    (is (instance? InterruptedException (thrown (t/acquire! rate))))
    (is (some? (t/try-acquire! rate)))))

(deftest wrong-rates-are-refused
  (doseq [[n options] [[0 {}] [nil {}] [1.5 {}] [1 {:per-ms 0}] [1 {:burst 0}] [1 {:brust 2}]
                       [1 {:per-ms Long/MAX_VALUE}]]]
    (is (= :thrum/invalid (t/error-type (thrown (t/rate-limiter n options))))))
  (is (= :thrum/invalid (t/error-type (thrown (t/acquire! 1))))))
