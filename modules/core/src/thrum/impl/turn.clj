(ns thrum.impl.turn
  "Turns for all virtual threads where the JDK has one carrier.

  A carrier looks at what is started or woken elsewhere when it has nothing left that was started or
  woken on it: virtual threads that each start another, or wake each other, would have it to
  themselves. See decision 60."
  {:no-doc true}
  (:require
   [thrum.impl.jdk :as jdk])
  (:import
   (java.util.concurrent.atomic AtomicBoolean AtomicLong)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(def ^:private one-carrier? (= 1 (jdk/carriers)))

(def ^:private pins? (jdk/monitors-pin?))

(def ^:private pause-ns "From one scout's return to the next one's start." 2000000)

(def ^:private longest-ns
  "A scout that is away for longer is not awaited: it may have no stack left, or never be woken."
  10000000000)

(def ^:private ^AtomicBoolean scouting (AtomicBoolean.))
(def ^:private ^AtomicLong turned-ns "When a scout last left or returned."
  (AtomicLong. (System/nanoTime)))

(defn- stand-behind!
  "Returns when those have had a turn that wait: a platform thread of the JDK's wakes this one."
  []
  (LockSupport/parkNanos 1))

(defn- scout! []
  (try
    (.set turned-ns (System/nanoTime))
    (stand-behind!)
    (finally
      (.set turned-ns (System/nanoTime))
      (.set scouting false))))

(defn give-way!
  "Lets those that wait have a turn before the calling virtual thread, where there is one carrier.
  Every few ms a caller is the scout, which stands behind the others; until it is back, all callers
  do: so the carrier comes to an end of its own, and the cost is small where none wait. Is over at
  once where the thread is interrupted, and leaves it so."
  []
  (when (and one-carrier? (.isVirtual (Thread/currentThread)))
    (let [since (- (System/nanoTime) (.get turned-ns))]
      (cond
        (and (.get scouting) (< since (long longest-ns)))
        (stand-behind!)

        (and (< (long pause-ns) since)
             (or (.compareAndSet scouting false true) (< (long longest-ns) since)))
        (scout!)))))

(defn give-way-to-start!
  "As give-way!, for a caller that may hold a lock. Does nothing where a thread that waits for that
  lock in synchronized would keep the carrier for ever, before JDK 24."
  []
  (when (and one-carrier? (not pins?))
    (give-way!)))
