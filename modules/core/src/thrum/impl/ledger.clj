(ns thrum.impl.ledger
  "Whose a thread's interrupt is. The JVM has one flag for all of them; a ledger knows whether Thrum
  has set it, and whether it had been set before by somebody else. All places of a thread share one
  ledger; a shield cuts, and has its own."
  {:no-doc true})

(set! *warn-on-reflection* true)

;; send is called by anybody, the rest by the thread itself. Whoever decides by more than the
;; ledger's own state locks it.
(definterface ILedger
  (^Object send [])                                     ; an interrupt of ours
  (^Object clear [])                                    ; ours is used up, or not needed any more; another's stays
  (^Object giveBack [])                                 ; another's, which the thread has used up, is to be seen again
  (masked [f])                                          ; the value of f, during which ours wait
  (mask [])
  (^Object unmask [masked ^boolean interrupted])) ; interrupted: the flag was set before

;; thread: nil while it is masked. wanted: an interrupt of ours waits. ours: one has been sent that
;; may not have been used up. foreign: another came before it. One that comes later cannot be told
;; from ours.
(deftype Ledger [^:unsynchronized-mutable ^Thread thread
                 ^:unsynchronized-mutable wanted
                 ^:unsynchronized-mutable ours
                 ^:unsynchronized-mutable foreign]
  ILedger
  (send [this]
    (locking this
      (if thread
        (do
          (when-not ours
            (set! ours true)
            (set! foreign (.isInterrupted thread)))
          (.interrupt thread))
        (set! wanted true))))
  (clear [this]
    (locking this
      (set! wanted false)
      (when ours
        (set! ours false)
        (if foreign
          (.interrupt (Thread/currentThread))
          (Thread/interrupted)))))
  (giveBack [this]
    (locking this
      (set! foreign true)
      (.interrupt (Thread/currentThread))))
  (masked [this f]
    (let [masked (.mask this)]
      (try
        (let [interrupted (Thread/interrupted)]
          (try
            (f)
            (finally (.unmask this masked interrupted))))
        ;; On a stack that is full no call succeeds, but this does.
        (finally (when masked (set! thread masked))))))
  (mask [this]
    (locking this
      (let [masked thread]
        (set! thread nil)
        masked)))
  (unmask [this masked interrupted]
    (locking this
      ;; What is set now came meanwhile, and was not ours.
      (when (.isInterrupted (Thread/currentThread))
        (set! foreign true))
      (when interrupted
        (.interrupt (Thread/currentThread)))
      (when masked
        (set! thread masked)
        (when wanted
          (set! wanted false)
          (.send this))))))

(defn ledger
  "Returns the ledger of a thread that has not been interrupted by us."
  ^Ledger [thread]
  (Ledger. thread false false false))
