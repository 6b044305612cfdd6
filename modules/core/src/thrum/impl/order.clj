(ns thrum.impl.order
  "The orders in which results leave a fan-out, and which tasks a failure cancels in each."
  {:no-doc true}
  (:require
   [thrum.impl.cache-line :as cache-line]
   [thrum.impl.group :as group]
   [thrum.impl.running :as running])
  (:import
   (java.util ArrayDeque)
   (java.util.concurrent.atomic AtomicLong AtomicReference AtomicReferenceArray)
   (java.util.function LongBinaryOperator)
   (thrum.impl.running Running)
   (thrum.impl.task Cancelled Done Failed ITask)))

(set! *warn-on-reflection* true)

(defprotocol Order
  "Holds the tasks that were started and not yet consumed, or at least those that run. The task's
  own thread calls ended, any thread tasks and cancel-all; the consumer calls the others."
  (started [order task] "Adds a task that is about to run; a cancel-all from then on finds it.")
  (take-back [order task] "Takes out the task that was added last, which could not run.")
  (due? [order] "True if a task must leave before another starts.")
  (ready? [order] "True if a task can leave when no other can start.")
  (value-ready? [order] "True if a task with a value can leave.")
  (next-task [order] "Takes out the next task to leave; nil when a failure ended all.")
  (ended [order task] "Called when a task has ended.")
  (tasks [order] "Returns the tasks that run, as a vector.")
  (cancel-all [order reason] "Cancels the tasks that run.")
  (stopped? [order] "True if nothing new may start.")
  (broken [order] "Returns the failed task that ended all, or nil."))

(defn- failed? [^ITask task]
  (instance? Failed (.outcome task)))

;; pmap: the order of the input, a ring in which the task of index i has slot i

(defn- slot
  "Returns the slot of an index in a ring, whose length is a power of two."
  ^long [^AtomicReferenceArray ring ^long index]
  (bit-and index (dec (.length ring))))

(defn- task-at [^AtomicReferenceArray ring ^long index]
  (.get ring (slot ring index)))

(defn- doubled
  "Returns a ring of twice the length with the tasks from head to tail."
  ^AtomicReferenceArray [^AtomicReferenceArray ring ^long head ^long tail]
  (let [more (AtomicReferenceArray. (* 2 (.length ring)))]
    (loop [i head]
      (when (< i tail)
        (.setPlain more (slot more i) (task-at ring i))
        (recur (inc i))))
    more))

(defn- lower!
  "Lowers the number to n if it is higher; returns its old value."
  ^long [^AtomicLong number ^long n]
  (.getAndAccumulate number n (reify LongBinaryOperator (applyAsLong [_ a b] (min a b)))))

(defn- cancel-between!
  "Cancels the tasks of the indices after the first, up to the end."
  [^AtomicReferenceArray ring ^long index ^long end]
  (loop [i (inc index), left (.length ring)]
    (when (and (< i end) (pos? left))
      (when-some [^ITask task (task-at ring i)]
        (when (< index (.index task))
          (.cancelWith task :sibling-failed true)))
      (recur (inc i) (dec left)))))

(def ^:private ^:const head-at cache-line/index)
(def ^:private ^:const tail-at (inc head-at))

;; first-failed: an index. ends: those of the next task to leave and to start, at head and tail. The
;; consumer alone writes the ring. A failure, or a cancel, sets its state before it reads the ring;
;; the consumer reads that state after its volatile write: one of the two sees the other.
(deftype InputOrder [^AtomicLong first-failed
                     ^:volatile-mutable ^AtomicReferenceArray ring
                     ^longs ends]
  Order
  (started [_ task]
    (let [head (aget ends head-at), tail (aget ends tail-at)]
      (when (= (- tail head) (.length ring))
        (set! ring (doubled ring head tail)))
      (.set ring (slot ring tail) task)
      (aset ends tail-at (inc tail))
      (when (< (.get first-failed) (.index ^ITask task))
        (.cancelWith ^ITask task :sibling-failed true))))
  (take-back [_ _]
    (let [tail (dec (aget ends tail-at))]
      (aset ends tail-at tail)
      (.set ring (slot ring tail) nil)))
  (due? [_]
    (let [head (aget ends head-at)]
      (and (< head (aget ends tail-at)) (some? (.outcome ^ITask (task-at ring head))))))
  (ready? [this] (due? this))
  (value-ready? [_]
    (let [head (aget ends head-at)]
      (and (< head (aget ends tail-at))
           (instance? Done (.outcome ^ITask (task-at ring head))))))
  (next-task [_]
    (let [head (aget ends head-at), task (task-at ring head)]
      (.lazySet ring (slot ring head) nil)
      (aset ends head-at (inc head))
      task))
  ;; Up to the next failure: many failures together cost no more than one.
  (ended [_ task]
    (when (failed? task)
      (let [index (.index ^ITask task), end (lower! first-failed index)]
        (cancel-between! ring index end))))
  (tasks [_] (running/tasks ring))
  (cancel-all [_ reason]
    (running/cancel-all! ring reason))
  (stopped? [_]
    (< (.get first-failed) Long/MAX_VALUE))
  (broken [_] nil))

(defn input-order
  "Results leave in the order of the input; a failure cancels the tasks after it."
  []
  (InputOrder. (AtomicLong. Long/MAX_VALUE) (AtomicReferenceArray. 16) (cache-line/numbers)))

;; upmap, pmapv, prun!: the order of completion

(defn- push! [^AtomicReference stack ^ITask task]
  (let [top (.get stack)]
    (.setSuccessor task top)
    (when-not (.compareAndSet stack top task)
      (recur stack task))))

(defn- reversed
  "Returns the chain of a stack's tasks, the lowest first."
  [^ITask top]
  (loop [^ITask task top, chain nil]
    (if task
      (let [below (.successor task)]
        (.setSuccessor task chain)
        (recur below task))
      chain)))

;; on-done: takes the tasks instead of the consumer, or nil. completed: a stack that the tasks'
;; threads push on; the consumer takes all of it at once. head: holds the first of what it took, see
;; thrum.impl.cache-line.
(deftype CompletionOrder [group ^Running running on-done ^AtomicReference completed
                          ^:volatile-mutable failed
                          ^objects head]
  Order
  (started [_ task] (.add running task))
  (take-back [_ task] (.forget running task))
  (due? [this]
    (or (some? (aget head cache-line/index)) (some? (.get completed)) (stopped? this)))
  (ready? [this] (due? this))
  (value-ready? [_]
    (or (some? (aget head cache-line/index)) (some? (.get completed))))
  (next-task [_]
    (when-not (aget head cache-line/index)
      (aset head cache-line/index (reversed (.getAndSet completed nil))))
    (when-some [^ITask task (aget head cache-line/index)]
      (aset head cache-line/index (.successor task))
      (.setSuccessor task nil)
      (.forget running task)
      task))
  (ended [_ task]
    (let [outcome (.outcome ^ITask task)]
      (cond
        (instance? Done outcome) (if on-done
                                   (do (on-done task) (.forget running task))
                                   (push! completed task))
        (instance? Failed outcome) (do (set! failed task)
                                       (group/cancel! group :sibling-failed))
        ;; It may know of a cancel that has not closed the group yet.
        :else (group/close! group (.-reason ^Cancelled outcome)))))
  (tasks [_] (.tasks running))
  (cancel-all [_ reason]
    (.cancelAll running reason))
  (stopped? [_]
    (or (some? failed) (some? (group/end-reason group))))
  (broken [_] failed))

(defn completion-order
  "Results leave as they come; a failure cancels the group. on-done: called with each task that has
  a value, on its thread, and then none leaves; nil: the consumer takes them."
  [group on-done]
  (CompletionOrder. group (running/running) on-done (AtomicReference.) nil (cache-line/object)))

;; pmap-tasks: the tasks themselves

(deftype StartOrder [^long ahead ^Running running ^ArrayDeque to-leave]
  Order
  (started [_ task]
    (.add running task)
    (.add to-leave task))
  (take-back [_ task]
    (.removeLast to-leave)
    (.forget running task))
  (due? [_] (<= ahead (.size to-leave)))
  (ready? [_] (not (.isEmpty to-leave)))
  (value-ready? [_] false)
  (next-task [_] (.poll to-leave))
  (ended [_ _])
  (tasks [_] (.tasks running))
  (cancel-all [_ reason]
    (.cancelAll running reason))
  (stopped? [_] false)
  (broken [_] nil))

(defn as-started?
  "True for the order in which tasks leave as they start."
  [order]
  (instance? StartOrder order))

(defn start-order
  "The tasks themselves leave, in the order of the input, as soon as `ahead` of them have started or
  no more can start; a failure cancels nothing."
  [ahead]
  (StartOrder. ahead (running/running) (ArrayDeque.)))
