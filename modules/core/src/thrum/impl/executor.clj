(ns thrum.impl.executor
  "An ExecutorService whose tasks are the children of a group."
  {:no-doc true}
  (:require
   [thrum.impl.completion :as completion]
   [thrum.impl.context :as context]
   [thrum.impl.error :as error]
   [thrum.impl.group :as group]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.registry :as registry]
   [thrum.impl.task :as task])
  (:import
   (clojure.lang ExceptionInfo)
   (java.util List Objects)
   (java.util.concurrent AbstractExecutorService ExecutorService Future TimeoutException)
   (java.util.concurrent.atomic AtomicLong)
   (thrum.impl.group Group)
   (thrum.impl.task Done Task)))

(set! *warn-on-reflection* true)

;; No protocol: it is called for every task of an executor, see decision 32.
(definterface Launcher
  (launch [context f]))

(defn- settle-if-over! [group ^Task terminated]
  (when (and (group/end-reason group) (group/empty-group? group))
    (.settle terminated (Done. nil))))

;; The handler of an executor's tasks: a failure cancels nothing. terminated: a latch.
(deftype Crew [^Group group ^AtomicLong started ^Task terminated on-failure]
  completion/CompletionHandler
  (failed [_ _ t] (on-failure t))
  (ended [_ task]
    (group/child-left! (group/children-of group) task)
    (settle-if-over! group terminated)))

(defn- crew [id]
  (Crew. (group/group id nil) (AtomicLong.) (task/latch id) (fn [_])))

(defn- without-futures
  "Returns the same crew for work without a future: its failures go to the thread's uncaught
  exception handler."
  [^Crew crew]
  (Crew. (.-group crew) (.-started crew) (.-terminated crew) jdk/uncaught!))

(defn- close! [^Crew crew end!]
  (end! (.-group crew) :shutdown)
  (settle-if-over! (.-group crew) (.-terminated crew)))

(defn- terminated-within? [^Crew crew n unit]
  (try
    (.get ^Task (.-terminated crew) n unit)
    true
    (catch TimeoutException _ false)))

(defn- launch! [^Crew crew context f]
  (try
    (group/start! (.-group crew)
                  (task/task context crew (.getAndIncrement ^AtomicLong (.-started crew)) f))
    (catch Throwable t
      ;; A shutdown may have come since the task was added, and waited for it.
      (settle-if-over! (.-group crew) (.-terminated crew))
      (throw (if (instance? ExceptionInfo t) (error/rejected t) t)))))

(defn- with-cancel
  "Returns what runs the thunk, and whose cancel is the future's."
  [thunk ^Future future]
  (reify
    Runnable
    (run [_] (thunk))
    Future
    (cancel [_ interrupt] (.cancel future interrupt))))

(defn- wrapped
  "Returns what a task runs for the runnable: what wrap (nil: none) makes of it. It has a future's
  cancel where the runnable is one."
  [wrap ^Runnable runnable]
  (if wrap
    (let [thunk (context/wrapped-once (context/capture wrap nil) #(.run runnable))]
      (if (instance? Future runnable) (with-cancel thunk runnable) thunk))
    runnable))

(defn- service
  "Returns the crew's ExecutorService. A task from submit or execute runs in the caller's bindings,
  wrapped by what (wrap) returns there."
  ^ExecutorService [^Crew crew wrap]
  (let [group (.-group crew)
        without-futures (without-futures crew)]
    (proxy [AbstractExecutorService Launcher] []
      (launch [context f] (launch! crew context f))
      (execute [runnable]
        (launch! without-futures
                 (context/capture nil nil)
                 (wrapped (wrap) (Objects/requireNonNull runnable))))
      (shutdown [] (close! crew group/close!))
      (shutdownNow [] (close! crew group/cancel!) (List/of))
      (isShutdown [] (some? (group/end-reason group)))
      (isTerminated [] (.isDone ^Task (.-terminated crew)))
      (awaitTermination [n unit] (terminated-within? crew n unit)))))

(defn- cancel-and-join! [^Crew crew]
  (try
    (close! crew group/cancel!)
    (finally (group/join! (.-group crew)))))

(defn- join-all! [^Crew crew]
  (close! crew group/close!)
  (group/await-idle! (.-group crew) #(group/empty-group? (.-group crew))))

(defn call-with
  "Calls f with an open ExecutorService and returns its value after all tasks have ended, :on-exit
  :join, or were cancelled, :on-exit :cancel. When f throws or is interrupted, cancels and joins the
  tasks and rethrows. wrap: a function that returns the wrap of a task from submit or execute."
  [{:keys [name on-exit wrap]} f]
  (let [crew (crew (task/unique-name name)), entry (registry/keep! :executor crew)]
    (try
      (let [value (f (service crew wrap))]
        (when (= :join on-exit) (join-all! crew))
        value)
      (finally
        (try (cancel-and-join! crew) (finally (registry/forget! entry)))))))
