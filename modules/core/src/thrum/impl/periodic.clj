(ns thrum.impl.periodic
  "Calls a function again and again, on the calling thread."
  {:no-doc true}
  (:require
   [thrum.impl.deadline :as deadline]
   [thrum.impl.wait :as wait])
  (:import
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(defn- periods
  "Returns how many periods of that length are needed to reach so many ns, at least 1."
  ^long [^long nanos ^long period]
  (max 1 (quot (+ nanos (dec period)) period)))

(def ^:private ^:const longest
  "The ns of the longest period, 146 years: ends of longer ones cannot be computed."
  (quot Long/MAX_VALUE 2))

(defn- next-start
  "Returns when the call after one that began at start, and has ended now, is to begin."
  ^long [fixed ^long start ^long period]
  (if (= :delay fixed)
    (deadline/in-nanos period)
    (unchecked-add start (* period (periods (- (deadline/nanos-until start)) period)))))

(defn run
  "Calls f every so many ms until the calling thread's work is cancelled, or f throws. fixed: :rate,
  from start to start, where the times that a long call misses are left out; :delay, from end to
  start."
  [fixed ms f]
  (let [period (min (long longest) (.toNanos TimeUnit/MILLISECONDS (long ms)))]
    (loop [start (deadline/now)]
      (f)
      (let [start (next-start fixed start period)]
        (wait/sleep! start)
        (recur start)))))
