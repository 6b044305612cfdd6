(ns thrum.impl.deadline
  "Deadlines: absolute times, longs on the clock's scale of nanoseconds. nil is no deadline."
  {:no-doc true}
  (:require
   [thrum.impl.clock :as clock]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.timer :as timer])
  (:import
   (java.time Instant)
   (java.util.concurrent TimeUnit)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(defn now
  "Returns the time now."
  ^long []
  (long (clock/nanos clock/clock)))

(def ^:private ^:const longest
  "Half the range of nanoTime, 146 years: times farther apart than that cannot be ordered."
  (quot Long/MAX_VALUE 2))

(defn in-nanos
  "Returns the deadline so many ns from now."
  ^long [^long nanos]
  (unchecked-add (now) (max 0 (min nanos (long longest)))))

(defn in-ms
  "Returns the deadline so many ms from now."
  ^long [ms]
  (in-nanos (.toNanos TimeUnit/MILLISECONDS (long ms))))

(defn nanos-until
  "Returns the ns from now to the deadline, negative when it has passed."
  ^long [^long deadline]
  (unchecked-subtract deadline (now)))

(defn remaining-ms
  "Returns the ms from now to the deadline, at least 0."
  [deadline]
  (max 0 (quot (nanos-until deadline) 1000000)))

(defn- ms-until
  "Returns the ms from the system's time of day to the instant."
  [^Instant instant]
  (try
    (- (.toEpochMilli instant) (System/currentTimeMillis))
    (catch ArithmeticException _
      (if (pos? (.getEpochSecond instant)) Long/MAX_VALUE 0))))

(defn at-instant
  "Returns the deadline at a java.time.Instant, by the system's time of day now."
  ^long [instant]
  (in-ms (ms-until instant)))

(defn earlier?
  "True if a comes before b, where nil is never."
  [a b]
  (and (some? a)
       (or (nil? b) (timer/before? a b))))

(defn passed?
  "True if the deadline has come."
  [^long deadline]
  (<= (nanos-until deadline) 0))

(defn arm!
  "Has f called at the deadline, on a thread of its own. Returns what disarm! takes."
  [deadline f]
  (sync-point/reached :deadline/arm)
  (clock/call-at clock/clock deadline f))

(defn disarm!
  "Takes back an alarm that has not gone off."
  [alarm]
  (clock/cancel-call clock/clock alarm))

(defn park-until
  "Parks the calling thread until the deadline, an unpark or an interrupt."
  [blocker deadline]
  (if (nil? deadline)
    (LockSupport/park blocker)
    (let [nanos (nanos-until (long deadline))]
      (when (pos? nanos) (clock/park-nanos clock/clock blocker nanos)))))
