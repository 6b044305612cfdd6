(ns thrum.lab.measure-test
  "What a sample says of calls that outlive the answer."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.measure :as measure]))

(set! *warn-on-reflection* true)

(defn- leaving-one
  "Returns a way that makes all calls at once and returns without the value of :hangs, when that has
  started."
  [started]
  (fn [f coll]
    (let [calls (mapv (fn [x] [x (future (f x))]) coll)]
      (run! (fn [[x call]] (when-not (= :hangs x) @call)) calls)
      (deref started 5000 nil))))

(deftest calls-that-outlive-the-answer-are-counted
  (let [started (promise), gate (promise), ended (atom 0)
        call (fn [x]
               (when (= :hangs x) (deliver started true) (deref gate 10000 nil))
               {:bytes 1})
        {:keys [ms left ok watched-ms curve]}
        (measure/sample-with-rest (leaving-one started) call [:a :hangs :b] 50 #(swap! ended inc))]
    (is (= [1 2 2] [left ok @ended]))
    (is (<= (+ ms 49) watched-ms) "the watch is not part of the time")
    (is (= [watched-ms 0] (peek curve)) "who runs on is drawn until the lab looked")
    (deliver gate true)))

(deftest nothing-left-is-zero
  (is (= 0 (:left (measure/sample-with-rest mapv identity [{:bytes 1}] 0 (constantly nil))))))

(deftest an-interrupt-of-the-watch-ends-the-sample
  (is (:interrupted? (measure/sample-with-rest (fn [_ _] (.interrupt (Thread/currentThread)))
                                               identity
                                               []
                                               5000
                                               (constantly nil))))
  (is (not (Thread/interrupted))))
