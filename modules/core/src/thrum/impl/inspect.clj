(ns thrum.impl.inspect
  "What core's own things know of themselves, as maps: for the registry's readers."
  {:no-doc true}
  (:require
   [thrum.impl.attachment]
   [thrum.impl.executor]
   [thrum.impl.fanout]
   [thrum.impl.group :as group]
   [thrum.impl.joiner]
   [thrum.impl.limit :as limit]
   [thrum.impl.scope :as scope]
   [thrum.impl.task :as task])
  (:import
   (thrum.impl.attachment Attachment)
   (thrum.impl.executor Crew)
   (thrum.impl.fanout FanOut)
   (thrum.impl.group Group)
   (thrum.impl.joiner Joiner)
   (thrum.impl.limit Limiter)
   (thrum.impl.place Cancellable Place)
   (thrum.impl.scope Scope)
   (thrum.impl.task Task)))

(set! *warn-on-reflection* true)

(defn- group-of [x]
  (condp instance? x
    Scope (.-group ^Scope x)
    FanOut (.-group ^FanOut x)
    Joiner (.-group ^Joiner x)
    Crew (.-group ^Crew x)
    Group x
    nil))

(defn- group-facts [^Group group]
  {:name (group/group-name group)
   :state (group/state group)
   :group group
   :parent (group/parent group)
   :opener (.opener ^Cancellable group)
   :deadline (group/deadline group)
   :reason (or (group/cancel-reason group) (group/end-reason group))
   :running (group/running group)
   :started (group/started group)
   :children (group/children group)})

(defn- task-facts [^Task task]
  {:name (.taskName task)
   :state (task/state-of (task/outcome-data task))
   :parent (.group ^Place task)
   :thread (.thread task)
   :since (.born task)
   :index (.index task)})

(defn title
  "Returns the :kind and :name of one of core's own things, for a task also its :thread; nil for
  anything else. See thrum.spi.watch/title."
  [x]
  (condp instance? x
    Task {:kind :task, :name (.taskName ^Task x), :thread (.thread ^Task x)}
    Limiter {:kind :permit, :name (or (.-name ^Limiter x) "limiter")}
    (when-some [group (group-of x)]
      {:kind :children, :name (group/group-name group)})))

(defn facts
  "Returns what a scope, task, fan-out, joiner, executor, limiter or group knows of itself; nil for
  anything else. See thrum.spi.watch/facts."
  [x]
  (condp instance? x
    Task (task-facts x)
    Scope (merge (scope/facts x) (group-facts (group-of x)))
    Limiter (limit/facts x)
    Attachment {:name "attachment", :state :open, :parent (.-group ^Attachment x)}
    (some-> (group-of x) group-facts)))
