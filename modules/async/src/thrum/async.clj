(ns thrum.async
  "core.async's channels from plain blocking code on virtual threads. Use it as (require
  '[thrum.async :as a]), beside clojure.core.async for chan, close!, timeout and the like.

  The channels are core.async's own, of any release from 1.6 on. Every blocking call here is a call
  of Thrum: it checks the scope and the deadline it stands in, and an interrupt ends it."
  (:require
   [clojure.core.async :as async]
   [clojure.core.async.impl.protocols :as impl]
   [thrum.async.impl.mapped :as mapped]
   [thrum.async.impl.pipeline :as pipeline]
   [thrum.async.impl.port :as port]
   [thrum.async.impl.process :as process]
   [thrum.async.impl.promised :as promised]
   [thrum.async.impl.settings :as settings]
   [thrum.spi :as spi]
   [thrum.spi.options :as options])
  (:import
   (java.util.concurrent ExecutionException Future)))

(set! *warn-on-reflection* true)

;; Takes and puts

(defn <!!
  "Takes a value from the port, blocking until there is one. Returns it, or nil when the port is
  closed and empty.

  A cancel of the calling thread's work throws CancellationException, an interrupt
  InterruptedException. Then nothing has been taken, and nothing is left in the port's queue: the
  next put is not lost. A committed take returns its value, and the interrupt stays for the next
  wait. Cancelled work gets no nil: the same cancel may have closed the port. Already cancelled or
  interrupted, it throws and does not touch the port. On a thread that core.async marks as one of
  its go blocks (with its go-checking; before 1.7 always) it throws IllegalStateException instead of
  waiting."
  [port]
  (port/take!! port))

(defn >!!
  "Puts v, which is not nil, into the port, blocking until the port accepts it. Returns true, or
  false when the port is closed.

  On a cancel or an interrupt it has either delivered v and returns true, with the interrupt kept,
  or it has withdrawn v and throws, as <!! does. IllegalArgumentException for nil."
  [port v]
  (port/put!! port v))

(defn <?!!
  "As <!!, but a Throwable that is taken is thrown, the same instance: for the channels of thread,
  process, a pipeline, pmap->chan and task->chan, which deliver a failure that way."
  [port]
  (let [v (<!! port)]
    (if (instance? Throwable v)
      (throw v)
      v)))

(defn alts!!
  "Completes at most one of the operations, each a port to take from or [port value] to put,
  blocking until one can be. Returns [value port]; the value of a put is true, or false when the
  port is closed, or [v :default] of the option. A cancel or an interrupt withdraws all of them
  and throws, as <!! does. So does a port that throws; where another operation has been committed
  before, its throwable goes to the uncaught exception handler instead. Throws :thrum/invalid,
  before it begins any, for no collection of operations, an empty one, a put of nil, or an unknown
  option.

  Options, behind the operations:
    :priority - whether the operations are tried in their order, and not in any (true, false
      or nil; default false)
    :default - the v of [v :default], returned when no operation can be completed at once
      (anything; default none)"
  [operations & {:as options}]
  (port/alts!! operations (settings/alts options)))

;; Threads

(defn thread-call
  "Starts f on a fresh virtual thread, detached from any scope, in the caller's dynamic bindings.
  Returns a channel that delivers the value of f, unless that is nil, or the Throwable that it
  threw, and closes; <?!! distinguishes the two. Throws :thrum/invalid.

  Options:
    :name - the name of the task and of its thread, followed by a number (a string that is not
      blank)
    :wrap - called on the starting thread with the body's thunk; returns the thunk that the
      task runs (a function from thunk to thunk, or nil; default thrum.core/*wrap*)"
  ([f] (thread-call {} f))
  ([options f]
   (let [{:keys [name wrap]} (settings/thread options)]
     (process/detached {:name (spi/unique-name (or name "async")), :wrap wrap}
                       (options/function f)))))

(defmacro thread
  "Runs the body on a fresh virtual thread; see thread-call, whose options are a map or a symbol
  that comes first, where more follows."
  [& body]
  (let [[options body] (options/leading body)]
    `(thread-call ~options (^{:once true} fn* [] ~@body))))

(defn process-call
  "Starts f as a process of the scope; see process."
  [scope options f]
  (process/of-scope scope
                    (settings/process options)
                    (options/function f)))

(defmacro process
  "Starts a process of the scope that runs the body on a virtual thread: what a go block is for, as
  long as the scope is open.

      (with-scope [s]
        (a/process s {:closes [out]}
          (loop [] (when-some [v (a/<!! in)] (a/>!! out (f v)) (recur))))
        ...)

  The scope does not wait for it: when the body of with-scope and its forks have ended, or the scope
  is cancelled, the process is cancelled and joined, and its channels are closed. To need its
  result, wait for its channel. A process that fails cancels the scope, as a fork does. Returns a
  channel that delivers the value of the body, unless it is nil, or its Throwable, and closes. If
  the process was cancelled, the channel only closes. Throws :thrum/invalid and :thrum/closed as
  fork does.

  Options, where a map or a symbol comes first and more follows:
    :name - the name of the task, behind its scope's and followed by a number, as in
      checkout-7/poll-0 (a string that is not blank)
    :closes - the channels that are closed when the process has ended in any way (a sequential
      collection of channels; default none)"
  [scope & body]
  (let [[options body] (options/leading body)]
    `(process-call ~scope ~options (^{:once true} fn* [] ~@body))))

;; Pipelines

(defn- pipeline [kind n to f from arguments]
  (let [options (settings/pipeline kind n arguments)]
    (pipeline/start! options
                     (settings/port impl/ReadPort "a channel to take from" from)
                     (->> to
                          (settings/port impl/WritePort "a channel to put into")
                          (settings/port impl/Channel "a channel to put into, with a close!"))
                     (options/function f))))

(defn pipeline-blocking
  "Takes items from `from`, applies the transducer xf to each, n at once, each on a fresh virtual
  thread, and puts the results into `to` in the order of the items: core.async's pipeline-blocking
  with its arguments, or with a map of options after `from`.

  Exactly n calls run at once, as long as there are items and results are taken; an item is taken
  only when its call can start. At most :window items, 8 n by default, have been taken
  beyond the one whose results are being put. When `to` is closed, not one more item is taken, and
  the running calls are interrupted. When `from` is closed, the pipeline ends after the last
  result has been taken, and closes `to`. While no result is taken, it holds no thread. Called
  inside a scope, it belongs to the scope, whose end cancels it. Its threads have the caller's
  bindings and context class loader, and inherit no InheritableThreadLocal.

  xf is applied to each item by itself: it may have several results or none. Early termination
  ends the item, not the pipeline. A nil result is an error. If xf throws, the throwable goes to
  ex-handler, whose value is the result in its place, unless it is nil. Without an ex-handler the
  throwable goes to the uncaught exception handler of its thread; so does one that ex-handler
  throws.

  Options, in place of close? and ex-handler:
    :close? - whether `to` is closed at the end (true or false; default true)
    :on-error - what becomes of an item whose function throws: :report drops it, and its
      throwable goes to the uncaught exception handler, :skip drops it, :close ends the pipeline
      with the throwable, after the results of the items before it, and cancels the later ones;
      a function's value goes on in its place, as an ex-handler's (:report, :skip, :close or a
      function of the throwable; default :report)
    :window - how many items may have been started and not yet been consumed; that many
      results are held in memory (an integer, not below n; default 8 x n)
    :name - the name of the threads, followed by a number for the call and one for the task (a
      string that is not blank)
    :wrap - called once, on the calling thread, with a thunk; what it returns is run by each
      task, with its body as the thunk (a function from thunk to thunk, or nil; default
      thrum.core/*wrap*)
    :scoped-values - bound in each task to what they are bound to at the call (a sequential
      collection of java.lang.ScopedValues, on JDK 25 or newer; default none)

  Returns a channel that closes when all has ended. With a map of options it delivers before that
  the Throwable that ended it, by :on-error :close, or {:taken items, :put values, :dropped items
  of a nil result, :failed throwables}. A throwable of a channel, such as an AssertionError for
  more than 1024 waiting puts, ends the pipeline and is delivered in any case. Wrong arguments
  throw :thrum/invalid; a scope that has ended, :thrum/closed."
  ([n to xf from] (pipeline-blocking n to xf from true))
  ([n to xf from close?-or-options] (pipeline :blocking n to xf from [close?-or-options]))
  ([n to xf from close? ex-handler] (pipeline :blocking n to xf from [close? ex-handler])))

(defn pipeline-async
  "As pipeline-blocking, for a function af of an item and a channel that starts something which puts
  results into that channel and then closes it, as core.async's pipeline-async. An item is open
  until its channel is closed, then its results go on; n items are open at a time. An af that throws
  has its channel closed, and is answered as an xf is. A put into an item's channel does not
  wait; what is put there after the end of the item is dropped. af may block, and put by itself."
  ([n to af from] (pipeline-async n to af from true))
  ([n to af from close?-or-options] (pipeline :async n to af from [close?-or-options])))

(defn pipeline-fn
  "As pipeline-blocking, for a plain function f of an item: a nil result is dropped and counted. The
  channel that it returns always delivers the totals, or the Throwable that has ended it."
  ([n to f from] (pipeline-fn n to f from {}))
  ([n to f from close?-or-options] (pipeline :fn n to f from [close?-or-options]))
  ([n to f from close? ex-handler] (pipeline :fn n to f from [close? ex-handler])))

(defn upipeline
  "As pipeline-blocking, in the order of completion: a slow item delays no other. The channel that
  it returns always delivers the totals, or the Throwable that ended it; with :on-error :close
  that is the first in time."
  ([n to xf from] (upipeline n to xf from {}))
  ([n to xf from close?-or-options] (pipeline :unordered n to xf from [close?-or-options]))
  ([n to xf from close? ex-handler] (pipeline :unordered n to xf from [close? ex-handler])))

;; Bridges

(defn chan->reducible
  "Returns the channel's values, up to its close, as something that can be reduced, or be a seq
  without chunks: for transduce, into, doseq and the map family. It takes as <!! does, one value
  at a time and on demand: a reduction that ends early leaves the rest in the channel. Values are
  taken once: a second reduction gets only what is left. It is not sequential?: = and flatten take
  nothing. Throws :thrum/invalid for what is no channel."
  [ch]
  (port/reducible (settings/port impl/ReadPort "a channel to take from" ch)))

(defn pmap->chan
  "Returns a channel of the results of thrum.core/pmap over coll, in order, with room for limit of
  them, that closes after the last. nil results are left out. A thread of its own reads coll, at
  most two items ahead: a result that is due leaves also while coll waits for its next item. While a
  result waits for room in the channel, no call starts.

  A failure, of f or of coll, is delivered as its Throwable after the results before it, see <?!!.
  By then the calls after it have been cancelled and have ended, and so has the reading of coll.
  Closing the channel ends it and cancels the running calls; what is in the channel can still be
  taken. It belongs to the scope in which it was called. Two threads wait until the results are
  taken or the channel is closed.

  limit: as in pmap, an integer or a map of options. :wrap is called on the calling thread for the
  reading of coll, and inside that for each item, also with :batch. coll: as in pmap, or anything
  else that can be reduced. Wrong arguments throw :thrum/invalid, a scope that has ended
  :thrum/closed."
  [limit f coll]
  (let [options (settings/mapping limit)
        f (options/function f)
        coll (options/reducible coll)
        ch (async/chan (:limit options))]
    (process/in-current-scope "pmap->chan" ch (mapped/mapping options ch f coll))
    ch))

(defn task->chan
  "Returns a channel that delivers the value of a java.util.concurrent.Future when it is done,
  unless the value is nil, or its Throwable, and closes. A cancelled future delivers a
  CancellationException."
  [task]
  (options/instance Future "a java.util.concurrent.Future" task)
  (thread-call #(try
                  (.get ^Future task)
                  (catch ExecutionException e (throw (or (ex-cause e) e))))))

(defn chan->future
  "Returns a future of the channel's next value, nil when the channel is closed. deref of a
  Throwable throws ExecutionException with it as the cause. The future takes the value as soon as
  there is one, and holds no thread. future-cancel withdraws it from the channel, or returns
  false: a cancelled future loses no value. It is no task of thrum.core, whose cancel cannot be
  refused: value, cancel! and as-completed throw :thrum/invalid for it. Throws :thrum/invalid for
  what is no channel."
  [ch]
  (promised/next-value (settings/port impl/ReadPort "a channel to take from" ch)))
