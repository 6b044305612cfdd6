(ns thrum.impl.data
  "Tasks and scopes as data, for clojure.datafy and tools that use it."
  {:no-doc true}
  (:require
   [clojure.core.protocols :as protocols]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.group :as group]
   [thrum.impl.scope :as scope]
   [thrum.impl.task :as task])
  (:import
   (thrum.impl.scope Scope)
   (thrum.impl.task ITask Task)))

(set! *warn-on-reflection* true)

(defn- task-data [^ITask task]
  (let [outcome (task/outcome-data task)]
    (merge {:name (.taskName task), :status (task/state-of outcome)} outcome)))

(defn- scope-data [^Scope scope]
  (let [group (.-group scope)
        reason (group/cancel-reason group)
        deadline (group/deadline group)]
    (cond-> {:name (scope/scope-name scope)
             :status (group/state group)
             :running (group/running group)
             :forks (filterv #(instance? ITask %) (group/children group))}
      reason (assoc :cancelled reason)
      deadline (assoc :remaining-ms (deadline/remaining-ms deadline)))))

(extend-protocol protocols/Datafiable
  Task
  (datafy [task] (task-data task))
  Scope
  (datafy [scope] (scope-data scope)))
