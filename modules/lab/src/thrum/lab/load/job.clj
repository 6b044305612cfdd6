(ns thrum.lab.load.job
  "What both generators make of a job; see thrum.lab.load. Pure.")

(set! *warn-on-reflection* true)

(defn warm-up
  "Returns the job that comes before a job, to warm up; nil where there is none."
  [{:keys [warm-up-seconds] :as job}]
  (when (and warm-up-seconds (pos? warm-up-seconds))
    (assoc job :seconds warm-up-seconds)))

(defn longest-ms
  "Returns how long a burst can take, in ms: as long as its rounds when each request in them is
  given up."
  [{:keys [requests connections timeout-ms]}]
  (* timeout-ms (quot (+ requests connections -1) connections)))
