(ns thrum.no-memory-test
  "Where there is no memory to put a failure on record, the failure itself is thrown, and no
  thread waits for ever."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.failures :as failures]
   [thrum.impl.fanout :as fanout]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.uncaught :as uncaught]
   [thrum.throwing :refer [thrown]]))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- out-of-memory [& _]
  (throw (OutOfMemoryError. "on purpose")))

(defn- without-noise
  "Calls f while what no thread catches is not printed."
  [f]
  (uncaught/reporting (fn [_ _]) f))

(def ^:private forms
  "By name: a function of a function that throws, which is called in a task."
  {"pmapv" #(t/pmapv 4 (fn [i] (if (= 2 i) (%) (Thread/sleep 60000))) (range 4))
   "pmapv, all fail" #(t/pmapv 4 (fn [_] (%)) (range 4))
   "prun!" #(t/prun! 2 (fn [_] (%)) [1])
   "pmap" #(doall (t/pmap 2 (fn [_] (%)) [1]))
   "upmap" #(doall (t/upmap 2 (fn [i] (if (= 1 i) (%) (Thread/sleep 60000))) [0 1]))
   "pmap's transducer" #(into [] (t/pmap 2 (fn [_] (%))) [1])
   "upmap's transducer" #(into [] (t/upmap 2 (fn [_] (%))) [1])
   "all" #(t/all (%) (Thread/sleep 60000))
   "race" #(t/race (%) (Thread/sleep 60000))
   "pcalls" #(doall (t/pcalls %))
   "deref" #(try
              @(t/future (%))
              (catch java.util.concurrent.ExecutionException e (throw (ex-cause e))))})

(deftest a-failure-that-cannot-be-put-on-record-is-thrown-all-the-same
  (doseq [[what form] forms]
    (let [failure (Exception. "what f threw")
          e (without-noise
              (fn []
                (with-redefs-fn {#'failures/known? out-of-memory}
                  #(gate/in-time 5000 (fn [] (thrown (form (fn [] (throw failure)))))))))]
      (is (identical? failure e) what))))

(deftest a-fan-out-is-over-when-it-throws-also-where-its-failure-cannot-be-told
  (let [running (promise), left? (atom false), left-first? (promise)
        f (fn [i]
            (if (= 0 i)
              (do @running (throw (Exception. "what f threw")))
              (try
                (deliver running true)
                (Thread/sleep 60000)
                (finally (deliver left-first? (gate/eventually 200 (fn [] @left?)))))))
        e (with-redefs-fn {#'fanout/failure-to-throw out-of-memory}
            #(gate/in-time 5000 (fn [] (thrown (doall (t/pmap 2 f [0 1]))))))]
    (is (instance? OutOfMemoryError e))
    (reset! left? true)
    (is (false? (deref left-first? 5000 nil)))))
