(ns thrum.lab.cpu-time-test
  "The clock of CPU time counts in finer steps than the JDK's."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.cpu-time :as cpu-time]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.runner :as runner]))

(set! *warn-on-reflection* true)

(defn- step-ns
  "Returns by how much the clock has moved when it is first seen to move."
  []
  (let [before (cpu-time/process-ns)]
    (gate/in-time 20000
                  #(loop []
                     (let [step (- (cpu-time/process-ns) before)]
                       (if (pos? step) step (recur)))))))

(deftest a-step-is-short
  (when-not (= "Linux" (System/getProperty "os.name"))
    (runner/skip! "only Linux has the finer clock"))
  (is (< (apply min (repeatedly 20 step-ns)) 5000000)))
