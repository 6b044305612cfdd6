(ns thrum.impl.scope-body
  "The place of a thread that runs the body of a scope. A cancel of the scope interrupts the thread
  at most once. That interrupt ends with the body; a foreign one stays."
  {:no-doc true}
  (:require
   [thrum.impl.interrupt :as interrupt]
   [thrum.impl.place :as place]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.task])
  (:import
   (thrum.impl.interrupt InterruptFlag)
   (thrum.impl.place Cancellable Place)
   (thrum.impl.task ITask)))

(set! *warn-on-reflection* true)

;; No protocol: with those of core a scope with a fork costs 1.2 x the CPU (decision 32).
(definterface IScopeBody
  (^Object expectCancel [])
  (^Object interrupt [])
  (^boolean wasInterrupted [])      ; by the scope? For the thread itself, after finish
  (run [f scope x])
  (^Object finish []))

;; cancelled: the scope is cancelled, or is about to be; assigned before the group's reason, or the
;; flag's lock, which its readers ask first. own-interrupt: nil, while a cancel may send it; :sent;
;; or :not-needed, since the thread knows of the cancel. over: assigned where nothing is called, so
;; that it is set even on a full stack, and again under the flag's lock: no interrupt is sent then.
(deftype ScopeBody [^Cancellable group ^Place outer shielded task ^ITask cancelled-task
                    ^InterruptFlag flag
                    ^:unsynchronized-mutable cancelled
                    ^:unsynchronized-mutable own-interrupt
                    ^:unsynchronized-mutable over]
  IScopeBody
  ;; Before the cancel itself: what the body throws because of the cancel is then known to be ours.
  (expectCancel [_] (set! cancelled true))
  (interrupt [_]
    (sync-point/reached :body/interrupt)
    (locking flag
      (when-not (or own-interrupt over)
        (set! own-interrupt :sent)
        (.send flag))))
  (wasInterrupted [_] (identical? :sent own-interrupt))
  (run [this f scope x]
    (try
      (place/enter! this)
      (f scope x)
      (finally
        (set! over true))))
  ;; From here on the scope does not interrupt the thread.
  (finish [_]
    (locking flag
      (set! over true)
      (when cancelled
        (place/leave-cancelled! flag (when-not shielded outer)))))

  Place
  (group [_] group)
  (task [_] task)
  (cancelledTask [_] cancelled-task)
  (cancelReason [_]
    (or (.cancelReason group)
        (some-> cancelled-task .ownCancelReason)))
  ;; A cancel of the work around it alone interrupts further out.
  (interruptedByCancel [_]
    (and (some? (.ownCancelReason group)) cancelled))
  (outer [_] outer)
  (isOver [_] over)
  (interruptFlag [_] flag)
  (acknowledge [_]
    (when (and (nil? own-interrupt) (.ownCancelReason group)) (set! own-interrupt :not-needed))))

(defn- flag-for ^InterruptFlag [^Place outer shielded]
  (if (and outer (not shielded))
    (.interruptFlag outer)
    (interrupt/interrupt-flag (Thread/currentThread))))

(defn scope-body
  "Returns the place of the calling thread in the body of a scope with this group. outer: its place
  now, or nil."
  ^ScopeBody [group ^Place outer shielded]
  (ScopeBody. group outer shielded
              (some-> outer .task)
              (when-not shielded (some-> outer .cancelledTask))
              (flag-for outer shielded)
              false nil false))
