(ns thrum.impl.context
  "What travels from a caller to a task: dynamic bindings, the wrap around its body, and the group
  that nested work belongs to."
  {:no-doc true}
  (:require
   [thrum.impl.error :as error]
   [thrum.impl.place :as place])
  (:import
   (clojure.lang Var)
   (java.util.concurrent.atomic AtomicReference)))

(set! *warn-on-reflection* true)

(deftype Context [frame wrap group])

(defn capture
  "Returns the context of the calling thread: its binding frame as it is now, for tasks whose nested
  work belongs to the group (nil: to none). The frame is shared and never changes: later bindings
  push frames of their own. Throws :thrum/invalid for a wrap that is not a function."
  ^Context [wrap group]
  (when-not (or (nil? wrap) (ifn? wrap)) (throw (error/no-wrap wrap)))
  (Context. (Var/cloneThreadBindingFrame) wrap group))

(defn wrapped
  "Returns the thunk that a task runs for this body: the result of wrap, called here and now. Throws
  :thrum/invalid unless that is a function."
  [^Context context body]
  (if-some [wrap (.-wrap context)]
    (let [thunk (wrap body)]
      (if (ifn? thunk) thunk (throw (error/no-thunk thunk))))
    body))

(defn- once
  "Returns a thunk that calls the body and lets go of it; it throws :thrum/invalid from then on."
  [body]
  (let [body (AtomicReference. body)]
    (fn []
      (if-some [body (.getAndSet body nil)]
        (body)
        (throw (error/called-again))))))

(defn wrapped-once
  "As wrapped, where the wrap may call the body once: that may let go of what it closed over."
  [^Context context body]
  (if (.-wrap context) (wrapped context (once body)) body))

(defn enter!
  "Gives the calling thread the context's bindings and this place."
  [^Context context place]
  (Var/resetThreadBindingFrame (.-frame context))
  (place/enter! place))

(defn on-borrowed-thread
  "Runs f on a thread of other code, and restores the thread's binding frame and place."
  [f]
  (let [frame (Var/getThreadBindingFrame)
        place (place/current)]
    (try
      (place/enter! nil)
      (f)
      (finally
        (Var/resetThreadBindingFrame frame)
        (place/enter! place)))))
