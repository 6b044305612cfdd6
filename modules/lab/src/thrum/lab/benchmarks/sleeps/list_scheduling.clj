(ns thrum.lab.benchmarks.sleeps.list-scheduling
  "When work of known durations ends: the limit line of a bounded map, which is greedy list
  scheduling (Graham 1966), in input order, on `limit` machines; and that of a map over chunks."
  (:import
   (java.util PriorityQueue)))

(set! *warn-on-reflection* true)

(defn- machines
  "Returns a queue of `limit` machines, each as the time at which it is free: at first 0."
  ^PriorityQueue [limit]
  (doto (PriorityQueue. (int limit))
    (.addAll (repeat limit 0))))

(defn makespan
  "Returns when the last of the durations ends, in their unit, where each in turn goes to the
  machine that is free first."
  [limit durations]
  (let [free (machines limit)]
    (reduce (fn [latest duration]
              (let [end (+ (long (.poll free)) (long duration))]
                (.add free end)
                (max (long latest) end)))
            0
            durations)))

(defn chunks
  "Returns when the last of the durations ends, in their unit, where `limit` of them begin at once,
  and the next ones when all of those have ended."
  [limit durations]
  (transduce (comp (partition-all limit) (map #(reduce max %))) + durations))
