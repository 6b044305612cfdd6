(ns thrum.core
  "Plain blocking code on virtual threads, under the names of clojure.core. Use it as
  (require '[thrum.core :as t])."
  (:refer-clojure :exclude [for future future-call map pcalls pmap pvalues])
  (:require
   [thrum.context :as context]
   [thrum.executor :as executor]
   [thrum.fanout :as fanout]
   [thrum.jdk :as jdk]
   [thrum.options :as options]
   [thrum.task :as task]))

(set! *warn-on-reflection* true)

(def ^:dynamic *wrap*
  "A function from thunk to thunk, called on the starting thread for every task; the task runs what it returns. The place for
  logging contexts, OpenTelemetry and the like. nil, the default, wraps nothing."
  nil)

;; Tasks

(defmacro thread
  "Starts a virtual thread that runs the body, detached from any scope, in the caller's dynamic bindings.
  Returns the java.lang.Thread. What the body throws goes to the thread's uncaught exception handler."
  [& body]
  `(task/thread! (context/capture *wrap* nil) (task/unique-name "thread") (^{:once true} fn* [] ~@body)))

(defn future-call
  "Starts a task, f on a fresh virtual thread, detached from any scope, in the caller's dynamic bindings. Returns the task,
  a full Clojure future: deref throws ExecutionException with the cause, or CancellationException; future-cancel
  interrupts the body.
  Options: :name - the thread's name, as it is; :wrap - see *wrap*. Throws :thrum/invalid."
  ([f] (future-call {} f))
  ([options f]
   (let [{:keys [name wrap]} (merge {:wrap *wrap*} (options/check options [:name :wrap]))]
     (task/future! (context/capture wrap nil) (or name (task/unique-name "future")) (options/function f)))))

(defmacro future
  "Starts a task that runs the body on a fresh virtual thread; see future-call."
  [& body]
  `(future-call (^{:once true} fn* [] ~@body)))

(defn ^:no-doc with-executor-call [options f]
  (executor/call-with (merge {:on-exit :join, :name "executor"} (options/check options [:on-exit :name])) f))

(defmacro with-executor
  "Runs the body with an ExecutorService bound to the symbol, which runs every task on a virtual thread of its own, and returns
  the body's value when all tasks have ended.

      (with-executor [exe] (future-via [exe] ...))
      (with-executor [exe {:on-exit :cancel}] ...)

  Options: :on-exit - :join (default) waits for the tasks, :cancel cancels and joins them; :name - of the threads.
  If the body throws or is interrupted, the tasks are cancelled and joined, then it is rethrown. Work that ignores its interrupt
  delays the return. When the body has ended, the executor refuses work with RejectedExecutionException, also from its own
  tasks."
  [binding & body]
  (let [[executor options] (options/binding-form "with-executor" binding 2)]
    `(with-executor-call ~(or options {})
       (^{:once true} fn* [~(vary-meta executor assoc :tag `java.util.concurrent.ExecutorService)] ~@body))))

(defn ^:no-doc future-via-call [executor f]
  (executor/submit! executor (context/capture *wrap* nil) "future-via" f))

(defmacro future-via
  "Starts a task that runs the body on the executor, any java.util.concurrent.Executor. Returns the task, as future does.

      (future-via [executor] body...)

  On an executor that is not with-executor's, the task restores the worker's binding frame and leaves no interrupt of its own
  behind; whether it ever runs is up to that executor: if a pool drops it, deref of the task waits for ever.
  Throws :thrum/invalid, and RejectedExecutionException where the executor does."
  [binding & body]
  (let [[executor] (options/binding-form "future-via" binding 1)]
    `(future-via-call ~executor (^{:once true} fn* [] ~@body))))

;; The map family

(def ^:private all-at-once
  {:limit 100000, :window 100000})

(defn- in-context [options]
  (merge {:wrap *wrap*} options))

(defn- fan-out-options [order name limit-or-options]
  (merge {:order order, :name name}
         (options/fan-out limit-or-options [:limit :window :name :wrap])))

(defn- eager-options [name limit-or-options]
  (in-context (merge {:name name}
                     (options/fan-out limit-or-options [:limit :name :wrap]))))

(defn- results [options f colls]
  (fanout/results (in-context options) (options/function f) colls))

(defn- transducer [options f]
  (fanout/transducer #(in-context options) (options/function f)))

(defn pmap
  "Returns a lazy seq of f of the items, in the order of the input, computed by at most `limit` tasks at once.
  Without a collection it returns a transducer.

  While a consumer waits, the tasks run `limit` wide: no item waits for a chunk, or, as far as the window reaches, for a slow
  one before it. The consumer is the thread that realises the seq: it starts the tasks, also while it waits. When
  it asks for an element that is ready, at most one more starts, and only if its item is at hand; between requests nothing does. The source is touched by this thread only, one item at a time beyond its own chunks.

  limit: a positive integer, or a map of options:
    :limit  - how many tasks may run at once; required
    :window - how many may have been started and not yet been consumed, default 8 x limit. So many results are held in memory:
              512 x 8 results of 1 MB are 4 GB
    :name   - of the threads, instead of pmap
    :wrap   - see *wrap*

  Where f failed, the element throws the original throwable, after the elements before it; the tasks after it are cancelled at
  once and have ended when it throws. Other failures ride as suppressed, with an ex-info {:type :thrum/context, :task name,
  :index i, :dropped n}. An interrupt of the consumer cancels and joins the tasks and is thrown as InterruptedException.
  When the scope that it was called in has ended, realising further throws :thrum/closed. An abandoned seq starts nothing more;
  what runs ends by itself. Wrong arguments throw :thrum/invalid at the call.

  The transducer takes the context of the thread that starts the process. Results leave on the next input or at completion. When a
  downstream step returns reduced or throws, or f fails, what runs is cancelled and joined. A process that just stops, by a
  throwing source or an abandoned sequence, leaves at most `limit` calls to run out."
  ([limit f]
   (transducer (fan-out-options :ordered "pmap" limit) f))
  ([limit f coll & colls]
   (results (fan-out-options :ordered "pmap" limit) f (cons coll colls))))

(defn upmap
  "As pmap, in the order of completion. After a failure it delivers what was completed before, then throws it."
  ([limit f]
   (transducer (fan-out-options :as-completed "upmap" limit) f))
  ([limit f coll & colls]
   (results (fan-out-options :as-completed "upmap" limit) f (cons coll colls))))

(defn fmap
  "As pmap, but the elements are the tasks themselves, in the order of the input, at most limit of them running. Realising
  an element starts up to limit - 1 tasks after it. A failure stops nobody: each task's outcome is the caller's to handle.
  As a transducer whose process stops early it cancels what runs, and so what it has handed out."
  ([limit f]
   (transducer (fan-out-options :as-started "fmap" limit) f))
  ([limit f coll & colls]
   (results (fan-out-options :as-started "fmap" limit) f (cons coll colls))))

(defn map
  "Returns a lazy seq of f of the items, in the order of the input, all at once: pmap with a limit and window of 100 000.
  The first element arrives when it is ready. There is no transducer without a limit. Network and file work needs a
  limit, see fd-limit."
  ([f]
   (throw (options/no-limit f)))
  ([f coll & colls]
   (results (fan-out-options :ordered "map" all-at-once) f (cons coll colls))))

(defn pmapv
  "Returns a vector of f of the items, in the order of the input, computed by at most limit tasks at once. The first failure in
  time cancels and joins the others and is thrown. When it returns or throws, nothing of its own is running.
  limit as in pmap, without :window. A single collection may be anything that can be reduced."
  [limit f coll & colls]
  (fanout/vector-of-results (eager-options "pmapv" limit) (options/function f) (cons coll colls)))

(defn prun!
  "Calls f on every item for its effects, at most limit at once; returns nil. Otherwise as pmapv; a result of `reduced` is no
  reason to stop."
  [limit f coll]
  (fanout/run! (eager-options "prun" limit) (options/function f) coll))

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
  `(clojure.core/for ~(unchunked-bindings bindings) (fn* [] ~body)))

(defn ^:no-doc for-call [thunks]
  (fanout/of-thunks (in-context (fan-out-options :ordered "for" all-at-once)) thunks))

(defn ^:no-doc pfor-call [limit thunks]
  (fanout/of-thunks (in-context (fan-out-options :ordered "pfor" limit)) thunks))

(defmacro for
  "As clojure.core/for, with a task for every body, all at once as in map. Bindings, :when, :while and :let run on the consumer,
  one item at a time.

      (for [id ids, :when (pos? id)] (fetch id))"
  [bindings body]
  `(for-call ~(thunks bindings body)))

(defmacro pfor
  "As for, with at most limit bodies at once; limit as in pmap.

      (pfor 8 [id ids, :when (pos? id)] (fetch id))"
  [limit bindings body]
  `(pfor-call ~limit ~(thunks bindings body)))

(defn pcalls
  "Calls the functions without arguments all at once, each in a task. When all have ended, returns their values as a lazy seq,
  which throws where one failed; a failure stops nobody."
  [& fs]
  (fanout/calls (in-context {:name "pcalls"}) (mapv options/function fs)))

(defmacro pvalues
  "Evaluates the forms all at once, as pcalls."
  [& forms]
  `(pcalls ~@(clojure.core/for [form forms] `(^{:once true} fn* [] ~form))))

(defn fd-limit
  "Returns how many more files and sockets this process may open, less a reserve of a tenth and at least 16, between 1 and 4096;
  4096 where the operating system does not tell. A limit for work that opens one socket per item. It is a snapshot: two callers
  who use it at the same time use it twice."
  []
  (jdk/spare-descriptors))
