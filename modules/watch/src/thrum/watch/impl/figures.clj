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

(defn- of-snapshot [{:keys [nodes ended requests scheduler late-ms] :as snapshot}]
  (let [alive (alive nodes)]
    {:tasks-alive alive
     :tasks-started (reduce + alive (vals ended))
     :tasks-ended ended
     :threads (by :state (groups/threads snapshot))
     :things (by :kind nodes)
     :requests requests
     :limiters (mapv #(select-keys % [:id :name :permits :in-use :waiting :rejected])
                 (filter #(= :limiter (:kind %)) nodes))
     :scheduler scheduler
     :late-ms late-ms}))

(defn of-last
  "Returns f, which keeps what it has returned of the last argument."
  [f]
  (let [last-seen (atom nil)]
    (fn [x]
      (let [[seen found] @last-seen
            found (if (identical? seen x) found (f x))]
        (reset! last-seen [x found])
        found))))

(defn remembering
  "Returns a function of a snapshot and lints that returns their figures: :tasks-alive;
  :tasks-started and :tasks-ended, since watching began, the latter by :done, :failed, :cancelled;
  :threads, by state; :things, by kind; :requests, ended, by status; :limiters, a vector of maps;
  :scheduler; :late-ms; :lints, by rule. Those of the last snapshot are kept."
  []
  (let [figures (of-last of-snapshot)]
    (fn [snapshot lints] (assoc (figures snapshot) :lints (by :rule lints)))))
