(ns thrum.test-kit.gate-test
  "Waiting ends in time, but not because the process stood still."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.test-kit.gate :as gate]))

(set! *warn-on-reflection* true)

(deftest a-time-without-a-look-counts-for-a-second-at-most
  (let [looks (atom 0)]
    (is (gate/eventually 1500
          (fn []
            (when (= 1 (swap! looks inc)) (Thread/sleep 1600))
            (= 3 @looks))))))

(deftest waiting-ends
  (let [looks (atom 0), begun (System/nanoTime)]
    (is (nil? (gate/eventually 50 #(do (swap! looks inc) nil))))
    (is (< 1 (long @looks)))
    (is (<= 50000000 (- (System/nanoTime) begun)))))
