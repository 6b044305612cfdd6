(ns thrum.order
  "In which order results leave a fan-out, and whom a failure takes along. An order holds the tasks that were started and
  not yet consumed."
  (:require [thrum.scope :as scope])
  (:import (java.util ArrayDeque)
           (java.util.concurrent ConcurrentLinkedQueue)
           (java.util.concurrent.atomic AtomicLong)
           (java.util.function LongBinaryOperator)
           (thrum.task Done Failed ITask)))

(set! *warn-on-reflection* true)

(definterface IOrder
  (^Object started [task])          ; by the consumer: the task runs
  (^boolean ready [^boolean room])  ; is there something to say, also when more could start?
  (next [])                         ; the next task to leave, or nil when a failure ended all
  (^Object ended [task])            ; by the task's own thread
  (^boolean stopped []))            ; must nothing new start?

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
  "Cancels what comes after a failed task, up to the next failure: many failures together cost no more than one."
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
  (ready [_ _]
    (boolean (and head (.outcome head))))
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
    (< (.get first-failed) Long/MAX_VALUE)))

(defn input-order
  "Results leave in the order of the input; a failure cancels what comes after it."
  []
  (InputOrder. (AtomicLong. Long/MAX_VALUE) nil nil))

;; upmap, pmapv, prun!: order of completion

(deftype CompletionOrder [scope ^ConcurrentLinkedQueue completed]
  IOrder
  (started [_ _])
  (ready [this _]
    (or (not (.isEmpty completed)) (.stopped this)))
  (next [_] (.poll completed))
  (ended [_ task]
    (condp instance? (.outcome ^ITask task)
      Done (.add completed task)
      Failed (scope/cancel! scope :sibling-failed)
      nil))
  (stopped [_]
    (some? (scope/reason scope))))

(defn completion-order
  "Results leave as they come; a failure cancels the scope."
  [scope]
  (CompletionOrder. scope (ConcurrentLinkedQueue.)))

;; fmap: the tasks themselves

(deftype StartOrder [^long ahead ^ArrayDeque tasks]
  IOrder
  (started [_ task] (.add tasks task))
  (ready [_ room]
    (and (not (.isEmpty tasks))
         (or (not room) (<= ahead (.size tasks)))))
  (next [_] (.poll tasks))
  (ended [_ _])
  (stopped [_] false))

(defn start-order
  "The tasks themselves leave, in the order of the input, as soon as `ahead` of them have been started or no more can be;
  a failure stops nobody."
  [ahead]
  (StartOrder. ahead (ArrayDeque.)))
