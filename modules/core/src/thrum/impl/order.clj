(ns thrum.impl.order
  "In which order results leave a fan-out, and whom a failure takes along. An order holds the tasks
  that were started and not yet consumed."
  {:no-doc true}
  (:require
   [thrum.impl.group :as scope])
  (:import
   (java.util ArrayDeque)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (java.util.function LongBinaryOperator)
   (thrum.impl.task Done Failed ITask)))

(set! *warn-on-reflection* true)

(definterface IOrder
  (^Object started [task])          ; by the consumer: the task runs
  (^boolean due [])                 ; must one leave before another starts?
  (^boolean ready [])               ; could one leave when no other can start?
  (next [])                         ; the next task to leave, or nil when a failure ended all
  (^boolean keeps [])               ; do tasks stay until they leave? Else until they end
  (^Object ended [task])            ; by the task's own thread
  (^boolean stopped [])             ; must nothing new start?
  (broken []))                      ; the failed task that ended all, or nil

(defn- failed? [^ITask task]
  (instance? Failed (.outcome task)))

;; pmap: input order

(defn- lower!
  "Lowers the number to n, if it is higher; returns what it was."
  ^long [^AtomicLong number ^long n]
  (.getAndAccumulate number n (reify LongBinaryOperator (applyAsLong [_ a b] (min a b)))))

(defn- cancel-from!
  "Cancels the tasks from this one on, as far as the task of index end."
  [^ITask task ^long end]
  (loop [task task]
    (when (and task (< (.index task) end))
      (.cancelWith task :sibling-failed true)
      (recur ^ITask (.successor task)))))

(defn- cancel-later!
  "Cancels what comes after a failed task, up to the next failure: many failures together cost no
  more than one."
  [^AtomicLong first-failed ^ITask task]
  (let [index (.index task)
        end (lower! first-failed index)]
    (when (< index end)
      (cancel-from! (.successor task) end))))

(deftype InputOrder [^AtomicLong first-failed
                     ^:unsynchronized-mutable ^ITask head
                     ^:unsynchronized-mutable ^ITask tail]
  IOrder
  (started [_ task]
    (if head (.setSuccessor tail task) (set! head task))
    (set! tail task)
    ;; A failure that came before the link was set has not seen this task.
    (when (< (.get first-failed) (.index ^ITask task))
      (.cancelWith ^ITask task :sibling-failed true)))
  (due [_]
    (and (some? head) (some? (.outcome head))))
  (ready [this] (.due this))
  (keeps [_] true)
  (next [_]
    (let [task head]
      (set! head (.successor task))
      (when-not (failed? task)
        (.setSuccessor task nil))
      task))
  (ended [_ task]
    (when (failed? task)
      (cancel-later! first-failed task)))
  (stopped [_]
    (< (.get first-failed) Long/MAX_VALUE))
  (broken [_] nil))

(defn input-order
  "Results leave in the order of the input; a failure cancels what comes after it."
  []
  (InputOrder. (AtomicLong. Long/MAX_VALUE) nil nil))

;; upmap, pmapv, prun!: order of completion

(defn- push! [^AtomicReference stack ^ITask task]
  (let [top (.get stack)]
    (.setSuccessor task top)
    (when-not (.compareAndSet stack top task)
      (recur stack task))))

(defn- in-time
  "Returns the chain of a stack's tasks, first come first."
  [^ITask top]
  (loop [^ITask task top, chain nil]
    (if task
      (let [below (.successor task)]
        (.setSuccessor task chain)
        (recur below task))
      chain)))

;; The tasks' own threads push on the stack, the consumer takes all of it at once.
(deftype CompletionOrder [scope ^AtomicReference completed
                          ^:volatile-mutable failed
                          ^:unsynchronized-mutable ^ITask head]
  IOrder
  (started [_ _])
  (due [this]
    (or (some? head) (some? (.get completed)) (.stopped this)))
  (ready [this] (.due this))
  (keeps [_] true)
  (next [_]
    (when-not head
      (set! head (in-time (.getAndSet completed nil))))
    (when-some [task head]
      (set! head (.successor task))
      (.setSuccessor task nil)
      task))
  (ended [_ task]
    (condp instance? (.outcome ^ITask task)
      Done (push! completed task)
      Failed (do (set! failed task) (scope/cancel! scope :sibling-failed))
      nil))
  (stopped [_]
    (or (some? failed) (some? (scope/reason scope))))
  (broken [_] failed))

(defn completion-order
  "Results leave as they come; a failure cancels the scope."
  [scope]
  (CompletionOrder. scope (AtomicReference.) nil nil))

;; fmap: the tasks themselves

(deftype StartOrder [^long ahead ^ArrayDeque tasks]
  IOrder
  (started [_ task] (.add tasks task))
  (due [_] (<= ahead (.size tasks)))
  (ready [_] (not (.isEmpty tasks)))
  (keeps [_] false)
  (next [_] (.poll tasks))
  (ended [_ _])
  (stopped [_] false)
  (broken [_] nil))

(defn start-order
  "The tasks themselves leave, in the order of the input, as soon as `ahead` of them have been
  started or no more can be; a failure stops nobody."
  [ahead]
  (StartOrder. ahead (ArrayDeque.)))
