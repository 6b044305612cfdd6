(ns thrum.impl.wait
  "How a thread waits in Thrum: every wait looks at the state of the place where it stands, not only
  at its interrupt."
  {:no-doc true}
  (:require
   [thrum.impl.context :as context]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.ledger :as ledger]
   [thrum.impl.point :as point])
  (:import
   (thrum.impl.context Place)
   (thrum.impl.ledger Ledger)))

(set! *warn-on-reflection* true)

(defn cancel-reason
  "Returns why the calling thread's work is cancelled, or nil."
  []
  (when-some [place (context/place)]
    (.cancelReason place)))

(defn check-state!
  "Throws CancellationException when the calling thread's work is cancelled."
  []
  (when-some [^Place place (context/place)]
    (when-some [reason (.cancelReason place)]
      (context/notice! place)
      (throw (error/cancelled "This work" reason)))))

(defn check!
  "Throws CancellationException when the calling thread's work is cancelled, InterruptedException
  when the thread was interrupted for another reason."
  []
  (check-state!)
  (when (.isInterrupted (Thread/currentThread))
    ;; A cancel that came since the first look: its state is set before its interrupt is sent.
    (check-state!)
    (Thread/interrupted)
    (throw (InterruptedException.))))

(defn current-ledger
  "Returns the ledger of the calling thread where it stands, a new one where it stands in no place."
  ^Ledger []
  (or (some-> (context/place) .ledger)
      (ledger/ledger (Thread/currentThread))))

(defn undisturbed
  "Returns the value of f, during which no cancel interrupts the calling thread. An interrupt that
  is pending, of ours or another's, is there again afterwards."
  [f]
  (.masked (current-ledger) f))

(defn give-back!
  "Has the calling thread bear an interrupt again that it has used up, and that was not Thrum's."
  []
  (if-some [place (context/place)]
    (.giveBack ^Ledger (.ledger place))
    (.interrupt (Thread/currentThread))))

(defn until
  "Parks the calling thread until (ready?) is true, and then returns true; false when the moment
  came first (nil: never does). Whoever makes it ready unparks the thread. Throws
  CancellationException, InterruptedException."
  [blocker moment ready?]
  (loop []
    (point/reached :wait)
    (cond
      (ready?) true
      (do (check!) (and (some? moment) (deadline/passed? moment))) false
      :else (do (deadline/park-until blocker moment) (recur)))))

(defn sleep!
  "Waits until the moment."
  [moment]
  (until nil moment (constantly false)))
