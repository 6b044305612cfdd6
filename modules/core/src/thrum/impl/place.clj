(ns thrum.impl.place
  "The place of a thread: the task, or the body of a scope, that it runs. Places nest; a task is the
  outermost."
  {:no-doc true}
  (:require
   [thrum.impl.interrupt])
  (:import
   (thrum.impl.interrupt InterruptFlag)))

(set! *warn-on-reflection* true)

;; What work belongs to: a group.
(definterface Cancellable
  (ownCancelReason [])              ; why it is cancelled itself, or nil
  (cancelReason [])                 ; the same, or why what it belongs to is cancelled
  (endReason [])                    ; why it, or what it belongs to, has ended, or nil
  (opener []))                      ; the task that cannot end before it, or nil

(definterface Place
  (group [])                        ; the group that nested work belongs to, or nil
  (task [])                         ; the task whose thread this is, or nil
  (cancelledTask [])                ; the same, but nil inside a shield
  (cancelReason [])                 ; why work here is cancelled, or nil
  (^boolean interruptedByCancel []) ; true if a cancel of its own is to interrupt the thread
  (outer [])                        ; the thread's place before this one, or nil
  (^boolean isOver [])              ; true if it has ended, even if a full stack kept it here
  (interruptFlag [])                ; the record of the thread's interrupts
  (^Object acknowledge []))         ; if it is cancelled itself: it needs no interrupt any more

(def ^:private ^ThreadLocal places (ThreadLocal.))

(defn current
  "Returns the calling thread's place, or nil."
  ^thrum.impl.place.Place []
  (loop [^Place place (.get places)]
    (if (and place (.isOver place))
      (recur (.outer place))
      place)))

(defn current-group
  "Returns the group that the calling thread's work belongs to, or nil."
  []
  (some-> (current) .group))

(defn enter!
  "Makes this the calling thread's place; nil: none."
  [place]
  (.set places place))

(defn acknowledge-cancel!
  "Records that the calling thread, at this place, knows of its cancel: an interrupt of ours is used
  up, and one still to come is not needed."
  [^Place place]
  (let [^InterruptFlag flag (.interruptFlag place)]
    (locking flag
      (loop [^Place place place]
        (when (and place (identical? flag (.interruptFlag place)))
          (.acknowledge place)
          (recur (.outer place))))
      (.clear flag))))

(defn interrupted?
  "True if a cancel of the place, or of one around it with the same flag, has interrupted the
  thread or is to; nil: false."
  [^Place place]
  (when place
    (let [flag (.interruptFlag place)]
      (loop [^Place place place]
        (and (some? place)
             (identical? flag (.interruptFlag place))
             (or (.interruptedByCancel place)
                 (recur (.outer place))))))))

(defn leave-cancelled!
  "Ends our interrupts as the calling thread leaves a cancelled place for an outer one (nil: none)
  with the same flag. Where the outer place is cancelled as well, its interrupt may have merged
  with the inner one's: it is sent again."
  [^InterruptFlag flag ^Place outer]
  (.clear flag)
  (when (interrupted? outer)
    (acknowledge-cancel! outer)
    (.send flag)))
