(ns thrum.impl.completed
  "Tasks in the order in which they have ended, handed out one after the other to a thread that
  waits for them."
  {:no-doc true}
  (:require
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (java.util ArrayDeque)
   (java.util.concurrent ConcurrentHashMap)
   (java.util.concurrent.atomic AtomicBoolean AtomicReference)))

(set! *warn-on-reflection* true)

;; No protocol: it is called for every task that ends, see decision 32.
(definterface ICompleted
  (^Object put [task])
  (poll [])
  (^boolean isEmpty [])
  (^boolean claim []))              ; keeps all tasks from now on; false: some were dropped

(def ^:private ^:const most-unclaimed
  "How many tasks are held while no thread has asked for them: a scope that is never asked may
  live long."
  10000)

;; claimed: a thread has asked. dropped: too many tasks came before that. consumer: the thread that
;; waits.
(deftype Completed [^ArrayDeque tasks ^AtomicReference consumer
                    ^:unsynchronized-mutable claimed
                    ^:unsynchronized-mutable dropped]
  ICompleted
  (put [this task]
    (locking this
      (cond
        (or claimed (and (not dropped) (< (.size tasks) (long most-unclaimed)))) (.add tasks task)
        (not dropped) (do (set! dropped true) (.clear tasks)))
      nil))
  (poll [this]
    (locking this (.poll tasks)))
  (isEmpty [this]
    (locking this (.isEmpty tasks)))
  (claim [this]
    (locking this
      (when-not dropped (set! claimed true))
      (not dropped))))

(defn completed
  "Returns a queue without tasks, for one consumer at a time."
  ^Completed []
  (Completed. (ArrayDeque.) (AtomicReference.) false false))

(defn wake!
  "Has the thread that waits look again."
  [^Completed completed]
  (wait/signal! (.-consumer completed)))

(defn put!
  "Adds a task that has ended."
  [^Completed completed task]
  (.put completed task)
  (wake! completed))

(defn claim!
  "Has all tasks held from now on. Returns false where too many have been dropped before."
  [^Completed completed]
  (.claim completed))

(defn next!
  "Waits for the next task and returns it; nil when (over?) is true and none is left. A thread that
  makes (over?) true calls wake! afterwards. Throws CancellationException, InterruptedException."
  [^Completed completed over?]
  (wait/await-signal! completed (.-consumer completed) nil
    #(or (not (.isEmpty completed)) (over?)))
  (.poll completed))

;; Of any tasks. Each holds a function of the queue's. A wait that throws may be the last one: the
;; tasks then let go of the queue, until there is another.

(defn- waiter
  "Returns the function of a task, which puts it into the queue. pending: the tasks that are still
  to come, by function."
  [completed ^ConcurrentHashMap pending task]
  (fn put-once! []
    (when (.remove pending put-once!) (put! completed task))))

(defn- next-of!
  "Waits as next! does. left: true while the tasks do not hold the queue."
  [completed pending ^AtomicBoolean left]
  (try
    (when (.getAndSet left false)
      (doseq [[f task] pending] (task/on-outcome! task f)))
    (next! completed (constantly false))
    (catch Throwable t
      (.set left true)
      (doseq [[f task] pending] (task/off-outcome! task f))
      (throw t))))

(defn- in-order [next-task ^long n]
  (lazy-seq
    (when (pos? n)
      (cons (next-task) (in-order next-task (dec n))))))

(defn as-completed
  "Returns the tasks as a lazy seq in the order in which their outcomes are known. Realising an
  element waits for it."
  [tasks]
  (let [completed (doto (completed) claim!), pending (ConcurrentHashMap.), left (AtomicBoolean.)]
    (doseq [task tasks, :let [f (waiter completed pending task)]]
      (.put pending f task)
      (task/on-outcome! task f))
    (in-order #(next-of! completed pending left) (count tasks))))
