(ns thrum.impl.timer
  "Calls functions when they are due. All of the process share one timer: alarms in an ordered map,
  and one platform thread that sleeps until the first is due. Times are values of System/nanoTime."
  {:no-doc true}
  (:require
   [thrum.impl.callers :as callers]
   [thrum.impl.jdk :as jdk])
  (:import
   (java.lang.invoke VarHandle)
   (java.util.concurrent ConcurrentSkipListMap)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

;; id: orders alarms of the same time.
(deftype Alarm [^long nanos ^long id ^Runnable f]
  Comparable
  (compareTo [_ other]
    (let [order (Long/signum (unchecked-subtract nanos (.-nanos ^Alarm other)))]
      (if (zero? order)
        (Long/compare id (.-id ^Alarm other))
        order))))

(def ^:private ^ConcurrentSkipListMap alarms (ConcurrentSkipListMap.))
(def ^:private ^AtomicLong ids (AtomicLong.))

(defn before?
  "True if the time a comes before b."
  [^long a ^long b]
  (neg? (unchecked-subtract a b)))

(defn- go-off!
  "Runs the alarm on a thread of its own, so that a long one delays no other."
  [^Alarm alarm]
  (let [^Runnable f (.-f alarm)]
    (try
      (callers/call! f)
      (catch Throwable _
        (try (.run f) (catch Throwable t (jdk/uncaught! t)))))))

(defn- first-alarm ^Alarm []
  (some-> (.firstEntry alarms) key))

;; When the timer wakes next, or nil. A cancelled alarm leaves this as it is: a later alarm then
;; need not wake the timer.
(def ^:private ^AtomicReference wakes-at (AtomicReference.))

(defn- sleep-until-next! []
  ;; An interrupted thread would not sleep.
  (Thread/interrupted)
  (let [next-nanos (some-> (first-alarm) (.-nanos))]
    (.set wakes-at next-nanos)
    (VarHandle/fullFence)
    ;; An alarm that came before the line above has not woken this thread.
    (when (= next-nanos (some-> (first-alarm) (.-nanos)))
      (if next-nanos
        (LockSupport/parkNanos alarms (unchecked-subtract (long next-nanos) (System/nanoTime)))
        (LockSupport/park alarms)))))

(defn- serve-alarms! []
  (while true
    (try
      (let [alarm (first-alarm)]
        (if (and alarm (not (before? (System/nanoTime) (.-nanos alarm))))
          (when (.remove alarms alarm) (go-off! alarm))
          (sleep-until-next!)))
      (catch Throwable _))))

(def ^:private ^AtomicReference timer "The timer's thread, or nil." (AtomicReference.))

(defn- start-timer! ^Thread []
  (.start (callers/daemon "thrum-timer") serve-alarms!))

;; No delay: one that has thrown, where no thread could be started, throws for ever.
(defn- timer-thread
  "Returns the timer's thread, which the first call starts. Throws where none can be started."
  ^Thread []
  (or (.get timer)
      (locking timer
        (or (.get timer)
            (doto (start-timer!) (->> (.set timer)))))))

(defn- wakes-later? [^long nanos]
  (let [wake (.get wakes-at)]
    (or (nil? wake) (before? nanos (long wake)))))

(defn schedule!
  "Calls f at the time, on a platform thread of its own. Returns the alarm. Throws, and there is no
  alarm, where the timer's thread cannot be started."
  ^Alarm [^long nanos ^Runnable f]
  (let [thread (timer-thread), alarm (Alarm. nanos (.incrementAndGet ids) f)]
    (.put alarms alarm true)
    (when (wakes-later? nanos)
      (LockSupport/unpark thread))
    alarm))

(defn cancel!
  "Takes back an alarm that has not gone off."
  [^Alarm alarm]
  (.remove alarms alarm))

(defn scheduled
  "Returns how many alarms have not gone off."
  []
  (.size alarms))
