(ns thrum.impl.abandon
  "Calls that no interrupt can stop: each runs on a platform thread of its own, so that its caller
  can leave."
  {:no-doc true}
  (:require
   [thrum.impl.completion :as completion]
   [thrum.impl.context :as context]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.options :as options]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (java.util.concurrent.locks LockSupport)
   (thrum.impl.task Task)))

(set! *warn-on-reflection* true)

(def ^:private counts (atom {:running 0, :total 0}))

(defn abandoned
  "Returns how many calls this process has abandoned, {:running n, :total n}; :running: those that
  have not ended."
  []
  @counts)

;; A call is counted under its own lock: its end cannot be counted before it was abandoned.

(defn- count-end! [^Task call]
  (locking call
    (when (.isCancelled call)
      (swap! counts update :running dec))))

(defn- count-abandoned! [^Task call]
  (locking call
    (let [running (if (.cancelWith call :abandoned false) 1 0)]
      (swap! counts #(-> % (update :running + running) (update :total inc))))))

(defn- handler [^Thread caller]
  (reify completion/CompletionHandler
    (failed [_ _ _])
    (ended [_ call]
      (count-end! call)
      (LockSupport/unpark caller))))

(defn- on-thread!
  "Starts f in the context on a platform thread. Its failure goes to the thread's uncaught exception
  handler."
  [context name f]
  (.start (jdk/platform-thread (task/unique-name name)
                               (fn [] (context/enter! context nil) (f)))))

(defn- abandon!
  "Abandons the call because of t, and returns t."
  ^Throwable [call context on-abandon ^Throwable t]
  (count-abandoned! call)
  (try
    (on-thread! context "on-abandon" on-abandon)
    (catch Throwable no-thread (.addSuppressed t no-thread)))
  t)

(defn call
  "Returns the value of f, or throws what it threw, the same instance. f runs on a daemon platform
  thread in the caller's dynamic bindings, in no scope and under no deadline. The calling thread
  waits; when it is cancelled or interrupted meanwhile, it throws CancellationException or
  InterruptedException at once. f then runs out on its thread, which nothing interrupts: its result
  is dropped, its waits in Thrum are cancelled, and `abandoned` counts it. on-abandon, a function
  of no arguments that closes what f works with, is called once, on a platform thread of its own;
  its failure goes to the uncaught exception handler.

  So either the outcome of f arrives or on-abandon is called. Neither happens where f was never
  called: its caller was cancelled or interrupted before, or no thread could be started. Costs the
  start of a platform thread, about 0.1 ms. wrap: of f, or nil."
  [wrap on-abandon f]
  (let [on-abandon (options/function "first by abandon-on-interrupt" on-abandon)
        context (context/capture nil nil)
        call (task/task (context/capture wrap nil) (handler (Thread/currentThread)) 0 f)]
    (wait/check!)
    (task/start! call (jdk/platform-thread (task/unique-name "abandon") call))
    (try
      (wait/until call nil #(.isDone ^Task call))
      (catch Throwable t
        (throw (abandon! call context on-abandon t))))
    (task/value call)))
