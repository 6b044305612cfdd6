(ns thrum.context
  "What travels with a task: the caller's dynamic bindings, the wrap around its body, and the scope that nested work belongs to;
  and the place where a thread stands: in a task, in the body of a form."
  (:require
   [thrum.error :as error])
  (:import
   (clojure.lang Var)))

(set! *warn-on-reflection* true)

;; What work belongs to: a scope.
(definterface Owned
  (cancelReason [])                 ; why it is cancelled, or nil
  (opener []))                      ; the task that cannot end before it, or nil

;; Where the calling thread stands: in the body of a task or of a form such as with-scope. Forms nest, a task is the outermost.
(definterface Place
  (scope [])                        ; what nested work belongs to, or nil
  (task [])                         ; the task whose thread this is, or nil
  (cancelledTask [])                ; the same, unless a shield stands between
  (cancelReason [])                 ; why work here is cancelled, or nil
  (^Object noticed [])              ; the thread knows of its cancel: an interrupt for it is used up
  (^Object disown [])               ; what was taken for somebody else's interrupt was a form's further in
  (^boolean alarmed [])             ; has an interrupt been sent here that nobody has noticed?
  (^Object mask [])                 ; no interrupt from now on
  (^Object unmask [^Thread self]))  ; what came meanwhile is sent now

(def ^:private ^ThreadLocal here (ThreadLocal.))

(deftype Context [frame wrap scope])

(defn place
  "Returns where the calling thread stands, or nil."
  ^thrum.context.Place []
  (.get here))

(defn stand!
  "The calling thread stands in this place from now on; nil: in none."
  [place]
  (.set here place))

(defn current-scope
  "Returns the scope that the calling thread works for, or nil."
  []
  (some-> (place) .scope))

(defn capture
  "Returns the context of the calling thread: its binding frame as it is now, for tasks whose nested work belongs to scope
  (nil: to no scope). The frame is shared, never changed: bindings made later push frames of their own."
  ^Context [wrap scope]
  (Context. (Var/cloneThreadBindingFrame) wrap scope))

(defn wrapped
  "Returns the thunk that a task runs for this body: what wrap makes of it, called here and now."
  [^Context context body]
  (if-some [wrap (.-wrap context)]
    (or (wrap body) (throw (error/no-thunk wrap)))
    body))

(defn enter!
  "Makes the calling thread work in this context, and stand in this place."
  [^Context context place]
  (Var/resetThreadBindingFrame (.-frame context))
  (stand! place))

(defn on-borrowed-thread
  "Runs f on a thread that belongs to somebody else, and leaves its binding frame and place as they were."
  [f]
  (let [frame (Var/getThreadBindingFrame)
        place (place)]
    (try
      (stand! nil)
      (f)
      (finally
        (Var/resetThreadBindingFrame frame)
        (stand! place)))))
