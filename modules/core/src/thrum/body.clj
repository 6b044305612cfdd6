(ns thrum.body
  "The calling thread while it runs the body of a form: a cancel interrupts it at most once, and that interrupt ends with the
  form, where one from somebody else stays."
  (:require
   [thrum.context]
   [thrum.point :as point]
   [thrum.task])
  (:import
   (thrum.context Owned Place)
   (thrum.task ITask)))

(set! *warn-on-reflection* true)

(definterface IBody
  (outer [])
  (^Object interrupt [])
  (^Object send [])
  (^Object finish [thrown])
  (^Object noticedHere [])
  (^boolean alarmedHere [])
  (^Object setForeign [foreign])
  (^Object setThread [thread]))

(defn- alarmed? [^Place place]
  (and (some? place) (.alarmed place)))

;; wanted: somebody asked for an interrupt. sent: it is under way, or not needed any more. foreign: the thread had been
;; interrupted before. used: an InterruptedException or a wait of ours has used the interrupt up.
(deftype Body [^Owned scope ^Place outer shielded task ^ITask cancelled-task
               ^:unsynchronized-mutable ^Thread thread
               ^:unsynchronized-mutable wanted
               ^:unsynchronized-mutable sent
               ^:unsynchronized-mutable foreign
               ^:unsynchronized-mutable used]
  IBody
  (outer [_] outer)
  (interrupt [this]
    (point/reached :body/interrupt)
    (locking this
      (set! wanted true)
      (.send this)))
  (send [this]
    (locking this
      (when (and wanted thread (not sent))
        (set! sent true)
        (set! foreign (.isInterrupted thread))
        (.interrupt thread))))
  ;; What follows is called by the thread itself. From finish on nobody interrupts it.
  (finish [this thrown]
    (locking this
      (set! thread nil)
      (when (and sent (not used) (not foreign))
        (Thread/interrupted))
      (when (instance? InterruptedException thrown) (set! used true))
      ;; Two interrupts may have become one, which this form has used up, or cleared.
      (when (and sent (not shielded) (alarmed? outer))
        (when-not foreign (.disown outer))
        (.interrupt (Thread/currentThread)))
      (when (and sent foreign used)
        (.interrupt (Thread/currentThread)))))
  (noticedHere [this]
    (locking this
      (when (.cancelReason scope)
        (when (and sent (not used) (not foreign)) (Thread/interrupted))
        (set! sent true)
        (set! used true))))
  (alarmedHere [this]
    (locking this (and sent (not used))))
  (setForeign [this f]
    (locking this (set! foreign f)))
  (setThread [this t]
    (locking this
      (set! thread t)
      (.send this)))

  Place
  (scope [_] scope)
  (task [_] task)
  (cancelledTask [_] cancelled-task)
  (cancelReason [_]
    (or (.cancelReason scope)
        (some-> cancelled-task .ownReason)))
  (noticed [this]
    (.noticedHere this)
    (when (and outer (not shielded)) (.noticed outer)))
  (disown [this]
    (.setForeign this false)
    (when (and outer (not shielded)) (.disown outer)))
  (alarmed [this]
    (or (.alarmedHere this)
        (and (not shielded) (alarmed? outer))))
  (mask [this]
    (.setThread this nil)
    (when (and outer (not shielded)) (.mask outer)))
  (unmask [this self]
    (when (and outer (not shielded)) (.unmask outer self))
    (.setThread this self)))

(defn body
  "Returns the place of the calling thread in the body of a form with this scope; outer is where it stands now, or nil."
  ^Body [scope ^Place outer shielded]
  (Body. scope outer shielded
         (some-> outer .task)
         (when-not shielded (some-> outer .cancelledTask))
         (Thread/currentThread) false false false false))
