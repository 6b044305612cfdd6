(ns thrum.impl.order
  "The orders in which results leave a fan-out, and which tasks a failure cancels in each."
  {:no-doc true}
  (:require
   [thrum.impl.group :as group])
  (:import
   (java.util ArrayDeque)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (java.util.function LongBinaryOperator)
   (thrum.impl.task Done Failed ITask)))

(set! *warn-on-reflection* true)

(defprotocol Order
  "Holds the tasks that were started and not yet consumed. The task's own thread calls ended; the
  consumer calls the others."
  (started [order task] "Adds a task that runs.")
  (due? [order] "True if a task must leave before another starts.")
  (ready? [order] "True if a task can leave when no other can start.")
  (next-task [order] "Takes out the next task to leave; nil when a failure ended all.")
  (keeps? [order]
    "True: the group keeps a task until its result is handed out. False: only until it ends.")
  (ended [order task] "Called when a task has ended.")
  (stopped? [order] "True if nothing new may start.")
  (broken [order] "Returns the failed task that ended all, or nil."))

(defn- failed? [^ITask task]
  (instance? Failed (.outcome task)))

;; pmap: the order of the input, as a chain of tasks

(defn- lower!
  "Lowers the number to n if it is higher; returns its old value."
  ^long [^AtomicLong number ^long n]
  (.getAndAccumulate number n (reify LongBinaryOperator (applyAsLong [_ a b] (min a b)))))

(defn- cancel-from!
  "Cancels the tasks from this one on, up to the task of index end."
  [^ITask task ^long end]
  (loop [task task]
    (when (and task (< (.index task) end))
      (.cancelWith task :sibling-failed true)
      (recur ^ITask (.successor task)))))

(defn- cancel-later!
  "Cancels the tasks after a failed one, up to the next failure: many failures together cost no more
  than one."
  [^AtomicLong first-failed ^ITask task]
  (let [index (.index task)
        end (lower! first-failed index)]
    (when (< index end)
      (cancel-from! (.successor task) end))))

;; first-failed: an index. head, tail: of the chain.
(deftype InputOrder [^AtomicLong first-failed
                     ^:unsynchronized-mutable ^ITask head
                     ^:unsynchronized-mutable ^ITask tail]
  Order
  (started [_ task]
    (if head (.setSuccessor tail task) (set! head task))
    (set! tail task)
    ;; A failure that came before the link was set has not seen this task.
    (when (< (.get first-failed) (.index ^ITask task))
      (.cancelWith ^ITask task :sibling-failed true)))
  (due? [_]
    (and (some? head) (some? (.outcome head))))
  (ready? [this] (due? this))
  (keeps? [_] true)
  (next-task [_]
    (let [task head]
      (set! head (.successor task))
      (when-not (failed? task)
        (.setSuccessor task nil))
      task))
  (ended [_ task]
    (when (failed? task)
      (cancel-later! first-failed task)))
  (stopped? [_]
    (< (.get first-failed) Long/MAX_VALUE))
  (broken [_] nil))

(defn input-order
  "Results leave in the order of the input; a failure cancels the tasks after it."
  []
  (InputOrder. (AtomicLong. Long/MAX_VALUE) nil nil))

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

;; completed: a stack that the tasks' threads push on; the consumer takes all of it at once.
(deftype CompletionOrder [group ^AtomicReference completed
                          ^:volatile-mutable failed
                          ^:unsynchronized-mutable ^ITask head]
  Order
  (started [_ _])
  (due? [this]
    (or (some? head) (some? (.get completed)) (stopped? this)))
  (ready? [this] (due? this))
  (keeps? [_] true)
  (next-task [_]
    (when-not head
      (set! head (reversed (.getAndSet completed nil))))
    (when-some [task head]
      (set! head (.successor task))
      (.setSuccessor task nil)
      task))
  (ended [_ task]
    (condp instance? (.outcome ^ITask task)
      Done (push! completed task)
      Failed (do (set! failed task) (group/cancel! group :sibling-failed))
      nil))
  (stopped? [_]
    (or (some? failed) (some? (group/end-reason group))))
  (broken [_] failed))

(defn completion-order
  "Results leave as they come; a failure cancels the group."
  [group]
  (CompletionOrder. group (AtomicReference.) nil nil))

;; fmap: the tasks themselves

(deftype StartOrder [^long ahead ^ArrayDeque tasks]
  Order
  (started [_ task] (.add tasks task))
  (due? [_] (<= ahead (.size tasks)))
  (ready? [_] (not (.isEmpty tasks)))
  (keeps? [_] false)
  (next-task [_] (.poll tasks))
  (ended [_ _])
  (stopped? [_] false)
  (broken [_] nil))

(defn start-order
  "The tasks themselves leave, in the order of the input, as soon as `ahead` of them have started or
  no more can start; a failure cancels nothing."
  [ahead]
  (StartOrder. ahead (ArrayDeque.)))
