(ns thrum.core
  "Plain blocking code on virtual threads, under the names of clojure.core. Use it as
  (require '[thrum.core :as t])."
  (:refer-clojure :exclude [for future future-call map pcalls pmap pvalues])
  (:require
   [thrum.impl.abandon :as abandon]
   [thrum.impl.adaptive :as adaptive]
   [thrum.impl.bridge :as bridge]
   [thrum.impl.completed :as completed]
   [thrum.impl.context :as context]
   [thrum.impl.data]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.executor :as executor]
   [thrum.impl.foreign-executor :as foreign-executor]
   [thrum.impl.group :as group]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.joiner :as joiner]
   [thrum.impl.limit :as limit]
   [thrum.impl.map-family :as map-family]
   [thrum.impl.on-cancel :as on-cancel]
   [thrum.impl.options :as options]
   [thrum.impl.periodic :as periodic]
   [thrum.impl.permits :as permits]
   [thrum.impl.place :as place]
   [thrum.impl.rate :as rate]
   [thrum.impl.retry :as retry]
   [thrum.impl.retry-after :as retry-after]
   [thrum.impl.scope :as scope]
   [thrum.impl.supervise :as supervise]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (java.lang AutoCloseable)
   (java.util.concurrent CompletionStage)
   (thrum.impl.scope Scope)
   (thrum.impl.task Task)))

(set! *warn-on-reflection* true)

(def ^:dynamic *wrap*
  "A function from thunk to thunk, called on the starting thread for every task: the place for
  logging contexts, OpenTelemetry and the like. The task runs the thunk that it returns. The
  returned thunk may call the given one only once, since that drops its item when it starts: a
  second call throws :thrum/invalid. nil, the default, wraps nothing. Anything else that is not a
  function, and a wrap that does not return a function, is :thrum/invalid where a task is to start."
  nil)

;; Tasks

(defn- checked-task ^Task [x]
  (options/instance Task "a task, as thrum.core's future and fork return it" x))

(defn ^:no-doc thread-call ^Thread [f]
  (task/thread! (context/capture *wrap* nil) (task/unique-name "thread") f))

(defmacro thread
  "Starts a virtual thread that runs the body, detached from any scope, in the caller's dynamic
  bindings. Returns the java.lang.Thread. A throwable goes to the thread's uncaught exception
  handler."
  [& body]
  `(thread-call (^{:once true} fn* [] ~@(options/without-options "thread" :future-call body))))

(defn future-call
  "Starts a task, f on a fresh virtual thread, detached from any scope, in the caller's dynamic
  bindings. Returns the task, a full Clojure future: deref throws ExecutionException with the cause,
  or CancellationException; future-cancel interrupts the body. Throws :thrum/invalid.

  Options:
    :name - the name of the task and of its thread, followed by a number (a string that is not
      blank)
    :wrap - called on the starting thread with the body's thunk; returns the thunk that the
      task runs (a function from thunk to thunk, or nil; default *wrap*)"
  ([f] (future-call {} f))
  ([options f]
   (let [defaults {:name "future", :wrap *wrap*}
         {:keys [name wrap]} (options/with-defaults defaults :future-call options)]
     (task/future! (context/capture wrap nil)
                   (task/unique-name name)
                   nil
                   (options/function "by future-call" f)))))

(defmacro future
  "Starts a task that runs the body on a fresh virtual thread; see future-call, which takes options
  too."
  [& body]
  `(future-call (^{:once true} fn* [] ~@(options/without-options "future" :future-call body))))

(defn ^:no-doc with-executor-call
  [options f]
  (let [defaults {:on-exit :join, :name "executor", :wrap (fn [] *wrap*)}]
    (executor/call-with (options/with-defaults defaults :with-executor options) f)))

(defmacro with-executor
  "Runs the body with an ExecutorService bound to the symbol, and returns the body's value when all
  tasks have ended. The executor runs every task on a virtual thread of its own.

      (with-executor [exe] (future-via [exe] ...))
      (with-executor [exe {:on-exit :cancel}] ...)

  If the body throws or is interrupted, the tasks are cancelled and joined, then the throwable is
  rethrown. Work that ignores its interrupt delays the return. When the body has ended, the executor
  refuses work with RejectedExecutionException, also from its own tasks.

  Options:
    :on-exit - whether the tasks that still run when the body has ended are joined, or
      cancelled and joined (:join or :cancel; default :join)
    :name - the name of the threads, followed by a number for the call and one for the task (a
      string that is not blank)"
  [binding & body]
  (let [[executor options] (options/binding-form "with-executor" binding 2)]
    `(with-executor-call ~(or options {})
                         (^{:once true} fn*
                           [~(vary-meta executor assoc :tag `java.util.concurrent.ExecutorService)]
                           ~@body))))

(defn ^:no-doc future-via-call [executor f]
  (foreign-executor/submit! executor (context/capture *wrap* nil) "future-via" f))

(defmacro future-via
  "Starts a task that runs the body on the executor, any java.util.concurrent.Executor. Returns the
  task, as future does.

      (future-via [executor] body...)

  On an executor that is not with-executor's, the task restores the worker's binding frame and
  leaves no interrupt of its own behind. Whether it ever runs is up to that executor: if a pool
  drops it, deref of the task waits for ever. Throws :thrum/invalid, and RejectedExecutionException
  where the executor does."
  [binding & body]
  (let [[executor] (options/binding-form "future-via" binding 1)]
    `(future-via-call ~executor (^{:once true} fn* [] ~@body))))

(defn value
  "Returns the value of a task when it has ended; with ms, the fallback if it has not ended within
  so many ms, for 0 and below at once. Throws what the task threw, the same instance, where deref
  wraps it in ExecutionException:

      (try (value task) (catch java.sql.SQLException e ...))

  Throws CancellationException if the task, or the caller's work, was cancelled;
  InterruptedException; :thrum/deadlock for a task that waits for itself; :thrum/invalid for what is
  no task."
  ([task] (task/awaited (checked-task task)))
  ([task ms fallback]
   (options/ms "value takes after the task" (if (neg-int? ms) 0 ms))
   (task/awaited (checked-task task) ms fallback)))

(defn error-type
  "Returns the :type in the throwable's ex-data, or nil; for the ExecutionException or
  CompletionException of a future, that of its cause. Every throwable of Thrum's own has one, of
  any class: a CancellationException :thrum/cancelled for instance. Never throws."
  [throwable]
  (error/any-type (error/beneath throwable)))

(defn ->completable-future
  "Returns a java.util.concurrent.CompletableFuture that ends as the task does: with its value, what
  it threw, or its CancellationException. A cancel of the future cancels the task. Dependents
  that are added before it ends run on a virtual thread that belongs to no scope, later ones on the
  thread that adds them, as the JDK has it. Throws :thrum/invalid for what is no task."
  [task]
  (bridge/->completable-future (checked-task task)))

(defn ->task
  "Returns a task, detached and without a thread, that ends as the CompletionStage does, a
  CompletableFuture for instance. A cancel of the task cancels the stage, where that is a
  CompletableFuture; a minimalCompletionStage cannot be cancelled. A CompletionException is
  unwrapped. Throws :thrum/invalid for what is no CompletionStage."
  [stage]
  (bridge/->task (options/instance CompletionStage
                                   "a java.util.concurrent.CompletionStage"
                                   stage)))

;; The map family

(defn- in-context
  "Returns the options with what each task runs in, taken here and now."
  [{:keys [scoped-values] :as options}]
  (assoc options :wrap (jdk/with-scoped (:wrap options *wrap*) scoped-values)))

(def ^:private all-at-once
  {:limit 100000, :window 100000})

(defn- fan-out-options
  ([order name limit-or-options] (fan-out-options :pmap order name limit-or-options))
  ([form order name limit-or-options]
   (conj {:order order, :name name}
     (options/fan-out limit-or-options (options/keys-of form)))))

(defn- eager-options [name limit-or-options]
  (in-context (conj {:name name}
                (options/fan-out limit-or-options (options/keys-of :pmapv)))))

(defn- results [options f colls]
  (map-family/results (in-context options) (options/mapped f) (options/collections colls)))

(defn- transducer [options f]
  (map-family/transducer #(in-context options) (options/mapped f)))

(defn pmap
  "Returns a lazy seq of f of the items, in the order of the input, computed by at most `limit`
  tasks at once. Without a collection it returns a transducer.

  The consumer is the thread that realises the seq. It starts the tasks, also while it waits: then
  `limit` of them run. No item waits for a chunk, or, as far as the window reaches, for a slow item
  before it. Between takes nothing starts. Only the consumer touches the source, one item at a time
  beyond the source's own chunks. Where the source has chunks, a consumer that is back within 50 us
  takes several ready elements at once, as a chunk of at most limit / 2 and 256. A take that need
  not wait starts at most as many tasks as its chunk could have elements, otherwise one, and only
  for items that are at hand.

  limit: a positive integer, or a map of options:
    :limit - how many tasks may run at once; required (a positive integer)
    :window - how many items may have been started and not yet been consumed; that many
      results are held in memory (an integer, not below limit x batch; default 8 x limit x
      batch, at least 2048)
    :batch - how many items share a task, which calls f on one after the other; limit and
      window still count calls and items (a positive integer; default 1)
    :item-timeout-ms - how many ms one call of f may take, as with-timeout around it; a late
      one fails with :thrum/timeout (an integer, not negative; default no bound)
    :name - the name of the threads, followed by a number for the call and one for the task (a
      string that is not blank)
    :wrap - called on the starting thread with the body's thunk; returns the thunk that the
      task runs (a function from thunk to thunk, or nil; default *wrap*)
    :scoped-values - bound in each task to what they are bound to at the call (a sequential
      collection of java.lang.ScopedValues, on JDK 25 or newer; default none)

  If f fails, its element throws the original throwable, after the elements before it. The tasks
  after it are cancelled at once, and have ended when it throws. Other failures are suppressed on
  it, with an ex-info {:type :thrum/context, :task name, :index i, :dropped n}. An interrupt of the
  consumer cancels and joins the tasks and is thrown as InterruptedException. After the end of the
  scope in which pmap was called, realising further throws :thrum/closed. An abandoned seq starts
  nothing more; running tasks end by themselves. Wrong arguments throw :thrum/invalid at the call.

  With :batch n, each n items of the input have one task, the last ones fewer. It calls f on one
  after the other on one thread, whose ThreadLocals they share; :wrap is called once for all. A
  batch starts when it is full, or the source ends. At most `limit` batches run, so as many calls of
  f; started never exceeds consumed + window items, and while no consumer waits, consumed + limit x
  n - 1. The results of a batch are ready when all of it has ended. A failure ends its batch, as a
  cancel or deadline does: what follows in it is not called; pmap still delivers what precedes it.
  For items that take microseconds.

  The transducer takes the context of the thread that starts the process. Results leave on the next
  input or at completion. When a downstream step returns reduced or throws, or f fails, the running
  tasks are cancelled and joined. A process that goes on after a failure gets it again at each step.
  One that just stops, by a throwing source or an abandoned sequence, leaves at most `limit` calls
  to run out."
  ([limit f]
   (transducer (fan-out-options :ordered "pmap" limit) f))
  ([limit f coll & colls]
   (results (fan-out-options :ordered "pmap" limit) f (cons coll colls))))

(defn upmap
  "As pmap, in the order of completion. After a failure it delivers the results that were ready
  before, then throws the failure."
  ([limit f]
   (transducer (fan-out-options :as-completed "upmap" limit) f))
  ([limit f coll & colls]
   (results (fan-out-options :as-completed "upmap" limit) f (cons coll colls))))

(defn pmap-tasks
  "As pmap without :batch, but the elements are the tasks themselves, in the order of the input, at
  most limit of them running. Realising an element starts up to limit - 1 tasks after it. The next
  item is realised before there is room for its task: the seq ends when the last task has started. A
  failed task cancels nothing: each task's outcome is the caller's to handle. A source that throws
  cancels running tasks, also ones you already hold, and so does the transducer where its process
  stops early."
  ([limit f]
   (transducer (fan-out-options :pmap-tasks :as-started "pmap-tasks" limit) f))
  ([limit f coll & colls]
   (results (fan-out-options :pmap-tasks :as-started "pmap-tasks" limit) f (cons coll colls))))

(def ^{:arglists '([limit f] [limit f coll & colls]), :deprecated "0.1.0"} fmap
  "The old name of pmap-tasks, for those who come from Virtuoso. It will be gone in 1.0."
  pmap-tasks)

(defn map
  "Returns a lazy seq of f of the items, in the order of the input, all at once: pmap with a limit
  and window of 100 000. The first element arrives when it is ready. There is no transducer without
  a limit. Network and file work needs a limit, see fd-limit."
  ([f] (throw (options/no-limit f)))
  ([f coll & colls]
   (results (fan-out-options :ordered "map" all-at-once)
            (options/function "first, as in (map f coll)" f)
            (cons coll colls))))

(defn pmapv
  "Returns a vector of f of the items, in the order of the input, computed by at most limit tasks at
  once. The first failure in time cancels and joins the other tasks and is thrown. When pmapv
  returns or throws, none of its tasks runs. limit as in pmap, without :window. A single collection
  may be anything that can be reduced."
  [limit f coll & colls]
  (map-family/vector-of-results (eager-options "pmapv" limit)
                                (options/mapped f)
                                (options/reducibles (cons coll colls))))

(defn prun!
  "Calls f on every item for its effects, at most limit at once; returns nil. Otherwise as pmapv. A
  reduced result does not stop it."
  [limit f coll]
  (map-family/run! (eager-options "prun" limit)
                   (options/mapped f)
                   (first (options/reducibles [coll]))))

(defn ^:no-doc one-at-a-time
  "Returns the items of coll as a lazy seq without chunks."
  [coll]
  (lazy-seq
    (when-some [items (seq coll)]
      (cons (first items) (one-at-a-time (rest items))))))

(defn- unchunked-bindings [bindings]
  (into []
        (mapcat (fn [[left right]] [left (if (keyword? left) right `(one-at-a-time ~right))]))
        (partition 2 bindings)))

(defn- thunks
  "Returns the form of a lazy seq of the bodies of a comprehension, one at a time."
  [bindings body]
  `(clojure.core/for ~(unchunked-bindings bindings) (^{:once true} fn* [] ~body)))

(defn ^:no-doc for-call [thunks]
  (map-family/of-thunks (in-context (fan-out-options :ordered "for" all-at-once)) thunks))

(defn ^:no-doc pfor-call [limit thunks]
  (map-family/of-thunks (in-context (fan-out-options :ordered "pfor" limit)) thunks))

(defmacro for
  "As clojure.core/for, with a task for every body, all at once as in map. Bindings, :when, :while
  and :let run on the consumer, one item at a time.

      (for [id ids, :when (pos? id)] (fetch id))"
  [bindings body]
  `(for-call ~(thunks (options/pairs "for" bindings) body)))

(defmacro pfor
  "As for, with at most limit bodies at once; limit as in pmap.

      (pfor 8 [id ids, :when (pos? id)] (fetch id))"
  [limit bindings body]
  `(pfor-call ~limit ~(thunks (options/pairs "pfor" bindings) body)))

(defn pcalls
  "Calls the functions without arguments all at once, each in a task. Blocks until all have ended,
  then returns their values as a lazy seq in the order of the functions. Where one failed, its
  element throws the original throwable. A failure cancels nothing. Throws CancellationException,
  InterruptedException, and :thrum/invalid for what is not a function."
  [& fs]
  (joiner/calls (in-context {:name "pcalls"}) (mapv #(options/function "by pcalls" %) fs)))

(defmacro pvalues
  "Evaluates the forms all at once, as pcalls."
  [& forms]
  `(pcalls ~@(clojure.core/for [form forms] `(^{:once true} fn* [] ~form))))

;; Scopes

(defn- timed
  "Returns the options with the :deadline that its :timeout-ms gives from now on."
  [options]
  (if-some [timeout-ms (:timeout-ms options)]
    (assoc options :deadline (deadline/in-ms timeout-ms))
    options))

(defn ^:no-doc with-scope-call
  [options f]
  (scope/call (timed (options/with-defaults {:name "scope", :wrap *wrap*} :with-scope options)) f))

(defmacro with-scope
  "Runs the body on the calling thread, with a scope bound to the symbol, and returns the body's
  value when every fork of the scope has ended.

      (with-scope [s] (let [u (fork s (user id)) c (fork s (cart id))] [@u @c]))
      (with-scope [s {:name \"checkout\" :timeout-ms 2000}] ...)

  A fork that fails cancels the other forks and interrupts the body. A body that throws or is
  interrupted cancels the forks. When all have ended, the first failure in time is thrown, the
  original throwable, with the others suppressed. Throwables that only the cancel caused are
  dropped.

  With :on-error :keep the scope supervises: the failure of a fork stays with its task, for value,
  deref and completions. A failure of the body is thrown, also one that it got by value of a fork.

  Where a cancel stops the body, CancellationException is thrown; where its :timeout-ms do,
  :thrum/timeout. Work that ignores its interrupt delays the return. An interrupt that the scope has
  sent does not outlive the scope. Wrong options throw :thrum/invalid.

  Options:
    :name - the name of the threads, followed by a number for the call and one for the task (a
      string that is not blank)
    :timeout-ms - how many ms the body and its forks may take, as with-timeout around them (an
      integer, not negative)
    :on-error - what a failed fork does: it cancels the others, or they run on, and the first
      failure is thrown in either case; :keep, they run on, and none of their failures is thrown
      (:cancel, :collect or :keep; default :cancel)
    :wrap - called on the starting thread with the body's thunk; returns the thunk that the
      task runs (a function from thunk to thunk, or nil; default *wrap*)
    :scoped-values - bound in each task to what they are bound to at the fork (a sequential
      collection of java.lang.ScopedValues, on JDK 25 or newer; default none)"
  [binding & body]
  (let [[scope options] (options/binding-form "with-scope" binding 2)]
    `(with-scope-call ~(or options {}) (^{:once true} fn* [~scope] ~@body))))

(defn fork-call
  "Starts f as a task of the scope, with the options of fork; see there."
  ([scope f] (scope/fork! (scope/checked scope) nil (options/function "by fork-call" f)))
  ([scope options f]
   (let [scope (scope/checked scope)
         options (options/checked :fork options)]
     (scope/fork! scope options (options/function "by fork-call" f)))))

(defmacro fork
  "Starts a task of the scope that runs the body, and returns it. Options are a map, or a symbol
  that stands for one, before the body; see fork-call, which takes any expression.

      (fork s (user id))
      (fork s {:name \"poll\" :daemon? true} (poll))

  The task is as future's, but belongs to the scope and has the deadline of its caller. Only the
  scope's body and its tasks may fork into it: another thread gets :thrum/invalid, and when the
  scope has ended or is cancelled every thread :thrum/closed.

  Options:
    :name - the name of the task, behind its scope's and followed by a number, as in
      checkout-7/poll-0 (a string that is not blank)
    :daemon? - whether the scope does not wait for this task, but cancels it when all else has
      ended (true or false; default false)"
  [scope & body]
  (let [[options body] (options/leading body)]
    `(fork-call ~scope ~options (^{:once true} fn* [] ~@body))))

(defn join!
  "Waits until the forks of the scope that run now have ended, without its daemons; for the thread
  of the scope's body. Returns nil. Throws CancellationException where the scope is cancelled, by a
  failed fork for instance, InterruptedException, :thrum/closed, and :thrum/invalid on another
  thread: a fork would wait for itself."
  [scope]
  (supervise/join! (scope/checked scope)))

(defn completions
  "Returns the forks of a scope with :on-error :keep as a lazy seq of tasks, in the order in which
  they end, without daemons. Realising an element waits for the next to end; the seq ends when every
  fork has ended. Each task is handed out once: a later call goes on with those that are left.

      (with-scope [s {:on-error :keep}]
        (run! #(fork s (fetch %)) urls)
        (doseq [task (completions s)] ...))

  For the thread of the scope's body. A scope holds up to 10 000 tasks that have ended while no
  thread has asked for them, and all of them from the first call on: with more forks, call it before
  them. Throws as join! does; :thrum/invalid for another scope, and where more tasks had ended
  before."
  [scope]
  (supervise/completions (scope/checked scope)))

(defn as-completed
  "Returns the tasks, of any scope or none, as a lazy seq in the order in which their outcomes are
  known. Realising an element waits for the next. Where that wait throws, by a cancel or an
  interrupt, it can be repeated; what ended meanwhile then comes in any order. A seq that is not
  realised to its end is held by those of the tasks that run. Throws :thrum/invalid for what is no
  collection, or no task."
  [tasks]
  (completed/as-completed (mapv checked-task (options/collection "tasks" tasks))))

(defn use!
  "Has x closed when the scope ends, by (close x), or without close by java.lang.AutoCloseable's.
  Returns x. Closing begins after the forks have ended, last in, first out, and no cancel disturbs
  it. A failed close is suppressed on the scope's failure, or else thrown. After the scope's end, or
  from a thread that does not work for the scope, x is closed at once and :thrum/closed or
  :thrum/invalid thrown."
  ([scope x]
   (use! scope
         (options/instance AutoCloseable "a java.lang.AutoCloseable, or a function that closes" x)
         AutoCloseable/.close))
  ([scope x close] (scope/use! (scope/checked scope) x (options/function "by use!" close))))

(defn- joined
  "Calls (join options fs) with the checked options of the form, inside their :timeout-ms if there
  is one. late: a thunk, called where that time was over before anything began, or nil."
  ([form join options fs] (joined form join options fs nil))
  ([form join options fs late]
   (let [options (in-context (options/with-defaults {:name (name form)} form options))]
     (if (:timeout-ms options)
       (scope/call (assoc (timed options) :fallback late) (fn [_] (join options fs)))
       (join options fs)))))

(defn all-call
  "As all, of a collection of functions without arguments; [] for none. Throws :thrum/invalid for
  what is not a function. Options as in all."
  ([fs] (all-call {} fs))
  ([options fs] (joined :all joiner/all options (options/functions "all" fs :or-none))))

(defn race-call
  "As race, of a collection of functions without arguments, at least one. Throws :thrum/invalid for
  none, and for what is not a function. Options as in all."
  ([fs] (race-call {} fs))
  ([options fs] (joined :race joiner/race options (options/functions "race" fs))))

(defn any-call
  "As any, of a collection of functions without arguments, at least one. Throws :thrum/invalid for
  none, and for what is not a function. Options as in all."
  ([fs] (any-call {} fs))
  ([options fs] (joined :any joiner/any options (options/functions "any" fs))))

(defn settle-call
  "As settle, of a collection of functions without arguments; [] for none. Throws :thrum/invalid for
  what is not a function. Options as in all."
  ([fs] (settle-call {} fs))
  ([options fs]
   (let [fs (options/functions "settle" fs :or-none)]
     (joined :settle joiner/settle options fs #(joiner/none-settled fs)))))

(defn- as-functions [forms]
  (mapv (fn [form] `(^{:once true} fn* [] ~form)) forms))

;; A symbol there would do nothing as a form.
(defn- with-functions [call [x & more :as forms]]
  (if (and more (or (map? x) (symbol? x)))
    `(~call ~x ~(as-functions more))
    `(~call {} ~(as-functions forms))))

(defmacro all
  "Evaluates the forms at once, each in a task, and returns a vector of their values. The first
  failure cancels and joins the others and is thrown.

      (all (user id) (cart id))
      (all {:limit 2, :timeout-ms 500} (user id) (cart id) (offers id))

  A map or a symbol that stands before other forms is options; all-call takes any expression for
  them.

  Options:
    :limit - how many of the tasks may run at once; the others start later (a positive
      integer; default all of them)
    :timeout-ms - how many ms all of it may take, as with-timeout around it (an integer, not
      negative)
    :name - the name of the threads, followed by a number for the call and one for the task (a
      string that is not blank)
    :wrap - called on the starting thread with the body's thunk; returns the thunk that the
      task runs (a function from thunk to thunk, or nil; default *wrap*)
    :scoped-values - bound in each task to what they are bound to at the call (a sequential
      collection of java.lang.ScopedValues, on JDK 25 or newer; default none)"
  [& forms]
  (with-functions `all-call forms))

(defmacro plet
  "As let, with the bindings' values computed at once, as by all; none can refer to another. The
  names may be destructured.

      (plet [u (user id) c (cart id)] (page u c))"
  [bindings & body]
  (options/pairs "plet" bindings)
  `(let [[~@(take-nth 2 bindings)] (all-call ~(as-functions (take-nth 2 (rest bindings))))]
     ~@body))

(defmacro race
  "Evaluates the forms at once, each in a task; returns or throws what the first to end did. The
  other tasks are cancelled, and have ended when race returns. At least one form, else
  :thrum/invalid. Options as in all."
  [& forms]
  (with-functions `race-call forms))

(defmacro any
  "Evaluates the forms at once, each in a task, and returns the value of the first to succeed. The
  other tasks are cancelled, and have ended when any returns. When all have failed, the first
  failure is thrown, with the others suppressed. At least one form, else :thrum/invalid. Options as
  in all."
  [& forms]
  (with-functions `any-call forms))

(defmacro settle
  "Evaluates the forms at once, each in a task, and returns a vector of how they ended, in the order
  of the forms: {:value v}, {:error throwable} or {:cancelled reason}. A failure cancels nothing. If
  the caller's work is cancelled meanwhile, by a deadline for instance, the running tasks are
  cancelled, and the outcomes of the others stay; the caller's next wait throws. A form that waited
  for work that others had cancelled has failed, with its CancellationException. An interrupt is
  thrown as InterruptedException. Options as in all; under :timeout-ms it returns what there is."
  [& forms]
  (with-functions `settle-call forms))

(defn hedge-call
  "As hedge, of a collection of functions without arguments, at least one. Throws :thrum/invalid for
  none, and for what is not a function."
  [options fs]
  (joined :hedge joiner/any options (options/functions "hedge" fs)))

(defmacro hedge
  "Evaluates the first form in a task; if it has no value within :after-ms, the second too, and so
  on. Where all that run have failed, the next begins at once. Returns the value of the first to
  succeed. The other tasks are cancelled, and have ended when hedge returns. When all have failed,
  the first failure is thrown, with the others suppressed. For calls that may be made twice.

      (hedge {:after-ms 80} (call replica-1) (call replica-2))

  The options are any expression.

  Options:
    :after-ms - how many ms a form waits for the value of those before it; required (an
      integer, not negative)
    :timeout-ms - how many ms all of it may take, as with-timeout around it (an integer, not
      negative)
    :name - the name of the threads, followed by a number for the call and one for the task (a
      string that is not blank)
    :wrap - called on the starting thread with the body's thunk; returns the thunk that the
      task runs (a function from thunk to thunk, or nil; default *wrap*)
    :scoped-values - bound in each task to what they are bound to at the call (a sequential
      collection of java.lang.ScopedValues, on JDK 25 or newer; default none)"
  [options & forms]
  `(hedge-call ~options ~(as-functions forms)))

(defn every!
  "Starts a daemon of the scope that calls f, a function of no arguments, at once and then every so
  many ms, one call after the other. Returns the task: cancel! ends it, as the end of the scope
  does. A failure of f is that of a fork: it ends the task, and unless the scope keeps failures, the
  scope. So does a deadline of its caller's that comes before the scope's end.

      (every! s {:ms 1000} #(send-heartbeat))

  Throws as fork does.

  Options:
    :ms - every how many ms f is called; required (a positive integer)
    :fixed - what the ms are counted from: the beginning of a call, or its end; with :rate,
      times that a long call misses are left out (:rate or :delay; default :rate)
    :name - the name of the task, behind its scope's and followed by a number (a string that
      is not blank)"
  [scope options f]
  (let [defaults {:fixed :rate, :name "every"}
        {:keys [ms fixed name]} (options/with-defaults defaults :every! options)
        f (options/function "by every!" f)]
    (scope/fork! (scope/checked scope)
                 {:name name, :daemon? true}
                 #(periodic/run fixed ms f))))

;; Deadlines

(defn ^:no-doc with-timeout-call [ms fallback f]
  (options/ms "with-timeout takes first" ms)
  (scope/call (timed {:name "timeout", :timeout-ms ms, :fallback fallback}) (fn [_] (f))))

(defn ^:no-doc with-deadline-call
  [instant fallback f]
  (scope/call {:name "deadline"
               :deadline (deadline/at-instant
                           (options/instance java.time.Instant "a java.time.Instant" instant))
               :fallback fallback}
    (fn [_] (f))))

(defn- within
  [call [limit & fallback] body]
  `(~call
     ~limit
     ~(when fallback `(^{:once true} fn* [] ~@fallback))
     (^{:once true} fn* [] ~@body)))

(defmacro with-timeout
  "Runs the body on the calling thread, for at most so many ms.

      (with-timeout 200 (fetch url))
      (with-timeout [200 :late] (fetch url))

  At the deadline the body's thread is interrupted and the tasks that the body started are
  cancelled. When all that has ended, :thrum/timeout is thrown, with the body's throwable as its
  cause, or the fallback's value is returned. Tasks and scopes inside inherit the deadline: the
  earliest wins. If an outer deadline comes first, the fallback is not used and the outer form
  throws :thrum/timeout or returns its own fallback. A body that returns a value is not late, and a
  failure of the body's own is thrown as it is. 0 ms never runs the body. Realise a lazy seq of
  pmap's inside. Costs less than a microsecond. Throws :thrum/invalid."
  [ms & body]
  (within `with-timeout-call
          (options/with-fallback "with-timeout" "ms or [ms fallback]" ms)
          body))

(defmacro with-deadline
  "As with-timeout, until a java.time.Instant:

      (with-deadline instant (fetch url))
      (with-deadline [instant :late] (fetch url))"
  [instant & body]
  (within `with-deadline-call
          (options/with-fallback "with-deadline" "an instant or [instant fallback]" instant)
          body))

(defn remaining-ms
  "Returns how many ms the calling thread's work has until its deadline, 0 where it has come or is
  less than 1 ms away; nil without a deadline. For the timeout of a client library that knows
  nothing of deadlines: as (max 1 (remaining-ms)) where 0 is no timeout there, as in
  java.net.Socket."
  []
  (some-> (place/current-group) group/deadline deadline/remaining-ms))

(defn ^:no-doc shield-call [ms f]
  (options/ms "shield takes first" ms)
  (scope/shielded (timed {:name "shield", :timeout-ms ms}) (fn [_] (f))))

(defmacro shield
  "Runs the body on the calling thread although its work is cancelled, for at most so many ms:
  cleanup that has to wait. Returns the body's value. Cancels and deadlines from outside reach the
  thread when the body has ended. Its own deadline throws :thrum/timeout; 0 ms never runs the body.
  Throws :thrum/invalid unless ms is an integer, not negative."
  [ms & body]
  `(shield-call ~ms (^{:once true} fn* [] ~@body)))

;; Cancel

(defn cancel!
  "Cancels a task or a scope: its state says so for good, with the reason (default, also for nil and
  false: :cancelled), and its threads are interrupted, each once. Returns true if it had an effect,
  false if x had ended or was cancelled already. Does not wait for the work to end. Every wait of
  Thrum's in cancelled work throws java.util.concurrent.CancellationException, whose ex-data is
  {:type :thrum/cancelled, :task name, :reason reason}; a reason that is not small stands there as
  text. Throws :thrum/invalid unless x is a task or a scope."
  ([x] (cancel! x :cancelled))
  ([x reason]
   (let [reason (or reason :cancelled)]
     (condp instance? x
       Scope (scope/cancel! x reason)
       Task (.cancelWith ^Task x reason true)
       (throw (options/unexpected "a task or a scope" x))))))

(defn cancelled?
  "True if the task or scope, or without an argument the calling thread's work, is cancelled; a
  scope also where work around it is. Throws :thrum/invalid unless x is a task or a scope."
  ([] (some? (wait/cancel-reason)))
  ([x]
   (condp instance? x
     Scope (some? (scope/cancel-reason x))
     Task (.isCancelled ^Task x)
     (throw (options/unexpected "a task or a scope" x)))))

(defn checkpoint
  "Throws CancellationException when the calling thread's work is cancelled, InterruptedException
  when the thread was interrupted; returns nil otherwise. For loops that compute. Costs a few ns."
  []
  (wait/check!))

(defn ^:no-doc on-cancel-call [f body]
  (on-cancel/call (options/function "by on-cancel" f) body))

(defmacro on-cancel
  "Runs the body on the calling thread, for work that has a way of its own to be stopped: a socket,
  a process, a query. A cancel or deadline of the work around it calls f, a function of no
  arguments, once, in place of an interrupt. f runs on a platform thread, in the caller's dynamic
  bindings, and should make the body end. Where no such thread can be started, the body is
  interrupted instead.

      (on-cancel [#(.close socket)] (.read (.getInputStream socket)))

  Returns when the body has ended, and f too if it was called. A body that returned a value before f
  could stop it has that value; the cancel then interrupts the thread. A body that threw an
  Exception after f was called was stopped: CancellationException is thrown, with that exception in
  its cause chain. A throwable of f is suppressed on what is thrown, or else goes to the thread's
  uncaught exception handler.

  Already cancelled, neither f nor the body runs: CancellationException is thrown. Forms inside the
  body are cancelled as ever: their own deadlines interrupt it. Nested, each form's function is
  called, at the same time. While the body is in a shield, f waits until that has ended. An
  interrupt by other code reaches the body, and outlives it as it would without the form. Throws
  :thrum/invalid unless f is a function."
  [binding & body]
  (let [[f] (options/one-form "on-cancel" "[f]" binding)]
    `(on-cancel-call ~f (^{:once true} fn* [] ~@body))))

;; Limits

(defn limiter
  "Returns a limiter of permits, a positive integer: how many may do something at once, shared by
  all its users. Permits are granted in the order of asking. clojure.datafy/datafy shows
  {:permits n, :in-use n, :waiting n, :rejected n, ...}. Throws :thrum/invalid.

      (def db (limiter 20 {:queue 100, :wait-ms 50}))

  With :adaptive the number of permits follows the function, which sees each use when it ends: how
  long the permit was held; how many were in use when it began, it among them; whether it was
  dropped: with-permit's body threw :thrum/timeout or :thrum/rejected, or was cancelled. A body that
  threw something else is not shown; a permit that release! returned counts as not dropped. permits
  is the limit to begin with, 20 if it is left out. Permits are had one at a time; where the limit
  falls, those in use stay. A throwable of the function goes to the uncaught exception handler, and
  the limit stays. Where it is slower than uses end, some are not shown. thrum.adaptive has such
  functions.

      (def api (limiter {:adaptive (thrum.adaptive/vegas), :queue 100}))

  Options:
    :queue - how many may wait for a permit (an integer, not negative; default no bound)
    :wait-ms - how many ms a permit is waited for (an integer, not negative; default no bound)
    :adaptive - what the limit is from now on, asked after each use with {:latency-ns n,
      :in-flight n, :dropped? b}, by one thread at a time (a function of a map to a positive
      integer; default none: the limit stays)
    :name - the limiter's name in errors and in what shows it (a string that is not blank)"
  ([permits]
   (if (and (map? permits) (:adaptive (options/checked :limiter permits)))
     (limiter nil permits)
     (limiter permits {})))
  ([permits options]
   (if-some [f (:adaptive (options/checked :limiter options))]
     (adaptive/limiter permits f options)
     (limit/limiter permits options))))

(defn rate-limiter
  "Returns a limiter of how often something may happen: so many permits, a positive integer, in
  :per-ms, shared by all its users. A permit is not returned: it is one start. Permits are granted
  in the order of asking, evenly spread; after a pause, :burst of them at once. A :burst also makes
  up for threads that wake late from their waits: without it fewer permits are granted on a busy
  machine. Uses no thread. clojure.datafy/datafy shows {:permits n, :per-ms n, :burst n, :waiting n,
  :rejected n, ...}. Throws :thrum/invalid.

      (def api (rate-limiter 100 {:per-ms 1000, :burst 20}))
      (with-permit api (call ...))

  Options:
    :per-ms - in how many ms so many permits are handed out (a positive integer; default 1000)
    :burst - how many permits may be had at once after a pause; no more than so many together
      (a positive integer; default 1)
    :queue - how many may wait for a permit (an integer, not negative; default no bound)
    :wait-ms - how many ms a permit is waited for (an integer, not negative; default no bound)
    :name - the limiter's name in errors and in what shows it (a string that is not blank)"
  ([permits] (rate-limiter permits {}))
  ([permits options] (rate/rate-limiter permits options)))

(defn acquire!
  "Returns a permit of the limiter, or n of them as one, a java.lang.AutoCloseable. Waits where they
  are not free. No thread that asks later overtakes, even if it needs fewer. The caller has to
  return a limiter's permit by release!, on any thread; with-permit does that by itself. A permit of
  a rate limiter needs no return. Throws :thrum/rejected when the queue is full or :wait-ms have
  passed; :thrum/deadlock when the with-permits around it leave fewer than n;
  :thrum/invalid for more permits than there are, or than a burst; CancellationException and
  InterruptedException, as every wait. Waiting for a permit that acquire! gave to the same thread is
  no deadlock, since any thread may return it: a dispatcher may acquire what its tasks release."
  ([limiter] (acquire! limiter 1))
  ([limiter n] (permits/acquire! limiter n)))

(defn try-acquire!
  "Returns a permit of the limiter, or n of them as one, as acquire! does, where that needs no wait;
  nil otherwise, also where other threads wait. Throws :thrum/invalid."
  ([limiter] (try-acquire! limiter 1))
  ([limiter n] (permits/try-acquire! limiter n)))

(defn release!
  "Gives a permit back to its limiter, on any thread. Returns nil. Throws :thrum/invalid, without an
  effect, when it has been given back before. Has no effect on a permit of a rate limiter."
  [permit]
  (permits/release! permit))

(defn ^:no-doc with-permit-call
  ([limiter f] (with-permit-call limiter 1 f))
  ([limiter n f] (permits/call-with limiter n f)))

(defmacro with-permit
  "Runs the body on the calling thread while it holds a permit of the limiter, or so many of them;
  see acquire! for how it waits and what it throws. Tasks that the body starts do not have the
  permit. Nested in itself it takes another permit, and throws :thrum/deadlock if the thread's own
  permits leave too few. With a rate limiter, the permit is for the start of the body.

      (with-permit db (query ...))
      (with-permit [db 3] (report ...))"
  [limiter & body]
  (let [[limiter n] (options/weighed limiter)]
    `(with-permit-call ~limiter ~n (^{:once true} fn* [] ~@body))))

;; Retries

(defn exponential
  "Returns an endless lazy seq of waits in ms: base-ms, 2 base-ms, 4 base-ms ..., none longer than
  max-ms. Throws :thrum/invalid unless both are integers, not negative."
  [base-ms max-ms]
  (retry/exponential base-ms max-ms))

(defn constant
  "Returns an endless lazy seq of the same wait, in ms. Throws :thrum/invalid unless it is an
  integer, not negative."
  [ms]
  (retry/constant ms))

(defn jitter
  "Returns the schedule with each wait replaced by a random one, from 0 up to the wait itself, drawn
  anew at each walk: an eduction, no seq. uniform: a function from n to an integer from 0 to n, in
  place of the JDK's. Throws :thrum/invalid unless the schedule is sequential."
  ([schedule] (retry/jitter schedule))
  ([uniform schedule] (retry/jitter uniform schedule)))

(defn max-elapsed
  "Returns the schedule, as an eduction, up to the first wait that would bring the sum of the waits
  above total-ms. The time of the attempts does not count. Throws :thrum/invalid unless total-ms is
  an integer, not negative, and the schedule sequential."
  [total-ms schedule]
  (retry/max-elapsed total-ms schedule))

(def ^:dynamic *attempt*
  "The number of the attempt that runs, from 1, in the body of retry; nil elsewhere. Tasks have it
  too, as any binding."
  nil)

(defn retry-budget
  "Returns a budget of retries that callers share by the option :budget of retry: a call of retry
  adds a part of a retry to it, and each further attempt takes one. So retries stay a part of the
  calls where everything fails. clojure.datafy/datafy shows {:retries n, :refused n, ...}. Throws
  :thrum/invalid.

  Options:
    :ratio - how many retries a call adds to the budget (a number from 0 to 1; default 0.1)
    :burst - how many retries the budget begins with, and holds at most (a positive integer;
      default 10)"
  ([] (retry-budget {}))
  ([options] (retry/retry-budget options)))

(defn retry-after
  "Returns how many ms the response in an HTTP client's exception asks to wait, by its header
  Retry-After (RFC 9110), as a number of seconds or as a date: for :wait-of. Reads :headers in the
  ex-data, with strings or keywords for names; for the ExecutionException or CompletionException of
  a future, in that of its cause. nil where it does not say."
  [throwable]
  (retry-after/ms throwable (System/currentTimeMillis)))

(defn ^:no-doc retry-call [options f]
  (retry/call options
              (fn [n]
                (binding [*attempt* n]
                  (f)))))

(defmacro retry
  "Returns the value of the body, which is run again when it has failed.

      (retry {:schedule (exponential 50 2000), :attempts 5, :retry? busy?} (query ...))

  In the body, *attempt* is the number of the attempt.

  Never tried again: an Error, an interrupt, a cancel, :thrum/invalid, :thrum/deadlock,
  :thrum/closed. A wait that would reach the deadline is not begun. Throws the last failure, the
  same instance, with the earlier ones suppressed, at most 16.

  Options:
    :schedule - the waits before each further attempt; when it ends, there is no further
      attempt (a sequential collection of ms; default (jitter (exponential 100 10000)))
    :attempts - how often the body is run at most (a positive integer; default 3)
    :retry? - whether a failure is worth another attempt (a predicate of the throwable;
      default every Exception)
    :on-retry - called before the wait for a further attempt with {:attempt 1, :wait-ms 50,
      :throwable t} (a function of a map; default none)
    :wait-of - how many ms the throwable asks to wait, in place of the schedule's; nil: as the
      schedule says (a function of the throwable; default none)
    :budget - how many retries all callers that share it may make (a budget, as retry-budget
      returns it; default no bound)"
  [options & body]
  `(retry-call ~options (fn* [] ~@(options/body "(retry {} (query))" body))))

;; Calls that no interrupt ends

(defn ^:no-doc abandon-call [on-abandon f]
  (abandon/call *wrap* on-abandon f))

(defmacro abandon-on-interrupt
  "Runs the body, a call that no interrupt ends (a file read, old JDBC), on a platform thread of its
  own, and returns its value or throws its throwable. The body has the caller's dynamic bindings,
  but neither its scope nor its deadline. If the caller is cancelled or interrupted meanwhile, it
  leaves at once with CancellationException or InterruptedException. The body then runs out and its
  result is dropped; on-abandon, a function of no arguments, is called on another thread: it may
  close what blocks the body. What it throws goes to that thread's uncaught exception handler. Costs
  some 100 microseconds.

      (abandon-on-interrupt #(.close connection) (query connection))"
  [on-abandon & body]
  `(abandon-call ~on-abandon (^{:once true} fn* [] ~@body)))

(defn abandoned
  "Returns how many calls this process has abandoned, {:running n, :total n}; :running, those that
  have not ended."
  []
  (abandon/abandoned))

(defn fd-limit
  "Returns how many more files and sockets this process may open, less a reserve of a tenth and at
  least 16, between 1 and 4096; 4096 where the operating system gives no figure. A limit for work
  that opens one socket per item. It is a snapshot: two callers who use it at the same time use it
  twice. Throws :thrum/invalid where the JDK lacks the module jdk.management."
  []
  (jdk/spare-descriptors))
