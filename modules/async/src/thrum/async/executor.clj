(ns thrum.async.executor
  "Runs core.async's own work on virtual threads: its system property
  clojure.core.async.executor-factory can name a function of this namespace. It does not require
  core.async, which loads it while being loaded itself."
  (:require
   [thrum.core :as t]
   [thrum.spi :as spi]
   [thrum.spi.options :as options])
  (:import
   (java.util List Objects)
   (java.util.concurrent AbstractExecutorService ExecutorService Executors ThreadFactory TimeUnit)))

(set! *warn-on-reflection* true)

(def ^:private rows
  {:dispatch-threads {:check #(and (pos-int? %) (<= % Integer/MAX_VALUE))
                      :accepts "an integer from 1 to 2147483647"
                      :default "none"
                      :doc (str "how many daemon platform threads run go blocks and callbacks, "
                                "with names such as async-dispatch-17; none: each step of a "
                                "go block has a fresh virtual thread")}
   :wrap (assoc (:wrap options/rows)
           :default "thrum.core/*wrap* at that moment"
           :doc (str "called with a thunk on the thread that submits it; returns the thunk that is "
                     "run. A callback is submitted by the thread that takes or puts, a go block "
                     "that has parked by the one that wakes it"))})

(def ^:private thread-names
  {:io "async-io"
   :compute "async-compute"
   :mixed "async-mixed"
   :core-async-dispatch "async-dispatch"})

(defn- wrapped
  "Returns the Runnable to run in place of this one: the result of wrap (nil: none), called here
  and now."
  ^Runnable [wrap ^Runnable runnable]
  (if wrap
    (let [thunk (spi/wrapped wrap #(.run runnable))]
      #(thunk))
    runnable))

(defn- endless
  "Returns an ExecutorService that passes each Runnable, in its wrap, to launch. It belongs to the
  process: shutdown and close have no effect, as on ForkJoinPool's common pool. Unlike the JDK's
  executors it keeps no record of what runs: under -Djdk.trackAllThreads=false a virtual thread
  that waits for an otherwise unreachable channel can be collected."
  ^ExecutorService [launch current-wrap]
  (proxy [AbstractExecutorService] []
    (execute [runnable] (launch (wrapped (current-wrap) (Objects/requireNonNull runnable))))
    (shutdown [])
    (shutdownNow [] (List/of))
    (close [])
    (isShutdown [] false)
    (isTerminated [] false)
    (awaitTermination [n unit]
      (.sleep ^TimeUnit unit n)
      false)))

(defn- on-virtual-threads
  [thread-name]
  (fn [^Runnable runnable]
    (.start (spi/virtual-thread (spi/unique-name thread-name)
                                #(do (spi/give-way!) (.run runnable))))))

(defn- on-platform-threads
  [thread-name n]
  (let [pool (Executors/newFixedThreadPool
               n
               (reify
                 ThreadFactory
                 (newThread [_ body] (spi/platform-thread (spi/unique-name thread-name) body))))]
    #(.execute pool %)))

(defn- launcher [workload thread-name dispatch-threads]
  (if (and dispatch-threads (= :core-async-dispatch workload))
    (on-platform-threads thread-name dispatch-threads)
    (on-virtual-threads thread-name)))

(defn- unknown-workload
  [workload]
  (spi/invalid (str "Unknown workload " (spi/text workload)
                 "; known are " (pr-str (sort (keys thread-names))))
    {:value workload, :known (vec (sort (keys thread-names)))}))

(defn factory
  "Returns a function from a workload of core.async's (:io, :compute, :mixed or
  :core-async-dispatch) to an ExecutorService, the same one each time, that runs each submitted
  thunk on a fresh virtual thread with a unique name such as async-io-17. The thread's uncaught
  exception handler gets what the thunk throws; the submitting thread gets what wrap throws.
  Bindings are conveyed by core.async itself. The executor cannot be shut down. Throws
  :thrum/invalid, at an unknown workload too.

  To use options, def what this returns in a namespace that does not need core.async, and let the
  property name that.

  Options:
    :dispatch-threads - how many daemon platform threads run go blocks and callbacks, with
      names such as async-dispatch-17; none: each step of a go block has a fresh virtual thread
      (an integer from 1 to 2147483647; default none)
    :wrap - called with a thunk on the thread that submits it; returns the thunk that is run.
      A callback is submitted by the thread that takes or puts, a go block that has parked by
      the one that wakes it (a function from thunk to thunk, or nil; default thrum.core/*wrap*
      at that moment)"
  [options]
  (let [{:keys [dispatch-threads wrap]} (options/check rows options)
        current-wrap (if (contains? options :wrap)
                       (constantly wrap)
                       (fn [] t/*wrap*))
        executors (into {}
                        (for [[workload thread-name] thread-names]
                          [workload
                           (endless (launcher workload thread-name dispatch-threads)
                                    current-wrap)]))]
    (fn [workload] (or (executors workload) (throw (unknown-workload workload))))))

(def ^:private all-virtual (factory {}))

(defn everything
  "Returns the executor for a workload, see factory: everything runs on virtual threads, go blocks
  too.

      -Dclojure.core.async.executor-factory=thrum.async.executor/everything

  Throws :thrum/invalid at an unknown workload."
  ^ExecutorService [workload]
  (all-virtual workload))

(def ^:private pooled
  (delay (factory {:dispatch-threads (Long/getLong "clojure.core.async.pool-size" 8)})))

(defn all-but-dispatch
  "Returns the executor for a workload, see factory: go blocks and callbacks run on a fixed pool of
  daemon platform threads, 8 or what the property clojure.core.async.pool-size says at the first
  call, as in core.async before 1.8; all else runs on virtual threads.

      -Dclojure.core.async.executor-factory=thrum.async.executor/all-but-dispatch

  Throws :thrum/invalid at an unknown workload, and at a pool size that :dispatch-threads does
  not accept."
  ^ExecutorService [workload]
  (@pooled workload))
