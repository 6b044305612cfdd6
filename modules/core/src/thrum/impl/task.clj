(ns thrum.impl.task
  "One unit of work on one fresh virtual thread. A task is a full Clojure future, and it always
  ends: done, failed or cancelled."
  {:no-doc true}
  (:require
   [thrum.impl.context :as context]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.ledger :as ledger]
   [thrum.impl.point :as point]
   [thrum.impl.wait :as wait])
  (:import
   (clojure.lang IBlockingDeref IDeref IFn IPending)
   (java.util HashSet)
   (java.util.concurrent Future TimeoutException)
   (java.util.concurrent.atomic AtomicLong)
   (java.util.concurrent.locks LockSupport)
   (thrum.impl.context Context Owned Place)
   (thrum.impl.ledger Ledger)))

(set! *warn-on-reflection* true)

(definterface Child
  (^Object cancelFor [reason])
  (^long place [])
  (^Object setPlace [^long i]))

(definterface Owner
  (^Object failed [task ^Throwable t])
  (^Object ended [task]))

(definterface ITask
  (outcome [])
  (ownReason [])
  (^boolean settle [outcome])
  (settleUnder [outcome])
  (^boolean enlist [^Thread waiter])
  (^Object withdraw [^Thread waiter])
  (^Object begin [^Thread thread])
  (^Object share [ledger])
  (^Object finish [ledger outer])
  (^Object forgetLedger [])
  (^Object interruptRunner [])
  (^boolean claim [])
  (takeBody [])
  (^Object end [])
  (^Object release [])
  (^boolean cancelWith [reason ^boolean interrupt])
  (^String taskName [])
  (^Object setName [^String name])
  (^long index [])
  (successor [])
  (^Object setSuccessor [task]))

;; How a task ended. An outcome never changes.

(deftype Done [value])
(deftype Failed [^Throwable throwable])
(deftype Cancelled [reason])

(def ^:private lost
  "The outcome of a task for which there is no memory left to record what it threw. It is shared, so
  nothing can ride on it."
  (Failed. (proxy [Error] ["A task failed, and no memory was left to record how" nil false false])))

(defn- failed [t]
  (try
    (Failed. t)
    (catch Throwable _
      lost)))

(defn- attempt [task context body]
  (try
    (context/enter! context task)
    (Done. (if (instance? IFn body) (body) (.run ^Runnable body)))
    (catch Throwable t
      (failed t))))

(defn- ended-as
  "Returns the outcome that counts: what a task throws because its work was cancelled is no failure."
  [^Place task outcome]
  (try
    (let [reason (when (instance? Failed outcome) (.cancelReason task))]
      (if (and reason (error/casualty? (.-throwable ^Failed outcome))) (Cancelled. reason) outcome))
    ;; No memory to tell.
    (catch Throwable _ outcome)))

(defn- report! [^ITask task ^Owner owner outcome]
  (when (and owner (instance? Failed outcome))
    (.failed owner task (.-throwable ^Failed outcome))))

(defn- perform!
  "Runs the body, unless the task was cancelled first. The owner hears of a failure before anyone
  can see it."
  [^ITask task context owner body]
  (when-not (.outcome task)
    (let [outcome (ended-as task (attempt task context body))]
      (try
        (report! task owner outcome)
        (finally (.settle task outcome))))))

(defn- check-deadlock!
  "Throws :thrum/deadlock when the task cannot end before the calling thread's work has: when it
  waits for itself."
  [^ITask task]
  (loop [^Place holder (some-> (context/place)
                               .task)]
    (when holder
      (when (identical? task holder)
        (throw (error/deadlock (str (.taskName task) " waits for itself")
                               {:task (.taskName task)})))
      (recur (some-> ^Owned (.scope holder)
                     .opener)))))

(defn- ended-by?
  "Waits for the outcome, at most until the moment (nil: for ever). Every waiter parks on its own
  and leaves in constant time."
  [^ITask task moment]
  (or (some? (.outcome task))
      (let [self (Thread/currentThread)]
        (when-not moment (check-deadlock! task))
        (or (not (.enlist task self))
            (try
              (wait/until task moment #(some? (.outcome task)))
              (finally (when-not (.outcome task) (.withdraw task self))))))))

(defn value
  "Returns the value of a task that has ended, or throws: the failure itself, or
  CancellationException."
  [^ITask task]
  (let [outcome (.outcome task)]
    (condp instance? outcome
      Done (.-value ^Done outcome)
      Failed (throw (.-throwable ^Failed outcome))
      Cancelled (throw (error/cancelled (.taskName task) (.-reason ^Cancelled outcome))))))

(defn- future-value [^ITask task]
  (let [outcome (.outcome task)]
    (if (instance? Failed outcome)
      (throw (error/execution (.-throwable ^Failed outcome)))
      (value task))))

;; The waiters of a task: nil, one thread, as a rule, or a set of them.

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
    HashSet (run! #(LockSupport/unpark %) waiters)
    nil))

;; context, owner, body, thread, ledger: nil when the task has ended, so that whoever keeps it keeps
;; its outcome and its name alone.
(deftype Task [^:unsynchronized-mutable ^Context context
               ^:unsynchronized-mutable ^Owner owner
               ^long index
               ^:unsynchronized-mutable body
               ^:volatile-mutable outcome
               ^:volatile-mutable ^Thread thread
               ^:unsynchronized-mutable ledger
               ^:unsynchronized-mutable told
               ^:unsynchronized-mutable ^String name
               ^:volatile-mutable successor
               ^:unsynchronized-mutable waiters
               ^:unsynchronized-mutable claimed
               ^:unsynchronized-mutable ^long place]
  ITask
  (outcome [_] outcome)
  (ownReason [_]
    (when (instance? Cancelled outcome)
      (.-reason ^Cancelled outcome)))
  (taskName [_] name)
  (setName [_ n] (set! name n))
  (index [_] index)
  (successor [_] successor)
  (setSuccessor [_ task] (set! successor task))
  (begin [_ starter]
    (set! thread starter)
    (when-not name (set! name (.getName starter))))
  (settleUnder [this o]
    (locking this
      (when-not outcome
        (set! outcome o)
        (let [woken waiters]
          (set! waiters nil)
          (or woken :nobody)))))
  (settle [this o]
    (point/reached :task/settle)
    (let [woken (.settleUnder this o)]
      (wake! woken)
      (some? woken)))
  (enlist [this waiter]
    (locking this
      (when-not outcome
        (set! waiters (with-waiter waiters waiter)))
      (nil? outcome)))
  (withdraw [this waiter]
    (locking this
      (set! waiters (without-waiter waiters waiter))))
  (share [_ l] (set! ledger l))
  (interruptRunner [this]
    (let [^Ledger ledger (.ledger this)]
      (locking ledger
        (when-not told
          (set! told true)
          (.send ledger)))))
  (claim [this]
    (locking this
      (let [free (not claimed)]
        (set! claimed true)
        free)))
  ;; For a thread that goes on after the task: whoever interrupts it for this one has done so.
  ;; It may also have seen, or used up, the interrupt of the place where the thread stood before.
  (finish [this shared outer]
    (.forgetLedger this)
    (locking shared
      (set! told true)
      (when (or (.isCancelled this) (some-> ^Place outer .cancelReason))
        (context/depart! shared outer))))
  (forgetLedger [this]
    (locking this
      (set! ledger nil)))
  ;; A closure that holds what it works on is held by nobody while it runs; a Future is, since a
  ;; cancel of the task is one of it.
  (takeBody [_]
    (let [work body]
      (when-not (instance? Future work) (set! body nil))
      work))
  (end [this]
    (set! body nil)
    (set! thread nil)
    (try
      (when owner (.ended owner this))
      (finally (.release this))))
  ;; The thread first: a ledger that is asked for later must not be of it.
  (release [this]
    (set! context nil)
    (set! owner nil)
    (set! body nil)
    (set! thread nil)
    (.forgetLedger this))
  (cancelWith [this reason interrupt]
    (let [work body]
      (and (.settle this (Cancelled. reason))
           (do (when (instance? Future work) (.cancel ^Future work false))
               (when interrupt (.interruptRunner this))
               ;; Its executor may run it late, or never.
               (when (and (nil? owner) (.claim this)) (.release this))
               true))))

  Child
  (place [_] place)
  (setPlace [_ i] (set! place i) nil)
  (cancelFor [this reason] (.cancelWith this reason true))

  Place
  (scope [_]
    (when-some [^Context c context] (.-scope c)))
  (task [this] this)
  (cancelledTask [this] this)
  (cancelReason [this]
    (or (.ownReason this)
        (some-> ^Owned (.scope this) .cancelReason)))
  (outer [_])
  (isOver [_] false)
  ;; Made when it is asked for: most tasks neither are cancelled nor have a form in them.
  (ledger [this]
    (locking this
      (or ledger (set! ledger (ledger/ledger thread)))))
  (tell [this]
    (when (.ownReason this) (set! told true)))

  Runnable
  (run [this]
    (when (.claim this)
      (when-not thread (.begin this (Thread/currentThread)))
      (try
        (perform! this context owner (.takeBody this))
        (finally
          (when-not outcome (.settle this lost))
          (.end this)))))

  Future
  (isDone [_] (some? outcome))
  (isCancelled [_] (instance? Cancelled outcome))
  (cancel [this interrupt] (.cancelWith this :future-cancel interrupt))
  (get [this]
    (ended-by? this nil)
    (future-value this))
  (get [this n unit]
    (when-not (ended-by? this (deadline/in-nanos (.toNanos unit n)))
      (throw (TimeoutException.)))
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

(def ^:private ^AtomicLong made (AtomicLong.))

(defn unique-name
  "Returns kind-n, with an n that no other name in this process has."
  ^String [^String kind]
  (.concat (.concat kind "-") (Long/toString (.incrementAndGet made))))

(defn task
  "Returns a task that has not begun: the body that the context's wrap makes of f, to be run for the
  owner (nil: nobody). Its name will be that of its thread."
  ^Task [context owner ^long index f]
  (Task. context owner index (context/wrapped context f) nil nil nil false nil nil nil false -1))

(defn named
  "Returns the task with a name of its own, for a thread that is not."
  ^Task [^Task task name]
  (.setName task name)
  task)

(defn latch
  "Returns a task that nobody runs: it ends when somebody settles it."
  ^Task [name]
  (named (Task. nil nil 0 nil nil nil nil false nil nil nil false -1) name))

(defn start!
  "Starts the task on its thread, a fresh one that runs it. Returns the task."
  [^Task task ^Thread thread]
  (.begin task thread)
  (.start thread)
  task)

(defn thread!
  "Starts a virtual thread of that name which runs f in the context, and returns the thread.
  A failure goes to the thread's uncaught exception handler."
  ^Thread [context name f]
  (let [body (context/wrapped context f)]
    (doto (jdk/virtual-thread name (fn [] (context/enter! context nil) (body)))
      .start)))

(deftype EndCallback [on-end]
  Owner
  (failed [_ _ _])
  (ended [_ task] (on-end task)))

(defn future!
  "Starts a detached task: f on a virtual thread of that name. on-end: called with the task when it
  has ended, on its thread; or nil. Returns the task."
  [context name on-end f]
  (let [task (task context (when on-end (EndCallback. on-end)) 0 f)]
    (start! task (jdk/virtual-thread name task))))

;; How a task prints

(defn- shown [^ITask task]
  (let [outcome (.outcome task)]
    (condp instance? outcome
      Done {:status :done, :val (.-value ^Done outcome)}
      Failed {:status :failed, :val (.-throwable ^Failed outcome)}
      Cancelled {:status :cancelled, :reason (.-reason ^Cancelled outcome)}
      {:status :running})))

(defmethod print-method Task [^Task task ^java.io.Writer w]
  (.write w "#<task ")
  (.write w (str (.taskName task) " "))
  (print-method (shown task) w)
  (.write w ">"))
