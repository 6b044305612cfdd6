(ns thrum.impl.on-cancel
  "A body whose thread is not interrupted by a cancel of the work around it: a function is called
  instead, once, on another thread."
  {:no-doc true}
  (:require
   [thrum.impl.callers :as callers]
   [thrum.impl.context :as context]
   [thrum.impl.error :as error]
   [thrum.impl.interrupt :as interrupt]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.place :as place]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.wait :as wait])
  (:import
   (java.util.concurrent.locks LockSupport)
   (thrum.impl.interrupt InterruptFlag Withholder)
   (thrum.impl.place Place)))

(set! *warn-on-reflection* true)

;; No protocol: each JDBC call that runs on a database goes through one, see decision 32.
(definterface IGuard
  (^boolean begin [])               ; false: the work is cancelled already
  (run [f])
  (^boolean over [])                ; a cancel from now on interrupts; true: one may have before
  (^Object callNow [])
  (^Object callHasEnded [throwable])
  (^Object interruptInstead [throwable])
  (call [])                         ; nil, :due, :called, :ended, or :interrupted in its place
  (thrown []))                      ; what f, or the start of its thread, threw, or nil

;; flag: the record of the body; its lock is taken under that of the outer one, never the other way
;; round. held: how many shields in the body f has to wait for. call: see IGuard. All but what is
;; volatile is under the lock of the outer record.
(deftype Guard [^Place outer ^InterruptFlag outer-flag ^Thread thread context f
                ^:volatile-mutable flag
                ^:unsynchronized-mutable ^long held
                ^:volatile-mutable call
                ^:unsynchronized-mutable thrown
                ^:volatile-mutable over]
  IGuard
  ;; A cancel sets its state before it interrupts: one that is not seen here finds the guard.
  (begin [this]
    (locking outer-flag
      (let [open (nil? (.cancelReason outer))]
        (when open (.withholdBy outer-flag this))
        open)))
  (run [this f]
    (try
      (f)
      (finally
        (set! over true))))
  (over [_]
    (locking outer-flag
      (set! over true)
      ;; A guard inside that found no thread leaves an interrupt in our record.
      (let [interrupted (or (= :interrupted call)
                            (and (some? flag) (.hasSent ^InterruptFlag flag)))]
        (when flag (.clear ^InterruptFlag flag))
        (.letGo outer-flag)
        (boolean interrupted))))
  (callNow [this]
    (set! call :called)
    (try
      (callers/call! #(.callHasEnded this (try
                                            (context/on-borrowed-thread
                                              (fn [] (context/enter! context nil) (f)))
                                            nil
                                            (catch Throwable t t))))
      (catch Throwable t (.interruptInstead this t))))
  (callHasEnded [_ t]
    (set! thrown t)
    (set! call :ended)
    (LockSupport/unpark thread))
  ;; No thread can be started. This one is the timer's or a canceller's and holds a lock, and f may
  ;; block.
  (interruptInstead [_ t]
    (set! thrown t)
    (set! call :interrupted)
    (.overrule outer-flag))
  (call [_] call)
  (thrown [_] thrown)

  Withholder
  (withholds [_] (not over))
  (cancelled [this]
    (when-not call
      (if (zero? held)
        (.callNow this)
        (set! call :due)))
    (when flag (.passOn ^InterruptFlag flag))
    ;; A wait of ours looks at the state.
    (LockSupport/unpark thread))
  (hold [_]
    (some-> ^Withholder (.around outer-flag) .hold)
    (locking outer-flag
      (set! held (inc held))))
  (release [this]
    (some-> ^Withholder (.around outer-flag) .release)
    (locking outer-flag
      (set! held (dec held))
      (when (and (zero? held) (= :due call)) (.callNow this))))

  Place
  (group [_] (.group outer))
  (task [_] (.task outer))
  (cancelledTask [_] (.cancelledTask outer))
  (cancelReason [_] (.cancelReason outer))
  (interruptedByCancel [_] false)
  (outer [_] outer)
  (isOver [_] over)
  (interruptFlag [this]
    (or flag
        (locking outer-flag
          (or flag (set! flag (interrupt/interrupt-flag thread this))))))
  ;; The function is called although the body knows of its cancel.
  (acknowledge [_]))

(defn begin!
  "Has f called by a cancel of the calling thread's work, in place of an interrupt. Returns what
  end! takes: nil where the thread works for nothing that could be cancelled. Throws
  CancellationException, without an effect, where the work is cancelled."
  [f]
  (when-some [outer (place/current)]
    (let [guard (Guard. outer (.interruptFlag outer) (Thread/currentThread)
                        (context/capture nil nil) f nil 0 nil nil false)]
      (when-not (.begin guard) (wait/check-state!))
      (place/enter! guard)
      guard)))

(defn- await-call!
  "Waits until f has ended, however long that takes, if it was called. Interrupts stay for later."
  [^Guard guard]
  (when (contains? #{:called :ended} (.call guard))
    (wait/until-anyway guard nil #(= :ended (.call guard)))))

(defn- leave!
  "Returns true if an interrupt of ours may have reached the body."
  [^Guard guard]
  (place/enter! (.-outer guard))
  (let [interrupted (.over guard)]
    (sync-point/reached :on-cancel/left)
    (await-call! guard)
    interrupted))

(defn- stopped? [^Guard guard]
  (contains? #{:ended :interrupted} (.call guard)))

(defn- consequence
  "Returns what stands for the body's throwable where the body was stopped, or nil."
  [^Guard guard t]
  (when-some [reason (.cancelReason ^Place (.-outer guard))]
    (cond
      (and (error/casualty? t) (not (instance? InterruptedException t))) t
      (and (stopped? guard) (instance? Exception t)) (error/cancelled "This work" reason t))))

(defn- suppress! [^Throwable t ^Throwable other]
  (when-not (identical? t other) (.addSuppressed t other)))

(defn- stopped!
  "The calling thread knows of its cancel: no interrupt is needed any more. An InterruptedException
  of the body's is foreign, unless an interrupt of ours may have reached the body."
  [^Guard guard t interrupted]
  (place/acknowledge-cancel! (.-outer guard))
  (when (and (instance? InterruptedException t) (not interrupted)) (wait/give-back!)))

(defn- throwable ^Throwable [guard t interrupted]
  (let [stands-for (consequence guard t)]
    (when stands-for (stopped! guard t interrupted))
    (or stands-for t)))

(defn end!
  "Ends what begin! began, on the same thread. Returns when f has ended, if it was called. t: what
  the body threw, or nil. Returns what to throw in its place, with what f threw suppressed: the same
  throwable, or a CancellationException around it where f was called and t is no Error. After a body
  with a value, a cancel that has come interrupts the thread, and what f threw goes to the thread's
  uncaught exception handler. Where f found no thread, its interrupt counts as the call, and the
  reason as what f threw."
  [^Guard guard t]
  (let [interrupted (when guard (leave! guard))
        thrown (when guard (.thrown guard))
        t (if (and guard t) (throwable guard t interrupted) t)]
    (when thrown
      (if t (suppress! t thrown) (jdk/uncaught! thrown)))
    t))

(defn- attempt
  "Returns the value of the body, or throws what stands for its throwable."
  [^Guard guard body]
  (let [value (try
                (.run guard body)
                (catch Throwable t
                  (throw (end! guard t))))]
    (end! guard nil)
    value))

(defn call
  "Returns the value of the body, a function; see thrum.core/on-cancel."
  [f body]
  (if-some [guard (begin! f)]
    (attempt guard body)
    (body)))
