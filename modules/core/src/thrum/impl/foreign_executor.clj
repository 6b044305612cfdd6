(ns thrum.impl.foreign-executor
  "Tasks on an executor of the user's."
  {:no-doc true}
  (:require
   [thrum.impl.context :as context]
   [thrum.impl.error :as error]
   [thrum.impl.executor]
   [thrum.impl.place :as place]
   [thrum.impl.show :as show]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (java.util.concurrent Executor)
   (thrum.impl.executor Launcher)
   (thrum.impl.task Task)))

(set! *warn-on-reflection* true)

(defn- run-on-borrowed-thread!
  "Runs the task on the calling thread, which goes on after it. The thread may have a place already:
  then the task shares its record of interrupts."
  [^Task task]
  (let [outer (place/current)
        flag (wait/current-flag)]
    (.shareFlag task flag)
    (context/on-borrowed-thread #(.run task))
    (.leaveThread task flag outer)))

(defn submit!
  "Starts a task on the executor, one of with-executor or any other, and returns it."
  [executor context name f]
  (cond
    (instance? Launcher executor) (.launch ^Launcher executor context f)
    (instance? Executor executor)
    (let [task (task/named (task/task context nil 0 f) (task/unique-name name))]
      (.execute ^Executor executor #(run-on-borrowed-thread! task))
      task)
    :else (throw (error/invalid
                   (str "future-via takes a java.util.concurrent.Executor, not "
                        (show/text executor))
                   {:value executor, :accepts "a java.util.concurrent.Executor"}))))
