(ns thrum.impl.executor
  "An ExecutorService whose tasks are the children of a scope, and tasks on the executors of others."
  {:no-doc true}
  (:require
   [thrum.impl.context :as context]
   [thrum.impl.error :as error]
   [thrum.impl.group :as scope]
   [thrum.impl.shown :as shown]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (clojure.lang ExceptionInfo)
   (java.util List Objects)
   (java.util.concurrent AbstractExecutorService Executor ExecutorService TimeoutException)
   (java.util.concurrent.atomic AtomicLong)
   (thrum.impl.group Scope)
   (thrum.impl.task Done Owner Task)))

(set! *warn-on-reflection* true)

(definterface Launcher
  (launch [context f]))

;; The owner of an executor's tasks: one failure is no matter of the others.
(deftype Crew [^Scope scope ^AtomicLong started ^Task over on-failure]
  Owner
  (failed [_ _ t] (on-failure t))
  (ended [_ task]
    (scope/leave! scope task)
    (when (and (scope/reason scope) (scope/empty-scope? scope))
      (.settle over (Done. nil)))))

(defn- crew [id]
  (Crew. (scope/scope id nil) (AtomicLong.) (task/latch id) (fn [_])))

(defn- uncaught! [t]
  (let [thread (Thread/currentThread)]
    (.uncaughtException (.getUncaughtExceptionHandler thread) thread t)))

(defn- without-handles
  "Returns the same crew for work that nobody holds a future of: its failures go to the thread's
  uncaught exception handler."
  [^Crew crew]
  (Crew. (.-scope crew) (.-started crew) (.-over crew) uncaught!))

(defn- close! [^Crew crew end-scope!]
  (end-scope! (.-scope crew) :shutdown)
  (when (scope/empty-scope? (.-scope crew))
    (.settle ^Task (.-over crew) (Done. nil))))

(defn- over-within? [^Crew crew n unit]
  (try
    (.get ^Task (.-over crew) n unit)
    true
    (catch TimeoutException _ false)))

(defn- launch!
  [^Crew crew context f]
  (try
    (scope/start! (.-scope crew)
                  (task/task context crew (.getAndIncrement ^AtomicLong (.-started crew)) f))
    (catch ExceptionInfo e (throw (error/rejected e)))))

(defn- service
  "Returns the crew's ExecutorService. What is given to it by submit or execute runs as it is, in
  the caller's bindings."
  ^ExecutorService [^Crew crew]
  (let [scope (.-scope crew)
        handless (without-handles crew)]
    (proxy [AbstractExecutorService Launcher] []
      (launch [context f] (launch! crew context f))
      (execute [runnable]
        (launch! handless (context/capture nil nil) (Objects/requireNonNull runnable)))
      (shutdown [] (close! crew scope/close!))
      (shutdownNow [] (close! crew scope/cancel!) (List/of))
      (isShutdown [] (some? (scope/reason scope)))
      (isTerminated [] (.isDone ^Task (.-over crew)))
      (awaitTermination [n unit] (over-within? crew n unit)))))

(defn- cancel-and-join! [^Crew crew]
  (try
    (close! crew scope/cancel!)
    (finally (scope/join! (.-scope crew)))))

(defn- join-all! [^Crew crew]
  (close! crew scope/close!)
  (scope/await! (.-scope crew) #(scope/empty-scope? (.-scope crew))))

(defn call-with
  "Calls f with an open ExecutorService and returns its value after all tasks have ended, :on-exit
  :join, or were cancelled, :on-exit :cancel. When f throws or is interrupted, they are cancelled
  and joined, then that is thrown."
  [{:keys [name on-exit]} f]
  (let [crew (crew (task/unique-name name))]
    (try
      (let [value (f (service crew))]
        (when (= :join on-exit) (join-all! crew))
        value)
      (finally
        (cancel-and-join! crew)))))

(defn- on-foreign [^Executor executor ^Task task]
  (.execute executor
            (fn []
              ;; An executor may run it on a thread that stands in a form: then both share that
              ;; thread's ledger.
              (let [outer (context/place)
                    ledger (wait/current-ledger)]
                (.share task ledger)
                (context/on-borrowed-thread #(.run task))
                (.finish task ledger outer))))
  task)

(defn submit!
  "Starts a task on the executor and returns it."
  [executor context name f]
  (cond (instance? Launcher executor) (.launch ^Launcher executor context f)
        (instance? Executor executor)
        (on-foreign executor (task/named (task/task context nil 0 f) (task/unique-name name)))
        :else (throw
                (error/invalid (str "future-via takes a java.util.concurrent.Executor, not "
                                    (shown/text executor))
                               {:value executor, :accepts "a java.util.concurrent.Executor"}))))
