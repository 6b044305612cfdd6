(ns thrum.impl.task
  "One unit of work on one fresh virtual thread. A task is a full Clojure future, and it always
  ends: done, failed or cancelled."
  {:no-doc true}
  (:require
   [thrum.impl.completion :as completion]
   [thrum.impl.context :as context]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.interrupt :as interrupt]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.place :as place]
   [thrum.impl.registry :as registry]
   [thrum.impl.show :as show]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.turn :as turn]
   [thrum.impl.wait :as wait])
  (:import
   (clojure.lang Fn IBlockingDeref IDeref IFn IPending)
   (java.util HashSet)
   (java.util.concurrent Future)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (java.util.concurrent.locks LockSupport)
   (thrum.impl.context Context)
   (thrum.impl.interrupt InterruptFlag)
   (thrum.impl.place Cancellable Place)))

(set! *warn-on-reflection* true)

;; What a group holds. slot: see thrum.impl.running. isGone: true if it has ended, and its
;; handler knows.
(definterface Child
  (^Object cancelFor [reason])
  (^long slot [])
  (^Object setSlot [^long i])
  (^boolean isGone []))

;; No protocol: with those of core a scope with a fork costs 1.2 x the CPU (decision 32).
(definterface ITask
  (outcome [])
  (ownCancelReason [])
  (^boolean settle [outcome])
  (settleLocked [outcome])
  (^boolean addWaiter [waiter])
  (^Object removeWaiter [waiter])
  (^Thread thread [])
  (^long born [])
  (^Object setThread [^Thread thread])
  (^Object shareFlag [flag])
  (^Object leaveThread [flag outer])
  (^Object dropFlag [])
  (^Object interruptThread [])
  (^Object bodyLeft [])
  (^boolean claim [])
  (takeBody [])
  (^Object end [])
  (^Object release [])
  (^boolean cancelWith [reason ^boolean interrupt])
  (^String taskName [])
  (^Object setName [^String name])
  (^long index [])
  (successor [])
  (^Object setSuccessor [task])
  (handler []))

;; How a task ended. An outcome never changes.

(deftype Done [value])
(deftype Failed [^Throwable throwable])
(deftype Cancelled [reason])

(def ^:private lost
  "The outcome of a task when no memory is left to record what it threw. It is shared: nothing can
  be suppressed on it."
  (Failed. (proxy [Error] ["A task failed, and no memory was left to record how" nil false false])))

(defn- failed [t]
  (try
    (Failed. t)
    (catch Throwable _
      lost)))

(defn- attempt [task context body]
  (try
    (context/enter! context task)
    (let [value (if (instance? IFn body) (body) (.run ^Runnable body))]
      ;; Not around the call: it would be there, 16 bytes, for as long as the body runs.
      (Done. value))
    (catch Throwable t
      (failed t))))

(defn- reason-behind
  "Returns why the task's work was cancelled, where what it threw is only the consequence; or why
  its group has ended, where it has begun something too late: the cancel is still to come. Or nil."
  [^Place task throwable]
  (cond
    (.cancelReason task) (when (error/casualty? throwable) (.cancelReason task))
    (= :thrum/closed (error/type-of throwable)) (some-> ^Cancellable (.group task) .endReason)))

(defn- ended-as
  "Returns the outcome that counts: a casualty of a cancel is no failure."
  [task outcome]
  (try
    (if-some [reason (when (instance? Failed outcome)
                       (reason-behind task (.-throwable ^Failed outcome)))]
      (Cancelled. reason)
      outcome)
    ;; Not enough memory to find out.
    (catch Throwable _ outcome)))

(defn- report! [^ITask task handler outcome]
  (when (and handler (instance? Failed outcome))
    (completion/failed handler task (.-throwable ^Failed outcome))))

(defn- count! [outcome]
  (registry/count-end!
    (cond (instance? Done outcome) 0
          (instance? Failed outcome) 1
          :else 2)))

(defn- perform!
  "Runs the body, unless the task was cancelled first."
  [^ITask task context handler body]
  (when-not (.outcome task)
    (let [outcome (ended-as task (attempt task context body))]
      (try
        (.bodyLeft task)
        (report! task handler outcome)
        (finally (.settle task outcome))))))

(defn- check-deadlock!
  "Throws :thrum/deadlock when the task waits for itself: it cannot end before the calling thread's
  work."
  [^ITask task]
  (loop [^Place holder (some-> (place/current) .task)]
    (when holder
      (when (identical? task holder)
        (throw (error/deadlock (str (.taskName task) " waits for itself")
                               {:task (.taskName task)})))
      (recur (some-> ^Cancellable (.group holder) .opener)))))

(defn- ended-by?
  "Waits for the outcome, at most until the deadline. Every waiter parks on its own and leaves in
  constant time."
  [^ITask task deadline]
  (or (some? (.outcome task))
      (let [self (Thread/currentThread)
            ended? #(some? (.outcome task))]
        (when-not deadline (check-deadlock! task))
        (when-not (and deadline (deadline/passed? deadline)) (wait/look! ended?))
        (or (not (.addWaiter task self))
            (try
              (wait/until task deadline ended?)
              (finally (when-not (.outcome task) (.removeWaiter task self))))))))

(defn value
  "Returns the value of a task that has ended, or throws its failure or CancellationException."
  [^ITask task]
  (let [outcome (.outcome task)]
    (cond
      (instance? Done outcome) (.-value ^Done outcome)
      (instance? Failed outcome) (throw (.-throwable ^Failed outcome))
      :else (throw (error/cancelled (.taskName task) (.-reason ^Cancelled outcome))))))

(defn- future-value [^ITask task]
  (let [outcome (.outcome task)]
    (if (instance? Failed outcome)
      (throw (error/execution (.-throwable ^Failed outcome)))
      (value task))))

;; The waiters of a task: nil, one thread (the usual case), or a set of threads and of functions
;; without arguments, which are called when the outcome is known.

(defn- with-waiter [waiters waiter]
  (cond
    (nil? waiters) waiter
    (instance? HashSet waiters) (doto ^HashSet waiters (.add waiter))
    :else (doto (HashSet.) (.add waiters) (.add waiter))))

(defn- without-waiter [waiters waiter]
  (if (instance? HashSet waiters)
    (doto ^HashSet waiters (.remove waiter))
    (when-not (identical? waiter waiters) waiters)))

(defn- wake! [waiters]
  (condp instance? waiters
    Thread (LockSupport/unpark waiters)
    HashSet (run! wake! waiters)
    Fn (try (waiters) (catch Throwable t (jdk/uncaught! t)))
    nil))

;; context, handler, body, thread, flag: nil when the task has ended. A kept task then keeps only
;; its outcome and its name. no-interrupt: the task's interrupt was sent, or is not needed any more.
;; waiters: once the outcome is there, the task's successor on the stack of an order, which
;; publishes it. born: a stamp of thrum.impl.registry. An object takes 64 bytes, a cache line.
(deftype Task [^:unsynchronized-mutable ^Context context
               ^:unsynchronized-mutable handler
               ^long index
               ^:unsynchronized-mutable body
               ^:volatile-mutable outcome
               ^:volatile-mutable ^Thread thread
               ^:unsynchronized-mutable flag
               ^:unsynchronized-mutable ^boolean no-interrupt
               ^:unsynchronized-mutable ^String name
               ^:unsynchronized-mutable waiters
               ^:unsynchronized-mutable ^boolean claimed
               ^:unsynchronized-mutable ^int slot
               ^int born]
  ITask
  (outcome [_] outcome)
  (ownCancelReason [_]
    (when (instance? Cancelled outcome)
      (.-reason ^Cancelled outcome)))
  (taskName [_] name)
  (setName [_ n] (set! name n))
  (index [_] index)
  (successor [_] waiters)
  (setSuccessor [_ task] (set! waiters task))
  (handler [_] handler)
  (thread [_] thread)
  (born [_] (registry/since born))
  (setThread [_ t]
    (set! thread t)
    (when-not name (set! name (.getName t))))
  (settleLocked [this o]
    (locking this
      (when-not outcome
        (set! outcome o)
        (let [woken waiters]
          (set! waiters nil)
          (or woken :none)))))
  (settle [this o]
    (sync-point/reached :task/settle)
    (let [woken (.settleLocked this o)]
      (when-not (identical? :none woken) (wake! woken))
      (some? woken)))
  (addWaiter [this waiter]
    (locking this
      (when-not outcome
        (set! waiters (with-waiter waiters waiter)))
      (nil? outcome)))
  (removeWaiter [this waiter]
    (locking this
      (when-not outcome
        (set! waiters (without-waiter waiters waiter)))))
  (shareFlag [_ f] (set! flag f))
  (interruptThread [this]
    (let [^InterruptFlag flag (.interruptFlag this)]
      (locking flag
        (when-not no-interrupt
          (set! no-interrupt (boolean true))
          (.send flag)))))
  ;; A later cancel must not interrupt what is called at the end. Before the outcome is there:
  ;; whichever cancel sees that it was cancelled sees this.
  (bodyLeft [_]
    (set! no-interrupt (boolean true))
    nil)
  (claim [this]
    (locking this
      (let [free (not claimed)]
        (set! claimed (boolean true))
        free)))
  ;; For a thread that goes on after the task. Taking the lock waits for any canceller that already
  ;; read the flag; no late interrupt can follow. The task may also have seen, or used up, the
  ;; interrupt of the thread's outer place.
  (leaveThread [this shared outer]
    (.dropFlag this)
    (locking shared
      (set! no-interrupt (boolean true))
      (when (or (.isCancelled this) (some-> ^Place outer .cancelReason))
        (place/leave-cancelled! shared outer))))
  (dropFlag [this]
    (locking this
      (set! flag nil)))
  ;; Nothing holds the body while it runs: it may let go of its item. A Future is held, for its
  ;; cancel.
  (takeBody [_]
    (let [work body]
      (when-not (instance? Future work) (set! body nil))
      work))
  (end [this]
    (set! body nil)
    (set! thread nil)
    (try
      (when handler (completion/ended handler this))
      (finally (.release this))))
  ;; The thread first: a flag that is made later must not be of it. None is made later unless a
  ;; cancel came first.
  (release [this]
    (set! context nil)
    (set! handler nil)
    (set! body nil)
    (when thread (set! thread nil))
    (if (instance? Cancelled outcome)
      (.dropFlag this)
      (set! flag nil)))
  (cancelWith [this reason interrupt]
    (let [work body, first-time (.settle this (Cancelled. reason))]
      (when (and first-time (instance? Future work)) (.cancel ^Future work false))
      ;; A cancel before this one may have sent no interrupt.
      (when (and interrupt (not no-interrupt) (.isCancelled this)) (.interruptThread this))
      ;; Its executor may run it late, or never.
      (when (and first-time (nil? handler) (.claim this)) (.release this))
      first-time))

  Child
  (slot [_] slot)
  (setSlot [_ i] (set! slot (int i)) nil)
  (isGone [_]
    (and (some? outcome) (nil? handler)))
  (cancelFor [this reason] (.cancelWith this reason true))

  Place
  (group [_]
    (when-some [^Context c context] (.-group c)))
  (task [this] this)
  (cancelledTask [this] this)
  (cancelReason [this]
    (or (.ownCancelReason this)
        (some-> ^Cancellable (.group this) .cancelReason)))
  (interruptedByCancel [this]
    (some? (.ownCancelReason this)))
  (outer [_])
  (isOver [_] false)
  ;; Made on demand: most tasks are never cancelled and hold no scope.
  (interruptFlag [this]
    (locking this
      (or flag (set! flag (interrupt/interrupt-flag thread)))))
  (acknowledge [this]
    (when (.ownCancelReason this) (set! no-interrupt (boolean true))))

  Runnable
  ;; A task with a handler has a thread of its own, which runs it once.
  (run [this]
    (when (or handler (.claim this))
      (let [here (Thread/currentThread)]
        (cond
          (nil? thread) (.setThread this here)
          (identical? here thread) (turn/give-way-first!)))
      (let [on-end (registry/observe-begin! :task this)]
        (try
          (perform! this context handler (.takeBody this))
          (finally
            (when-not outcome (.settle this lost))
            (count! outcome)
            (registry/observe-end! on-end this)
            (.end this))))))

  Future
  (isDone [_] (some? outcome))
  (isCancelled [_] (instance? Cancelled outcome))
  (cancel [this interrupt] (.cancelWith this :future-cancel interrupt))
  (get [this]
    (ended-by? this nil)
    (future-value this))
  (get [this n unit]
    (when-not (ended-by? this (deadline/in-nanos (.toNanos unit n)))
      (throw (error/late name)))
    (future-value this))

  IDeref
  (deref [this] (.get this))

  IBlockingDeref
  (deref [this ms timeout-value]
    (if (ended-by? this (deadline/in-ms ms))
      (future-value this)
      timeout-value))

  IPending
  (isRealized [_] (some? outcome)))

;; How a task is made

(def ^:private ^AtomicLong names (AtomicLong.))

(defn unique-name
  "Returns kind-n, with an n that no other name in this process has."
  ^String [^String kind]
  (.concat (.concat kind "-") (Long/toString (.incrementAndGet names))))

(defn task
  "Returns a task that has not begun. Its body is what the context's wrap makes of f; handler: or
  nil. It takes the name of its thread."
  ^Task [context handler ^long index f]
  (Task. context handler index (context/wrapped-once context f)
         nil nil nil false nil nil false (int -1) (int (registry/stamp))))

(defn named
  "Returns the task with a name that is not its thread's."
  ^Task [^Task task name]
  (.setName task name)
  task)

(defn latch
  "Returns a task without a body: it ends when it is settled."
  ^Task [name]
  (named (Task. nil nil 0 nil nil nil nil false nil nil false (int -1) (int 0)) name))

(defn start!
  "Starts the task on its thread, a fresh one that runs it. Returns the task."
  [^Task task ^Thread thread]
  (.setThread task thread)
  (.start thread)
  task)

(defn thread!
  "Starts a virtual thread of that name which runs f in the context, and returns the thread. A
  failure goes to the thread's uncaught exception handler."
  ^Thread [context name f]
  (let [body (context/wrapped-once context f)]
    (doto (jdk/virtual-thread name (fn []
                                     ;; What used up an unpark leaves one: a park may return for
                                     ;; no reason, and must return for that.
                                     (when (turn/give-way-first!)
                                       (LockSupport/unpark (Thread/currentThread)))
                                     (context/enter! context nil)
                                     (body)))
      .start)))

(deftype EndCallback [on-end ^AtomicReference entry-ref]
  completion/CompletionHandler
  (failed [_ _ _])
  (ended [_ task]
    (some-> entry-ref .get registry/forget!)
    (when on-end (on-end task))))

(defn future!
  "Starts f as a task in no group, on a virtual thread of that name. on-end: called with the task
  when it has ended, on its thread; or nil. Returns the task."
  [context name on-end f]
  (let [entry-ref (registry/entry-ref)
        task (task context (when (or entry-ref on-end) (EndCallback. on-end entry-ref)) 0 f)]
    (registry/keep-task! entry-ref task name)
    (start! task (jdk/virtual-thread name task))))

;; How a task is waited for

(defn on-outcome!
  "Has f, a function of no arguments, called once when the outcome is known: on the thread that ends
  or cancels the task, or here if it is known already. f must be short; what it throws goes to the
  uncaught exception handler."
  [^ITask task f]
  (when-not (.addWaiter task f) (f)))

(defn off-outcome!
  "Takes f back, the same function, which the task then holds no more. It may be called all the same
  where the task ends meanwhile."
  [^ITask task f]
  (.removeWaiter task f))

(defn awaited
  "Returns the value of the task when it has ended, or the fallback after so many ms. Throws what
  the task threw, the same instance; CancellationException and InterruptedException."
  ([task]
   (ended-by? task nil)
   (value task))
  ([task ms fallback]
   (if (ended-by? task (deadline/in-ms ms)) (value task) fallback)))

;; How a task has ended, as data

(defn outcome-data
  "Returns {:value v}, {:error throwable} or {:cancelled reason}; nil while the task runs."
  [^ITask task]
  (let [outcome (.outcome task)]
    (condp instance? outcome
      Done {:value (.-value ^Done outcome)}
      Failed {:error (.-throwable ^Failed outcome)}
      Cancelled {:cancelled (.-reason ^Cancelled outcome)}
      nil)))

(defn state-of
  "Returns :running, :done, :failed or :cancelled for what outcome-data returns."
  [data]
  (if data
    ({:value :done, :error :failed, :cancelled :cancelled} (key (first data)))
    :running))

(defn- printed [task]
  (let [data (outcome-data task), [k v] (first data)]
    (cond-> {:status (state-of data)}
      data (assoc (if (= :cancelled k) :reason :val) v))))

(defmethod print-method Task [^Task task ^java.io.Writer w]
  (.write w "#<task ")
  (.write w (str (.taskName task) " "))
  (print-method (printed task) w)
  (.write w ">"))

(show/pretty-as-printed! Task)
