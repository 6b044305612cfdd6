(ns thrum.test-kit.cpu-test
  "What a JVM has taken, and its children that have ended."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.test-kit.cpu :as cpu]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.runner :as runner]))

(set! *warn-on-reflection* true)

(deftest the-four-times-of-a-process-are-added
  (is (= 1111
         (cpu/ticks "7 (a (b) c) S 1 7 7 0 -1 4194304 500 0 0 0 1 10 100 1000 20 0 9 0 99 88"))))

(deftest what-a-jvm-does-counts
  (let [before (long (cpu/ms))]
    (is (gate/eventually 10000 #(do (run! inc (range 100000)) (< (+ 20 before) (long (cpu/ms))))))))

(deftest what-a-child-did-counts-when-it-has-ended
  (when-not (= "Linux" (System/getProperty "os.name"))
    (runner/skip! "only Linux says what a child took"))
  (let [before (long (cpu/ms))]
    (jvm/quietly ["sh" "-c" "n=0; while [ $n -lt 100000 ]; do n=$((n+1)); done"] 20000)
    (is (< (+ 40 before) (long (cpu/ms))))))
