(ns thrum.impl.interrupt
  "The calling thread while it runs the body of a form: a cancel interrupts it at most once, and
  that interrupt ends with the form, where one from somebody else stays."
  {:no-doc true}
  (:require
   [thrum.impl.context :as context]
   [thrum.impl.ledger :as ledger]
   [thrum.impl.point :as point]
   [thrum.impl.task])
  (:import
   (thrum.impl.context Owned Place)
   (thrum.impl.ledger Ledger)
   (thrum.impl.task ITask)))

(set! *warn-on-reflection* true)

(definterface IBody
  (^Object ask [])
  (^Object interrupt [])
  (^boolean wasInterrupted [])      ; by the form? Asked by the thread itself, after finish
  (run [f form x])
  (^Object finish []))

;; asked: the form itself is cancelled, or is about to be. told: its interrupt has been sent, or is
;; not needed any more. sent: it has been. over: set where nothing is called, so that a stack that
;; is full does not keep the thread from it.
(deftype Body [^Owned scope ^Place outer shielded task ^ITask cancelled-task ^Ledger ledger
               ^:volatile-mutable asked
               ^:unsynchronized-mutable told
               ^:unsynchronized-mutable sent
               ^:unsynchronized-mutable over]
  IBody
  ;; Before the cancel itself: whatever the body throws because of it is seen to be the form's own.
  (ask [_] (set! asked true))
  (interrupt [_]
    (point/reached :body/interrupt)
    (locking ledger
      (when-not (or told over)
        (set! told true)
        (set! sent true)
        (.send ledger))))
  (wasInterrupted [_] sent)
  (run [this f form x]
    (try
      (context/stand! this)
      (f form x)
      (finally
        (set! over true))))
  ;; From here on nobody interrupts the thread for this form.
  (finish [_]
    (locking ledger
      (set! told true)
      (when asked
        (context/depart! ledger (when-not shielded outer)))))

  Place
  (scope [_] scope)
  (task [_] task)
  (cancelledTask [_] cancelled-task)
  (cancelReason [_]
    (or (.cancelReason scope)
        (some-> cancelled-task .ownReason)))
  (outer [_] outer)
  (isOver [_] over)
  (ledger [_] ledger)
  (tell [_]
    (when (.ownReason scope) (set! told true))))

(defn- shared-ledger
  "Returns the ledger of the place, or a new one where nothing is shared with it."
  [^Place outer shielded]
  (if (and outer (not shielded))
    (.ledger outer)
    (ledger/ledger (Thread/currentThread))))

(defn body
  "Returns the place of the calling thread in the body of a form with this scope; outer is where it
  stands now, or nil."
  ^Body [scope ^Place outer shielded]
  (Body. scope outer shielded
         (some-> outer .task)
         (when-not shielded (some-> outer .cancelledTask))
         (shared-ledger outer shielded)
         false false false false))
