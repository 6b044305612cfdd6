(ns thrum.watch.carriers
  "What programs need that keep a carrier."
  (:require
   [thrum.test-kit.runner :as runner]
   [thrum.watch.impl.scheduler :as scheduler]))

(set! *warn-on-reflection* true)

(defn needs-another!
  "Skips the running test where one thread that keeps its carrier would leave none to the others."
  []
  (when (= 1 (:parallelism (scheduler/figures)))
    (runner/skip! "there is one carrier alone")))
