(ns thrum.impl.turn
  "Turns for all virtual threads where the JDK has one carrier.

  A carrier looks at what is started or woken elsewhere when it has nothing left that was started or
  woken on it: virtual threads that each start another, or wake each other, would have it to
  themselves. See decision 60."
  {:no-doc true}
  (:require
   [thrum.impl.jdk :as jdk])
  (:import
   (java.util.concurrent ConcurrentLinkedQueue ThreadFactory)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(def ^:private one-carrier? (= 1 (jdk/carriers)))

(defn- stand-behind!
  "Returns when those have had a turn that wait: a platform thread of the JDK's wakes this one."
  []
  ;; Uses up an unpark, where there was one: the wait would be over at once for it.
  (LockSupport/parkUntil 1)
  (LockSupport/parkNanos 1))

;; The JDK starts that thread for the first wait with a time. Where no more threads can be had by
;; then, that wait never ends.
(when one-carrier?
  (Thread/startVirtualThread stand-behind!))

(def ^:private pause-ns "From one scout's return to the next one's start." 2000000)

(def ^:private longest-ns
  "A thread that comes when the scout has been away for longer does not await it, nor lets others."
  10000000)

(def ^:private longest-first-ns
  "As longest-ns, for a thread that begins: where 100 000 threads each start another, the scout is
  away for more than a second."
  5000000000)

;; No latch of the JDK's: to cancel many that wait for one takes quadratic time (promise 3.8).
(def ^:private ^AtomicReference away
  "The queue of the threads that wait for the scout that is away, or nil. One whose wait an
  interrupt has ended stays in it until then."
  (AtomicReference.))

(def ^:private ^AtomicLong turned-ns "When a scout last left or returned."
  (AtomicLong. (System/nanoTime)))

(defn- back!
  "Ends the wait of those in the queue."
  [^ConcurrentLinkedQueue waiters]
  (.set turned-ns (System/nanoTime))
  ;; First: a thread that joins the queue looks at it behind that.
  (.compareAndSet away waiters nil)
  (loop []
    (when-some [waiter (.poll waiters)]
      ;; One that cannot be woken keeps no other asleep.
      (try (LockSupport/unpark waiter) (catch Throwable _))
      (recur))))

(def ^:private ^AtomicLong left-id
  "The id of a thread that was made as a scout left: that of any which was made later is higher."
  (AtomicLong.))

(def ^:private ^ThreadFactory markers (jdk/clean-threads "marker"))

(defn- use-stack!
  "Calls itself n times: throws where less stack is left than a scout needs for its way back."
  ^long [^long n]
  (if (pos? n)
    (inc (use-stack! (dec n)))
    0))

(defn- scout! [^long now]
  (use-stack! 300)
  (let [waiters (ConcurrentLinkedQueue.)]
    (.set turned-ns now)
    (.set left-id (.threadId (.newThread markers stand-behind!)))
    (when (.compareAndSet away nil waiters)
      (try
        (stand-behind!)
        (finally (back! waiters))))
    true))

(defn- await-scout! [^ConcurrentLinkedQueue waiters]
  (let [here (Thread/currentThread)]
    (.add waiters here)
    (while (and (identical? waiters (.get away)) (not (.isInterrupted here)))
      (LockSupport/park))
    true))

(defn- take-turn! [begins?]
  ;; Looks at away first: a scout and back! set it last.
  (let [waiters (.get away)
        now (System/nanoTime)
        since (- now (.get turned-ns))]
    (cond
      (nil? waiters) (when (< (long pause-ns) since) (scout! now))
      (and begins? (< (.threadId (Thread/currentThread)) (.get left-id))) nil
      (< since (long (if begins? longest-first-ns longest-ns))) (await-scout! waiters)
      :else (back! waiters))))

(defn- give-way [begins?]
  (when (and one-carrier? (.isVirtual (Thread/currentThread)))
    (try
      ;; An interrupted one would be back at once, and another could not leave.
      (when-not (.isInterrupted (Thread/currentThread)) (take-turn! begins?))
      ;; No stack or no memory is left: that is for the caller's work to meet.
      (catch Throwable _))))

(defn give-way!
  "Lets those that wait have a turn before the calling virtual thread, where there is one carrier.
  Every few ms a caller is the scout, which stands behind the others; all that call while it is away
  wait for it: so the carrier comes to an end of its own, and the cost is small where none wait. Is
  over at once where the thread is interrupted, and leaves it so. Throws nothing."
  []
  (give-way false)
  nil)

(defn give-way-first!
  "As give-way!, for a thread that begins. It does not wait for a scout that left when the thread
  had been made: of those there is an end without that. Returns true where it may have used up an
  unpark of the thread."
  []
  (give-way true))
