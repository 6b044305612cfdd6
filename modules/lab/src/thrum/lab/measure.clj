(ns thrum.lab.measure
  "The only clock of the lab. Runs a way of working over items and writes down when each task ran."
  (:require
   [thrum.lab.stats :as stats]
   [thrum.lab.trouble :as trouble])
  (:import
   (java.time Instant)
   (java.time.temporal ChronoUnit)
   (java.util.concurrent ConcurrentLinkedQueue)))

(set! *warn-on-reflection* true)

(def ^:private curve-points "How many points of a curve a result keeps." 240)

(defn now
  "Returns the time of day as an ISO-8601 string, to the second, in UTC."
  []
  (str (.truncatedTo (Instant/now) ChronoUnit/SECONDS)))

(defn now-ms
  "Returns the running clock in ms. Only differences mean something."
  []
  (/ (System/nanoTime) 1e6))

(defn ms-of
  "Calls f and returns how many ms it took."
  [f]
  (let [start (now-ms)]
    (f)
    (- (now-ms) start)))

(defn- rounded [ms] (/ (Math/round (* 1000.0 (double ms))) 1000.0))

(defn- recording
  "Returns f, writing [start end outcome] of each call to queue, with a nil outcome if it throws."
  [f ^ConcurrentLinkedQueue queue origin on-end]
  (fn [x]
    (let [start (- (now-ms) origin), outcome (volatile! nil)]
      (try
        (vreset! outcome (f x))
        (finally
          (.add queue [start (- (now-ms) origin) @outcome])
          (on-end))))))

(defn- attempt
  "Calls thunk. Returns nil, or how it ended otherwise: {:interrupted? true} or {:error {:class
  :message}}."
  [thunk]
  (try
    (thunk)
    nil
    (catch Throwable t
      (if (Thread/interrupted)
        {:interrupted? true}
        (trouble/sample t)))))

(defn- figures [calls ms]
  (let [curve (stats/in-flight (mapv (fn [[start end]] [(rounded start) (rounded end)]) calls))]
    (assoc (stats/tally (map peek calls))
           :ms (rounded ms)
           :busy-ms (rounded (transduce (map (fn [[start end]] (- end start))) + 0.0 calls))
           :longest-ms (rounded (transduce (map (fn [[start end]] (- end start))) max 0.0 calls))
           :peak (stats/peak curve)
           :curve (stats/thin curve-points curve))))

(defn sample
  "Runs (way f coll), where f returns an outcome, and returns the sample: :ms, what stats/tally
  says, :busy-ms, how long all calls took together, :longest-ms, the longest of them, :peak tasks in
  flight, :curve [[ms n] …], and :outcomes in order of completion. When way is interrupted, the
  sample has :interrupted? and what was measured so far; when it throws, :error {:class :message}.
  on-end is called after each item, on the thread that ran it."
  [way f coll on-end]
  (let [queue (ConcurrentLinkedQueue.), origin (now-ms)
        trouble (attempt #(way (recording f queue origin on-end) coll))
        ms (- (now-ms) origin)
        calls (vec queue)]
    (merge (figures calls ms) {:outcomes (into [] (keep peek) calls)} trouble)))

(defn- noting
  "Returns f, with a note of each call in queue, an atom: its :start, its :outcome, and its :end
  once it has ended."
  [f ^ConcurrentLinkedQueue queue origin on-end]
  (fn [x]
    (let [note (atom {:start (- (now-ms) origin)})]
      (.add queue note)
      (try
        (swap! note assoc :outcome (f x))
        (finally
          (swap! note assoc :end (- (now-ms) origin))
          (on-end))))))

(defn- span [{:keys [start end outcome]} now]
  [start (or end now) outcome])

(defn sample-with-rest
  "As sample, of a way that may return before its calls have ended. It looks on for watch-ms after
  the return, which :ms does not count, and adds :left, how many calls had not ended then, and
  :watched-ms, when that was."
  [way f coll watch-ms on-end]
  (let [queue (ConcurrentLinkedQueue.), origin (now-ms), returned (volatile! nil)
        trouble (attempt (fn []
                           (way (noting f queue origin on-end) coll)
                           (vreset! returned (- (now-ms) origin))
                           (Thread/sleep (long watch-ms))))
        now (- (now-ms) origin)
        notes (mapv deref queue)]
    (merge (figures (mapv #(span % now) notes) (or @returned now))
           {:left (count (remove :end notes)), :watched-ms (rounded now)}
           trouble)))
