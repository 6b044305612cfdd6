(ns thrum.impl.supervise
  "A scope's body waits for its forks before its end: for those so far, or one after the other."
  {:no-doc true}
  (:require
   [thrum.impl.completed :as completed]
   [thrum.impl.error :as error]
   [thrum.impl.group :as group]
   [thrum.impl.place :as place]
   [thrum.impl.scope :as scope]
   [thrum.impl.wait :as wait])
  (:import
   (thrum.impl.place Place)
   (thrum.impl.scope Scope)))

(set! *warn-on-reflection* true)

(defn- in-body?
  "True if the calling thread runs the scope's body."
  [^Scope scope]
  (loop [^Place place (place/current)]
    (and (some? place)
         (or (identical? place (.-body scope)) (recur (.outer place))))))

(defn- check-body! [^Scope scope]
  (wait/check-state!)
  (group/check-open! (.-group scope))
  (when-not (in-body? scope)
    (throw (error/invalid (str "Only the thread of the scope's body waits for the forks of "
                               (scope/scope-name scope) ": a fork would wait for itself")
                          {:scope (scope/scope-name scope)}))))

(defn join!
  "Waits until the forks of the scope that run now have ended, without its daemons. Throws
  :thrum/closed, :thrum/invalid on a thread that does not run the body, CancellationException,
  InterruptedException."
  [^Scope scope]
  (check-body! scope)
  (let [group (.-group scope)]
    (doseq [fork (filter scope/awaited? (group/children group))]
      (group/await! group #(not (group/holds? group fork))))
    (wait/check!)))

(defn- not-kept [scope]
  (error/invalid (str "The scope " (scope/scope-name scope) " does not keep its forks: completions"
                      " needs the option {:on-error :keep}; as-completed takes any tasks")
                 {:scope (scope/scope-name scope)}))

(defn- asked-late [scope]
  (error/invalid (str "Too many forks of " (scope/scope-name scope) " had ended before completions"
                      " was called: call it before the forks")
                 {:scope (scope/scope-name scope)}))

(defn- handed-out [^Scope scope]
  (lazy-seq
    (check-body! scope)
    (when-some [task (completed/next! (.-completed scope) #(scope/forks-done? scope))]
      (cons task (handed-out scope)))))

(defn completions
  "Returns the tasks of a scope with :on-error :keep as a lazy seq, in the order in which they end.
  Throws as join! does, and :thrum/invalid for another scope, or where too many forks have been
  dropped."
  [^Scope scope]
  (check-body! scope)
  (when-not (.-completed scope) (throw (not-kept scope)))
  (when-not (completed/claim! (.-completed scope)) (throw (asked-late scope)))
  (handed-out scope))
