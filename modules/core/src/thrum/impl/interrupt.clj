(ns thrum.impl.interrupt
  "A thread's interrupt flag, and who set it: a cancel of Thrum's, or other code. The JVM has one
  flag for both. All places of a thread share one record of it; a shield and a guard have a record
  of their own."
  {:no-doc true})

(set! *warn-on-reflection* true)

;; The way of an interrupt. A cancel sets the state of its work first: every wait of ours checks
;; that. Then it turns to a place of the thread, a task or the body of a scope, which sends one
;; interrupt at most, and none when the thread knows of the cancel, since a wait has thrown for it,
;; or has left the place. The record of the thread, under whose lock all this is decided, has then:
;;
;;   none    -> ours      the thread is interrupted
;;   none    -> pending   not yet: the thread is masked, or an on-cancel withholds it
;;   ours    -> pending   an on-cancel begins, and the thread may not have used it up
;;   pending -> ours      the mask, or the on-cancel, has ended
;;   either  -> none      the thread knows of the cancel, or leaves the place; the flag is set again
;;                        for a foreign interrupt that came before ours
;;
;; It has both where another is sent while a thread that has been interrupted is masked.

;; Stands between a record and its thread: it is called in place of our interrupts.
(definterface Withholder
  (^boolean withholds [])
  (^Object cancelled [])            ; called with the lock of the record
  (^Object hold [])                 ; puts off what it does, and those around it, until a release
  (^Object release []))

;; Any thread may send; the other methods are for the thread itself. Hold the lock of the record to
;; decide by more than its own state.
;; No protocol: with those of core a scope with a fork costs 1.2 x the CPU (decision 32).
(definterface IInterruptFlag
  (^Object send [])                 ; interrupts the thread for a cancel
  (^Object clear [])                ; drops our interrupt; a foreign one stays
  (^Object giveBack [])             ; sets the flag again for a foreign interrupt that was used up
  (sent [])                         ; how many interrupts of ours were sent
  (^Object takeBack [sent])         ; drops a foreign interrupt that has had its effect; one of ours
                                    ; stays that was sent since that many
  (^Object withholdBy [withholder])
  (^Object letGo [])                ; ends that; an interrupt that was withheld is sent
  (^Object overrule [])             ; ends that, and sends one
  (^boolean hasSent [])             ; true from an interrupt of ours on, until it is dropped
  (^Object passOn [])               ; a cancel further out was withheld: asks the withholder here
  (around [])                       ; the withholder whose body the record is for, or nil
  (masked [f])                      ; the value of f; our interrupts wait until f has ended
  (mask [])
  (^Object unmask [masked ^boolean interrupted]))   ; interrupted: the flag was set before

;; thread: nil while it is masked. pending: an interrupt of ours waits for the end of the mask.
;; ours: one was sent and may not have been used up. foreign: the flag was set before ours. A
;; foreign interrupt that comes after ours cannot be distinguished from it. sent: how many of ours
;; there were, in a field of 4 bytes.
(deftype InterruptFlag [^:unsynchronized-mutable ^Thread thread
                        ^:unsynchronized-mutable pending
                        ^:unsynchronized-mutable ours
                        ^:unsynchronized-mutable foreign
                        ^:unsynchronized-mutable ^Withholder withholder
                        ^:unsynchronized-mutable sent
                        around]
  IInterruptFlag
  (send [this]
    (locking this
      (cond
        (nil? thread) (set! pending true)
        (and withholder (.withholds withholder)) (do (set! pending true) (.cancelled withholder))
        :else (do
                (when-not ours
                  (set! ours true)
                  (set! foreign (.isInterrupted thread)))
                (set! sent (inc (long sent)))
                (.interrupt thread)))))
  (clear [this]
    (locking this
      (set! pending false)
      (when ours
        (if foreign
          (.interrupt (Thread/currentThread))
          (Thread/interrupted))
        ;; Last: a clear that a full stack broke off can be done again.
        (set! ours false))))
  (giveBack [this]
    (locking this
      (set! foreign true)
      (.interrupt (Thread/currentThread))))
  (sent [this]
    (locking this sent))
  (takeBack [this n]
    (locking this
      (Thread/interrupted)
      (when (and ours thread (< (long n) (long sent)))
        (set! foreign false)
        (.interrupt thread))))
  (around [_] around)
  (withholdBy [this w]
    (locking this
      (set! withholder w)
      ;; One that the thread has not used up yet.
      (when ours
        (.clear this)
        (.send this))))
  (letGo [this]
    (locking this
      (set! withholder nil)
      (when (and pending thread)
        (set! pending false)
        (.send this))))
  (overrule [this]
    (locking this
      (set! withholder nil)
      (set! pending false)
      (.send this)))
  (hasSent [this]
    (locking this (boolean ours)))
  (passOn [this]
    (locking this
      (when (and thread withholder (.withholds withholder))
        (.cancelled withholder))))
  (masked [this f]
    (let [masked (.mask this)]
      (try
        (let [interrupted (Thread/interrupted)]
          (try
            (f)
            (finally (.unmask this masked interrupted))))
        ;; On a full stack no call succeeds, but this assignment does.
        (finally (when masked (set! thread masked))))))
  (mask [this]
    (locking this
      (let [masked thread]
        (set! thread nil)
        masked)))
  (unmask [this masked interrupted]
    (locking this
      ;; An interrupt that came while the thread was masked is foreign.
      (when (.isInterrupted (Thread/currentThread))
        (set! foreign true))
      (when interrupted
        (.interrupt (Thread/currentThread)))
      (when masked
        (set! thread masked)
        (when pending
          (set! pending false)
          (.send this))))))

(defn interrupt-flag
  "Returns the record of a thread that Thrum has not interrupted. around: the withholder in whose
  body the thread is, or nil."
  (^InterruptFlag [thread] (interrupt-flag thread nil))
  (^InterruptFlag [thread around] (InterruptFlag. thread false false false nil 0 around)))

(defn holding
  "Returns the value of f, during which the withholders around the record do nothing."
  [^InterruptFlag flag f]
  (if-some [^Withholder around (.around flag)]
    (try
      (.hold around)
      (f)
      (finally (.release around)))
    (f)))
