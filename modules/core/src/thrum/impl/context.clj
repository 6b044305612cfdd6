(ns thrum.impl.context
  "What travels with a task: the caller's dynamic bindings, the wrap around its body, and the scope
  that nested work belongs to; and the place where a thread stands: in a task, in the body of a
  form."
  {:no-doc true}
  (:require
   [thrum.impl.error :as error]
   [thrum.impl.ledger])
  (:import
   (clojure.lang Var)
   (thrum.impl.ledger Ledger)))

(set! *warn-on-reflection* true)

;; What work belongs to: a scope.
(definterface Owned
  (ownReason [])                    ; why it is cancelled itself, or nil
  (cancelReason [])                 ; the same, or why what it belongs to is
  (opener []))                      ; the task that cannot end before it, or nil

;; Where the calling thread stands: in the body of a task or of a form such as with-scope. Forms
;; nest, a task is the outermost.
(definterface Place
  (scope [])                        ; what nested work belongs to, or nil
  (task [])                         ; the task whose thread this is, or nil
  (cancelledTask [])                ; the same, unless a shield stands between
  (cancelReason [])                 ; why work here is cancelled, or nil
  (outer [])                        ; where the thread stood before, or nil
  (^boolean isOver [])              ; has it ended? A thread whose stack was full may have been left there
  (ledger [])                       ; whose the thread's interrupt is
  (^Object tell [])) ; if it is cancelled itself, the thread knows that: it needs no interrupt

(def ^:private ^ThreadLocal here (ThreadLocal.))

(deftype Context [frame wrap scope])

(defn place
  "Returns where the calling thread stands, or nil."
  ^thrum.impl.context.Place []
  (loop [^Place place (.get here)]
    (if (and place (.isOver place))
      (recur (.outer place))
      place)))

(defn stand!
  "The calling thread stands in this place from now on; nil: in none."
  [place]
  (.set here place))

;; Interrupts

(defn notice!
  "The calling thread, which stands in this place, knows that its work is cancelled: an interrupt of
  ours is used up, and one that is still to come is not needed."
  [^Place place]
  (let [^Ledger ledger (.ledger place)]
    (locking ledger
      (loop [^Place place place]
        (when (and place (identical? ledger (.ledger place)))
          (.tell place)
          (recur (.outer place))))
      (.clear ledger))))

(defn depart!
  "The calling thread leaves a place that was cancelled for itself, for an outer one (nil: none) on
  the same ledger: interrupts of ours end with the place. Where the work in the outer one is
  cancelled as well, its interrupt may have become one with the place's: it is sent again."
  [^Ledger ledger ^Place outer]
  (.clear ledger)
  (when (and outer (.cancelReason outer))
    (notice! outer)
    (.send ledger)))

;; What travels

(defn current-scope
  "Returns the scope that the calling thread works for, or nil."
  []
  (some-> (place) .scope))

(defn capture
  "Returns the context of the calling thread: its binding frame as it is now, for tasks whose nested
  work belongs to scope (nil: to no scope). The frame is shared, never changed: bindings made later
  push frames of their own. Throws :thrum/invalid for a wrap that is no function."
  ^Context [wrap scope]
  (when-not (or (nil? wrap) (ifn? wrap)) (throw (error/no-wrap wrap)))
  (Context. (Var/cloneThreadBindingFrame) wrap scope))

(defn wrapped
  "Returns the thunk that a task runs for this body: what wrap makes of it, called here and now.
  Throws :thrum/invalid where that is no function."
  [^Context context body]
  (if-some [wrap (.-wrap context)]
    (let [thunk (wrap body)]
      (if (ifn? thunk) thunk (throw (error/no-thunk thunk))))
    body))

(defn enter!
  "Makes the calling thread work in this context, and stand in this place."
  [^Context context place]
  (Var/resetThreadBindingFrame (.-frame context))
  (stand! place))

(defn on-borrowed-thread
  "Runs f on a thread that belongs to somebody else, and leaves its binding frame and place as they
  were."
  [f]
  (let [frame (Var/getThreadBindingFrame)
        place (place)]
    (try
      (stand! nil)
      (f)
      (finally
        (Var/resetThreadBindingFrame frame)
        (stand! place)))))
