(ns thrum.impl.attachment
  "Children of a group that are no forks: things that are not tasks, and a task alone in a group of
  its own."
  {:no-doc true}
  (:require
   [thrum.impl.completion :as completion]
   [thrum.impl.context :as context]
   [thrum.impl.group :as group]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.place :as place]
   [thrum.impl.task :as task])
  (:import
   (thrum.impl.group Group)
   (thrum.impl.task Child)))

(set! *warn-on-reflection* true)

;; A child that is not a task
(deftype Attachment [^Group group cancel! ^:volatile-mutable ^long slot]
  Child
  (slot [_] slot)
  (setSlot [_ i] (set! slot i) nil)
  (isGone [_] false)
  (cancelFor [_ _]
    (try (cancel!) (catch Throwable t (jdk/uncaught! t)))))

(defn attach!
  "Adds a child that (cancel!) cancels; what that throws goes to the uncaught exception handler.
  Returns the child, for detach!. Throws :thrum/closed."
  ^Attachment [group cancel!]
  (doto (Attachment. group cancel! -1)
    (->> (group/add-child! group))))

(defn detach!
  "Takes an attachment out, unless it is out."
  [^Attachment attachment]
  (group/child-left! (group/children-of (.-group attachment)) attachment))

(deftype Remover [^Group group on-failed on-end]
  completion/CompletionHandler
  (failed [_ _ t]
    (when on-failed (on-failed t)))
  (ended [_ task]
    (try
      (when on-end (on-end task))
      (finally (group/child-left! (group/children-of group) task)))))

(defn start-alone!
  "Starts f as the only task of a group of that name, below the calling thread's. Its failure
  cancels nothing. Returns the task. :on-failed - called with what f threw, also where a cancel
  came first; :on-end - called with the task when it has ended."
  [name {:keys [on-failed on-end]} f]
  (let [group (group/group name (place/current-group))]
    (group/start! group
                  (task/task (context/capture nil group) (Remover. group on-failed on-end) 0 f))))
