(ns thrum.cluster.history
  "Checks what happened against what is promised: [event item node] in the order of time."
  (:require
   [thrum.cluster.impl.rerun :as rerun]))

(set! *warn-on-reflection* true)

(defn- starts [trail]
  (frequencies (keep (fn [[event item]] (when (= :start event) item)) trail)))

(defn violations
  "Returns a seq of sentences. losses: how many members were lost; after-cancel: the part of the
  trail after the caller's cancel has returned."
  [{:keys [trail items results expected losses after-cancel]}]
  (let [starts (starts trail)
        most (min rerun/most-starts (inc losses))]
    (concat
      (when (not= expected results)
        [(str "results differ: " (count results) " of " (count expected))])
      (for [[item n] starts :when (< most n)] (str item " was started " n " times"))
      (for [item items :when (not (starts item))] (str item " was never started"))
      (for [[event item node] after-cancel :when (= :start event)]
        (str item " was started on " node " after the cancel")))))
