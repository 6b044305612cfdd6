(ns thrum.impl.turn
  "Turns for all virtual threads where the JDK has one carrier.

  A carrier looks at what is started or woken elsewhere when it has nothing left that was started or
  woken on it: virtual threads that each start another, or wake each other, would have it to
  themselves. See decision 60."
  {:no-doc true}
  (:require
   [thrum.impl.jdk :as jdk])
  (:import
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(def ^:private one-carrier? (= 1 (jdk/carriers)))

(def ^:private pause-ns "From one scout's return to the next one's start." 2000000)

(def ^:private longest-ns "Those that come later await this scout no more, nor let others do so."
  10000000)

(def ^:private ^AtomicReference away
  "The latch that the scout opens when it is back, or nil."
  (AtomicReference.))

(def ^:private ^AtomicLong turned-ns "When a scout last left or returned."
  (AtomicLong. (System/nanoTime)))

(defn- back! [^CountDownLatch latch]
  (.set turned-ns (System/nanoTime))
  (.compareAndSet away latch nil)
  (.countDown latch))

(defn- stand-behind!
  "Returns when those have had a turn that wait: a platform thread of the JDK's wakes this one."
  []
  (LockSupport/parkNanos 1))

(defn- scout! [latch]
  (try
    (stand-behind!)
    (finally (back! latch))))

(defn- await! [^CountDownLatch latch]
  (try
    (.await latch)
    (catch InterruptedException _ (.interrupt (Thread/currentThread)))))

(defn give-way!
  "Lets those that wait have a turn before the calling virtual thread, where there is one carrier.
  Every few ms a caller is the scout, which stands behind the others; all that call while it is away
  wait for it: so the carrier comes to an end of its own, and the cost is small where none wait. Is
  over at once where the thread is interrupted, and leaves it so."
  []
  (when (and one-carrier? (.isVirtual (Thread/currentThread)))
    (let [now (System/nanoTime)
          since (- now (.get turned-ns))]
      (if-some [latch (.get away)]
        (if (< since (long longest-ns))
          (await! latch)
          (back! latch))
        (when (< (long pause-ns) since)
          (let [latch (CountDownLatch. 1)]
            (.set turned-ns now)
            (when (.compareAndSet away nil latch)
              (scout! latch))))))))
