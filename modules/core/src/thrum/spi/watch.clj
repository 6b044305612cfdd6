(ns thrum.spi.watch
  "What runs in this process, for those who show it. Limiters and what thrum.spi/register! has are
  always known; scopes, fan-outs, joins, executors and detached tasks only from watch! on. What
  belongs to one of these is found as its child."
  (:require
   [thrum.impl.inspect :as inspect]
   [thrum.impl.registry :as registry]))

(set! *warn-on-reflection* true)

(defn watch!
  "Keeps scopes, fan-outs, joins, executors and detached tasks that begin from now on, and counts
  tasks; or, given false, keeps them no more. Returns whether that is a change. While on, a scope
  costs some 100 ns more, a task some 10 ns."
  [on?]
  (registry/watch! on?))

(defn tick!
  "Brings the time up to date by which things know when they began. To be called every few ms while
  watched: a call of System/nanoTime for each task would cost more."
  []
  (registry/tick!))

(defn observe!
  "Has f called, (f kind thing), for each :task and :scope that begins from now on, on its thread,
  which waits. f returns nil, or a function of the thing that is called, also on that thread, when
  it has ended: see facts. Neither may throw. There is one observer; nil takes it away. No effect
  while watching is off. Without an observer a task costs some ns more while watched."
  [f]
  (registry/observe! f))

(defn ended
  "Returns how many tasks have ended since watch!, as {:done n, :failed n, :cancelled n}; nil while
  watching is off."
  []
  (registry/ended-counts))

(defn leaked!
  "Returns the detached tasks that were collected before they ended, as maps of :name and :since,
  each once: they waited for an object without another reference. Only where the JDK does not keep
  every thread itself, by -Djdk.trackAllThreads=false."
  []
  (registry/leaked!))

(defn registered
  "Returns all that is known, as maps of :kind, :thing, :describe (a function of the thing to a map,
  or nil: see facts), :since (a value of System/nanoTime) and :thread, the one that made it, nil
  where that was collected. A thing that has ended may be among them until it is collected."
  []
  (registry/registered))

(defn title
  "Returns what a thread that is parked for one of core's own things waits for: its :kind, :task,
  :permit or :children (the tasks of a scope, or of a fan-out), and :name; for a task also its
  :thread. nil for anything else. Takes no lock."
  [thing]
  (inspect/title thing))

(defn facts
  "Returns what one of core's own things knows of itself; nil for anything else. :name; :state -
  :open, :cancelled or :ended; for a task :running, :done, :failed or :cancelled, also where its
  thread runs on.

  All but tasks and limiters: :group, an object that stands for it; :parent, that of what it belongs
  to, or nil; :opener, the task whose thread opened it, or nil; :deadline, a value of
  System/nanoTime, or nil; :reason, why it was cancelled or has ended; :running and :started, how
  many children; :children, those that run: tasks, and groups. Scopes: :body-ended?, :shield?,
  :closing?, :timeout-ms. Tasks: :parent; :thread, nil where it has ended; :since, 0 where it is not
  known; :index. Limiters: :permits, :in-use, :waiting, :rejected; :askers, the threads that wait,
  in order; :owners, by thread, how many of the permits that it asked for have not been returned;
  :granted, how often a permit has been granted."
  [thing]
  (inspect/facts thing))
