(ns thrum.jdbc.grace
  "The grace of a call that was cancelled, ended by a test in place of the clock."
  (:require
   [thrum.jdbc.impl.call :as call]
   [thrum.test-kit.gate :as gate]))

(set! *warn-on-reflection* true)

(defn in-hand
  "Returns (f end!). No grace ends by itself: (end!) ends that of the call that was cancelled last."
  [f]
  (let [give-up (atom nil)
        expire! (fn [call cancel]
                  (let [runs (#'call/move? call nil :stopping)]
                    (when runs (reset! give-up #(#'call/give-up! call cancel)))
                    runs))]
    (with-redefs [call/expire! expire!]
      (f #(gate/start "grace" @give-up)))))
