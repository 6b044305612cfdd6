(ns thrum.impl.deadline
  "Absolute points in time, on the scale of System/nanoTime, and the one timer that all of them
  share. All that is timed goes through one clock."
  {:no-doc true}
  (:require
   [thrum.impl.point :as point])
  (:import
   (java.lang Thread$Builder$OfPlatform)
   (java.lang.invoke VarHandle)
   (java.time Instant)
   (java.util.concurrent ConcurrentSkipListMap ExecutorService Executors TimeUnit)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(definterface Clock
  (^long nanos [])
  (^Object parkNanos [blocker ^long nanos])
  (at [^long nanos ^Runnable alarm])       ; what cancel takes
  (^Object cancel [alarm]))

;; What waits on the timer, ordered by moment.
(deftype Alarm [^long moment ^long id ^Runnable f]
  Comparable
  (compareTo [_ other]
    (let [order (Long/signum (unchecked-subtract moment (.-moment ^Alarm other)))]
      (if (zero? order)
        (Long/compare id (.-id ^Alarm other))
        order))))

(def ^:private ^ConcurrentSkipListMap alarms (ConcurrentSkipListMap.))
(def ^:private ^AtomicLong armed-so-far (AtomicLong.))

(defn- daemon ^Thread$Builder$OfPlatform [name]
  (-> (Thread/ofPlatform) (.name ^String name) (.daemon) (.inheritInheritableThreadLocals false)))

;; Platform threads: where virtual ones compute and keep every carrier, one more would never run.
(def ^:private ringers
  (delay
    (Executors/newCachedThreadPool (.factory (daemon "thrum-alarm")))))

(defn- go-off!
  "Runs the alarm on a thread of its own, so that a long one delays no other."
  [^Alarm alarm]
  (try
    (.execute ^ExecutorService @ringers ^Runnable (.-f alarm))
    (catch Throwable _ (.run ^Runnable (.-f alarm)))))

(defn- first-alarm ^Alarm []
  (some-> (.firstEntry alarms) key))

;; When the timer wakes next. An alarm that is disarmed stays the reason to wake: whoever arms the
;; next one, later, need not wake the timer for it.
(def ^:private ^AtomicReference wakes-at (AtomicReference.))

(defn- sleep-until-next! []
  ;; An interrupted thread would not sleep.
  (Thread/interrupted)
  (let [moment (some-> (first-alarm) (.-moment))]
    (.set wakes-at moment)
    (VarHandle/fullFence)
    ;; An alarm that came before the line above has not woken this thread.
    (when (= moment (some-> (first-alarm) (.-moment)))
      (if moment
        (LockSupport/parkNanos alarms (unchecked-subtract (long moment) (System/nanoTime)))
        (LockSupport/park alarms)))))

(defn- serve-alarms! []
  (while true
    (try
      (let [alarm (first-alarm)]
        (if (and alarm (<= (unchecked-subtract (.-moment alarm) (System/nanoTime)) 0))
          (when (.remove alarms alarm) (go-off! alarm))
          (sleep-until-next!)))
      (catch Throwable _))))

(def ^:private timer
  (delay
    (.start (daemon "thrum-timer") serve-alarms!)))

(declare earlier?)

(deftype SystemClock []
  Clock
  (nanos [_] (System/nanoTime))
  (parkNanos [_ blocker nanos] (LockSupport/parkNanos blocker nanos))
  (at [_ nanos f]
    (let [alarm (Alarm. nanos (.incrementAndGet armed-so-far) f)]
      (.put alarms alarm true)
      (when (earlier? nanos (.get wakes-at))
        (LockSupport/unpark @timer))
      alarm))
  (cancel [_ alarm]
    (.remove alarms alarm)))

(def ^Clock clock
  "What tells the time; a test puts another here."
  (SystemClock.))

(defn armed
  "Returns how many alarms wait on the shared timer."
  []
  (.size alarms))

(defn now
  "Returns this moment."
  ^long []
  (.nanos ^Clock clock))

(def ^:private ^:const longest
  "Half the range of nanoTime, 146 years: the farthest that two moments can be told apart."
  (quot Long/MAX_VALUE 2))

(defn in-nanos
  "Returns the moment so many ns from now."
  ^long [^long nanos]
  (unchecked-add (now) (max 0 (min nanos (long longest)))))

(defn in-ms
  "Returns the moment so many ms from now."
  ^long [ms]
  (in-nanos (.toNanos TimeUnit/MILLISECONDS (long ms))))

(defn nanos-until
  "Returns the ns from now to the moment, negative when it has passed."
  ^long [^long moment]
  (unchecked-subtract moment (now)))

(defn at-instant
  "Returns the moment of a java.time.Instant, as the system's clock sees it now."
  ^long [^Instant instant]
  (in-ms (max 0 (long (try
                        (- (.toEpochMilli instant) (System/currentTimeMillis))
                        (catch ArithmeticException _
                          (if (pos? (.getEpochSecond instant)) Long/MAX_VALUE 0)))))))

(defn earlier?
  "Tells whether a comes before b; nil is never."
  [a b]
  (and (some? a)
       (or (nil? b) (neg? (unchecked-subtract (long a) (long b))))))

(defn passed?
  "Tells whether the moment has come."
  [^long moment]
  (<= (nanos-until moment) 0))

(defn arm!
  "Runs f on a thread of its own when the moment comes. Returns what disarm! takes."
  [^long moment ^Runnable f]
  (point/reached :deadline/arm)
  (.at ^Clock clock moment f))

(defn disarm!
  "Takes back an alarm that has not gone off."
  [alarm]
  (.cancel ^Clock clock alarm))

(defn park-until
  "Parks the calling thread until the moment, an unpark or an interrupt; nil: no moment."
  [blocker moment]
  (if (nil? moment)
    (LockSupport/park blocker)
    (let [nanos (nanos-until (long moment))]
      (when (pos? nanos) (.parkNanos ^Clock clock blocker nanos)))))
