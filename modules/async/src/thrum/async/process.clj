(ns thrum.async.process
  "Threads whose outcome a channel delivers: detached ones, and those of a scope."
  (:require
   [clojure.core.async :as async]
   [thrum.impl.context :as context]
   [thrum.impl.group :as scope]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.scope :as form]
   [thrum.impl.task :as task])
  (:import
   (thrum.impl.task Done Failed ITask Owner)))

(set! *warn-on-reflection* true)

(defn- delivered
  "Returns what a channel is given for a task that has ended: its value or throwable, nil for none."
  [^ITask task]
  (let [outcome (.outcome task)]
    (condp instance? outcome
      Done (.-value ^Done outcome)
      Failed (.-throwable ^Failed outcome)
      nil)))

(defn- deliver! [channel task]
  (when-some [v (delivered task)]
    (async/put! channel v))
  (async/close! channel))

(defn detached
  "Starts f in the context on a virtual thread of that name. Returns a channel of its value or its
  throwable."
  [context name f]
  (let [channel (async/chan 1)
        task (task/task context
                        (reify Owner
                          (failed [_ _ _])
                          (ended [_ task] (deliver! channel task)))
                        0 f)]
    (task/start! task (jdk/virtual-thread name task))
    channel))

(defn- close-all!
  "Closes each, also where another cannot be closed."
  [channels]
  (when-some [[channel & more] (seq channels)]
    (try
      (async/close! channel)
      (finally (close-all! more)))))

(defn of-scope
  "Starts f as a daemon of the form's scope. Returns a channel of its value or its throwable;
  :closes - the channels that are closed with it."
  [form {:keys [closes] :as options} f]
  (let [channel (async/chan 1)
        end! (fn [task]
               (try
                 (close-all! closes)
                 (finally (deliver! channel task))))]
    (form/fork! form (-> options (dissoc :closes) (assoc :daemon? true, :on-end end!)) f)
    channel))

(defn in-current-scope
  "Starts f on a virtual thread that belongs to the calling thread's scope, if there is one. When it
  has ended, the channel is closed, after the throwable of f, if there is one, was put into it."
  [name channel f]
  (let [scope (scope/scope (task/unique-name name) (context/current-scope))
        owner (reify Owner
                (failed [_ _ t] (async/put! channel t))
                (ended [_ task]
                  (async/close! channel)
                  (scope/leave! scope task)))]
    (scope/start! scope (task/task (context/capture nil scope) owner 0 f))))
