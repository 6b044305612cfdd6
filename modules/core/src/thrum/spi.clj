(ns thrum.spi
  "What Thrum's other modules build on, beside thrum.core: errors, threads, waits, deadlines, scopes
  and tasks. For authors of libraries; applications need thrum.core alone. See also
  thrum.spi.options, for arguments, and thrum.spi.fan-out."
  (:require
   [thrum.impl.adaptive]
   [thrum.impl.attachment :as attachment]
   [thrum.impl.context :as context]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.group :as group]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.on-cancel :as on-cancel]
   [thrum.impl.place :as place]
   [thrum.impl.registry :as registry]
   [thrum.impl.scope :as scope]
   [thrum.impl.show :as show]
   [thrum.impl.task :as task]
   [thrum.impl.turn :as turn]
   [thrum.impl.wait :as wait])
  (:import
   (java.util.concurrent ThreadFactory)
   (thrum.impl.adaptive AdaptiveLimiter)
   (thrum.impl.attachment Attachment)
   (thrum.impl.limit Limiter)
   (thrum.impl.scope Scope)
   (thrum.impl.task Done Failed Task)))

(set! *warn-on-reflection* true)

;; Errors

(defn text
  "Returns a user's value as text for a message, a few hundred characters at most. Calls none of the
  user's code: a seq, or an object that only its own toString could print, is named by its class."
  ^String [x]
  (show/text x))

(defn pretty-as-printed!
  "Has clojure.pprint, where it is loaded, print what is of the class, a future, as pr does: its own
  way throws what the future failed with."
  [class]
  (show/pretty-as-printed! class))

(defn datum
  "Returns what stands for a user's value in ex-data: the value itself where it is small, else its
  text."
  [x]
  (show/datum x))

(defn invalid
  "Returns the exception for misuse: data with {:type :thrum/invalid}. The message says what was
  given and what is accepted. A :value or :option in the data is kept small, see datum."
  [message data]
  (error/invalid message data))

(defn cancelled
  "Returns the CancellationException for work of that name. Its ex-data is {:type :thrum/cancelled,
  :task work-name, :reason reason}."
  [work-name reason]
  (error/cancelled work-name reason))

(defn type-of
  "Returns the :type in the throwable's ex-data where that is a keyword, or nil. Never throws."
  [t]
  (error/type-of t))

(defn casualty?
  "True if the throwable, thrown after a cancel, is only its consequence: there is an interruption
  in its cause chain, or an InterruptedIOException that is no SocketTimeoutException."
  [t]
  (error/casualty? t))

(defn uncaught!
  "Hands the throwable to the uncaught exception handler of the calling thread. Never throws."
  [t]
  (jdk/uncaught! t))

(def ^:private again-ns "A minute." 60000000000)

(defn reporter
  "Returns a function of a throwable, for what fails again and again: it hands it to uncaught!, but
  not where the last one that it handed on had the same class, and that was less than a minute ago.
  For one thread at a time. It never throws, and takes no memory."
  []
  (let [reported (object-array 1), at-ns (long-array 1)]
    (fn [t]
      (let [now (System/nanoTime)]
        (when-not (and (identical? (class t) (aget reported 0))
                       (< (- now (aget at-ns 0)) (long again-ns)))
          (aset reported 0 (class t))
          (aset at-ns 0 now)
          (uncaught! t))))))

;; Threads

(defn unique-name
  "Returns kind-n, with an n that no other name in this process has."
  ^String [kind]
  (task/unique-name kind))

(defn virtual-thread
  "Returns an unstarted virtual thread of that name."
  ^Thread [thread-name ^Runnable f]
  (jdk/virtual-thread thread-name f))

(defn clean-thread
  "Returns an unstarted virtual thread of that name that inherits nothing from its creator: no
  InheritableThreadLocal, and the system's class loader as its context class loader."
  ^Thread [thread-name ^Runnable f]
  (jdk/clean-thread thread-name f))

(defn clean-threads
  "Returns a factory of threads as clean-thread makes them, all of that name."
  ^ThreadFactory [thread-name]
  (jdk/clean-threads thread-name))

(defn platform-thread
  "Returns an unstarted daemon platform thread of that name."
  ^Thread [thread-name ^Runnable f]
  (jdk/platform-thread thread-name f))

(defn give-way!
  "Where the JDK has one carrier, lets virtual threads that wait for a turn have it before the
  calling one: it may park for some ms. For the beginning of a thread that is one of many, and of
  each thing that a thread does: without it, threads that start or wake each other may keep the
  carrier for as long as there is work (decision 60). Is over at once where the thread is
  interrupted, and leaves it so; does nothing on a platform thread. Throws nothing. It may use up a
  LockSupport/unpark, as a lock may. Not for a thread that may hold a lock: one that waits for that
  lock may keep the carrier for ever; nor for one that is pinned, in a class initialiser say: it may
  keep the carrier itself."
  []
  (turn/give-way!))

(defn monitors-pin?
  "True if a virtual thread that blocks inside synchronized keeps its carrier, as before JDK 24 (JEP
  491)."
  []
  (jdk/monitors-pin?))

(defn spare-descriptors
  "Returns how many more descriptors this process may open, less a reserve of a tenth and at least
  16; from 1 to most, and most where the operating system gives no bound."
  ^long [^long most]
  (jdk/spare-descriptors most))

;; Deadlines: a deadline is a long, a value of System/nanoTime

(defn deadline-in
  "Returns the deadline so many ms, an integer, from now; negative ms count as 0."
  ^long [ms]
  (deadline/in-ms ms))

(defn passed?
  "True if the deadline has come."
  [^long deadline]
  (deadline/passed? deadline))

(defn arm!
  "Has f, a function of no arguments, called once at the deadline, or at once where it has passed,
  on a platform thread of its own: f may block. Returns an alarm for disarm!."
  [^long deadline f]
  (deadline/arm! deadline f))

(defn disarm!
  "Takes back an alarm that has not gone off. A call of its function that has begun goes on, and is
  not waited for."
  [alarm]
  (deadline/disarm! alarm))

(defn wait-until
  "Parks the calling thread until (ready?) is true, and returns true; returns false when the
  deadline (nil: none) comes first. The thread that makes it ready unparks this one. blocker: for
  thread dumps, see LockSupport/park. Throws CancellationException and InterruptedException."
  [blocker deadline ready?]
  (wait/until blocker deadline ready?))

;; Interrupts and cancels

(defn check-cancelled!
  "Throws CancellationException when the calling thread's work is cancelled; where its scope has
  ended and cancels it, waits until it has. For what such an end may have closed before. Throws
  InterruptedException where that wait is interrupted."
  []
  (wait/check-cancelled!))

(defn begin-on-cancel!
  "Begins what thrum.core/on-cancel does around a body, for libraries that are called before and
  after it, on the same thread. Returns a token for end-on-cancel!, which must be called: nil where
  the thread works for nothing that could be cancelled. f: not checked. Throws
  CancellationException, and there is nothing to end then."
  [f]
  (on-cancel/begin! f))

(defn end-on-cancel!
  "Ends it. error: what the body threw; nil where it returned. Waits for f, if it was called.
  Returns what to throw in place of error, or nil: see thrum.core/on-cancel. Pairs end in the
  reverse order of their beginnings."
  [token error]
  (on-cancel/end! token error))

(defn interrupts-sent
  "Returns how many interrupts cancels have sent to the calling thread: for take-back-interrupt!,
  before a call that a library may interrupt."
  []
  (wait/interrupts-sent))

(defn take-back-interrupt!
  "Drops an interrupt that a library has sent the calling thread, to end a call that has ended;
  sent: what interrupts-sent returned before that call. The interrupt of a cancel that has come
  since stays: the call has not used it up."
  [sent]
  (wait/take-back! sent))

(defn undisturbed
  "Returns the value of f, during which no cancel interrupts the calling thread; it goes on where
  its work is cancelled. The thread is interrupted again afterwards if it was before or meanwhile."
  [f]
  (wait/undisturbed f))

;; Scopes

(defn call-in-scope
  "Calls f with a new scope on the calling thread, and returns its value when every fork has ended:
  as with-scope, with other options, which are not checked. :name - of its threads, required;
  :deadline - or nil; :on-deadline - a function of no arguments that is called at the deadline, in
  place of a cancel of the scope, unless a scope around it has an earlier one; :wrap - or nil, see
  thrum.core/*wrap*, which is not read; :unregistered? - true for one that
  thrum.spi.watch/registered need not know, since what it belongs to shows it. Throws as with-scope
  does; CancellationException, without a call of f, where the calling thread's work is cancelled;
  :thrum/timeout, also without a call of f or :on-deadline, where the deadline has passed already."
  [options f]
  (scope/call options f))

(defn lift-deadline!
  "Takes the scope's deadline away for what begins in the scope from now on, which inherits none.
  What happens at the deadline still happens: :on-deadline is called, or the scope is cancelled; so
  is a scope around it."
  [scope]
  (scope/lift-deadline! scope))

(defn cancel-reason
  "Returns why the scope is cancelled, or nil."
  [scope]
  (scope/cancel-reason scope))

(defn works-for?
  "True if the calling thread works for the scope: it runs the body, a task of the scope, or one of
  what began inside of them. The scope does not end before that. A task of thrum.core/future belongs
  to no scope."
  [^Scope scope]
  (group/within? (place/current-group) (.-group scope)))

(defn attach!
  "Makes something that is not a task a child of the calling thread's scope: the end or a cancel of
  the scope calls (cancel!), once or more and on any thread: before it cancels what else the scope
  has, so that (cancel!) must not wait for that. The end, not the cancel, waits for detach!. What
  (cancel!) throws goes to the uncaught exception handler of the thread that called it. Returns the
  attachment, or nil where there is no scope. Throws :thrum/closed."
  [cancel!]
  (some-> (place/current-group) (attachment/attach! cancel!)))

(defn detach!
  "Ends an attachment, on any thread. To be called when the child has ended: the end of the scope
  waits for it. nil, or an attachment that has ended, has no effect."
  [attachment]
  (some-> attachment attachment/detach!))

(defn scope-ended?
  "True if the attachment's scope has ended, or one around it and inside of the nearest shield."
  [^Attachment attachment]
  (some? (group/end-reason (.-group attachment))))

;; Tasks

(defn- with-outcome [on-end]
  (when on-end #(on-end (task/outcome-data %))))

(defn start!
  "Starts f on a fresh virtual thread, as thrum.core/future does, and returns the task. :name - the
  thread's, required; :wrap - or nil, see thrum.core/*wrap*, which is not read; :on-end - or nil,
  called with the outcome, {:value v}, {:error throwable} or {:cancelled reason}, on the task's
  thread and as the last thing there. Throws :thrum/invalid for a wrap that is, or returns, no
  function."
  [{:keys [name wrap on-end]} f]
  (task/future! (context/capture wrap nil) name (with-outcome on-end) f))

(defn start-in-scope!
  "As start!, without :wrap, for a task that belongs to the calling thread's scope, if there is one.
  A failure cancels nothing. :name - of its threads, followed by a number; :on-failed - or nil,
  called before :on-end with what f threw, unless a cancel caused it: also where a cancel came first
  and is the outcome. Throws :thrum/closed where that scope has ended or is cancelled."
  [{:keys [name on-failed on-end]} f]
  (attachment/start-alone! (task/unique-name name)
    {:on-failed on-failed, :on-end (with-outcome on-end)}
    f))

(defn fork!
  "Starts f as a task of the scope, as thrum.core/fork-call does, but checks neither f nor the
  options, and returns the task. :name, :daemon? - its options; :on-end - as for start!, called also
  where the task was cancelled before f began. Throws :thrum/invalid for what is no scope, and on a
  thread that does not work for the scope; :thrum/closed where it has ended or is cancelled."
  [scope options f]
  (scope/fork! (scope/checked scope) (update options :on-end with-outcome) f))

(defn wrapped
  "Returns the thunk that wrap (nil: none) makes of the thunk. Throws :thrum/invalid unless both
  wrap and what it returns are functions."
  [wrap thunk]
  (context/wrapped (context/capture wrap nil) thunk))

(defn wrapped-once
  "As wrapped, for a thunk that is called once: a second call throws :thrum/invalid."
  [wrap thunk]
  (context/wrapped-once (context/capture wrap nil) thunk))

(defn with-scoped-values
  "Returns the wrap (nil: none) together with a binding of the java.lang.ScopedValues, as they are
  bound here, around what it makes. Throws :thrum/invalid before JDK 25."
  [wrap scoped-values]
  (jdk/with-scoped wrap scoped-values))

(defn limiter?
  "True if x is a limiter, as thrum.core/limiter returns it."
  [x]
  (or (instance? Limiter x) (instance? AdaptiveLimiter x)))

(defn latch
  "Returns a future that nothing computes; settle! ends it."
  [future-name]
  (task/latch future-name))

(defn settle!
  "Ends a latch with an outcome, {:value v} or {:error throwable}. Returns false if it had ended
  already."
  [^Task latch {:keys [value error]}]
  (.settle latch (if error (Failed. error) (Done. value))))

;; What can be shown

(defn register!
  "Makes a long-lived thing (a pool, a server, an item of a cluster) visible to thrum.watch as one
  of that kind, a keyword, until unregister!, or until it is collected: it is held weakly. (describe
  thing) - called by readers on any thread at any time, so it must not block; returns a map of plain
  data: :name, :state, and facts under names of their own; :children, things that thrum.spi.watch/
  facts knows. Returns what unregister! takes. Costs a microsecond."
  [kind thing describe]
  (registry/register! kind thing describe))

(defn unregister!
  "Takes a registration back."
  [registration]
  (registry/unregister! registration))
