(ns thrum.watch.impl.figures
  "A snapshot as numbers."
  {:no-doc true}
  (:require
   [thrum.watch.impl.groups :as groups]))

(set! *warn-on-reflection* true)

(defn- alive [nodes]
  (count (filter #(= :task (:kind %)) nodes)))

(defn- by [f xs]
  (update-keys (frequencies (map f xs)) #(if % (name %) "unknown")))

(defn figures
  "Returns the figures of a snapshot and its lints: :tasks-alive; :tasks-started and :tasks-ended,
  since watching began, the latter by :done, :failed, :cancelled; :threads, by state; :things, by
  kind; :requests, ended, by status; :limiters, a vector of maps; :scheduler; :late-ms; :lints, by
  rule."
  [{:keys [nodes ended requests scheduler late-ms] :as snapshot} lints]
  (let [alive (alive nodes)]
    {:tasks-alive alive
     :tasks-started (reduce + alive (vals ended))
     :tasks-ended ended
     :threads (by :state (groups/threads snapshot))
     :things (by :kind nodes)
     :requests requests
     :limiters (mapv #(select-keys % [:name :permits :in-use :waiting :rejected])
                 (filter #(= :limiter (:kind %)) nodes))
     :scheduler scheduler
     :late-ms late-ms
     :lints (by :rule lints)}))
