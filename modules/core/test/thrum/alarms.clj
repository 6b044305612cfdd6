(ns thrum.alarms
  "Deadlines that a test reaches, and no clock."
  (:require
   [thrum.impl.deadline :as deadline]))

(set! *warn-on-reflection* true)

(defn by-hand
  "Calls (f alarms) where no deadline is ever reached by the clock: alarms is an atom of what has
  been armed, in order, functions that a test calls."
  [f]
  (let [alarms (atom [])]
    (with-redefs [deadline/arm! (fn [^long _ alarm] (swap! alarms conj alarm) alarm)
                  deadline/disarm! (fn [_])]
      (f alarms))))

(defn ring!
  "Reaches the deadline that was armed last."
  [alarms]
  ((peek @alarms)))
