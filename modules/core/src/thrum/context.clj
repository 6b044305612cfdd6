(ns thrum.context
  "What travels with a task: the caller's dynamic bindings, the wrap around its body, and the scope that nested work belongs to."
  (:require
   [thrum.error :as error])
  (:import
   (clojure.lang Var)))

(set! *warn-on-reflection* true)

(def ^:private ^ThreadLocal scope-here (ThreadLocal.))

(deftype Context [frame wrap scope])

(defn capture
  "Returns the context of the calling thread: its binding frame as it is now, for tasks whose nested work belongs to scope
  (nil: to no scope). The frame is shared, never changed: bindings made later push frames of their own."
  ^Context [wrap scope]
  (Context. (Var/cloneThreadBindingFrame) wrap scope))

(defn current-scope
  "Returns the scope that the calling thread works for, or nil."
  []
  (.get scope-here))

(defn wrapped
  "Returns the thunk that a task runs for this body: what wrap makes of it, called here and now."
  [^Context context body]
  (if-some [wrap (.-wrap context)]
    (or (wrap body) (throw (error/no-thunk wrap)))
    body))

(defn enter!
  "Makes the calling thread, a fresh one, work in this context."
  [^Context context]
  (Var/resetThreadBindingFrame (.-frame context))
  (when-some [scope (.-scope context)]
    (.set scope-here scope)))

(defn on-borrowed-thread
  "Runs f on a thread that belongs to somebody else, for no scope, and leaves its binding frame and scope as they were."
  [f]
  (let [frame (Var/getThreadBindingFrame)
        scope (current-scope)]
    (try
      (.remove scope-here)
      (f)
      (finally
        (Var/resetThreadBindingFrame frame)
        (when scope (.set scope-here scope))))))
