(ns thrum.impl.wait
  "How a thread waits: every wait checks the state of the thread's place, not only its interrupt
  flag."
  {:no-doc true}
  (:require
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.interrupt :as interrupt]
   [thrum.impl.place :as place]
   [thrum.impl.sync-point :as sync-point])
  (:import
   (java.util.concurrent Future)
   (java.util.concurrent.atomic AtomicReference)
   (java.util.concurrent.locks LockSupport)
   (thrum.impl.interrupt InterruptFlag)
   (thrum.impl.place Cancellable Place)))

(set! *warn-on-reflection* true)

(defn cancel-reason
  "Returns why the calling thread's work is cancelled, or nil."
  []
  (when-some [place (place/current)]
    (.cancelReason place)))

(defn check-state!
  "Throws CancellationException when the calling thread's work is cancelled. place: the thread's, or
  nil, where it is known."
  ([] (check-state! (place/current)))
  ([^Place place]
   (when place
     (when-some [reason (.cancelReason place)]
       (place/acknowledge-cancel! place)
       (throw (error/cancelled "This work" reason))))))

(defn check!
  "Throws CancellationException when the calling thread's work is cancelled, InterruptedException
  when the thread was interrupted for another reason."
  []
  (check-state!)
  (when (.isInterrupted (Thread/currentThread))
    ;; A cancel sets its state before it sends its interrupt: one that came since is seen here.
    (check-state!)
    (Thread/interrupted)
    (throw (InterruptedException.))))

(defn current-flag
  "Returns the record of the calling thread's interrupts, a new one where the thread has no place."
  ^InterruptFlag []
  (or (some-> (place/current) .interruptFlag)
      (interrupt/interrupt-flag (Thread/currentThread))))

(defn interrupts-sent
  "Returns how many interrupts cancels have sent to the calling thread, at its place."
  []
  (if-some [place (place/current)]
    (.sent ^InterruptFlag (.interruptFlag place))
    0))

(defn take-back!
  "Drops an interrupt of the calling thread that no cancel has sent, and that has had its effect.
  That of a cancel stays where it came since interrupts-sent returned sent."
  [sent]
  (.takeBack (current-flag) sent))

(defn undisturbed
  "Returns the value of f, during which no cancel interrupts the calling thread. The thread is
  interrupted again afterwards if it was before or meanwhile."
  [f]
  (.masked (current-flag) f))

(defn shielded
  "As undisturbed; nor does a cancel call a function of on-cancel around the calling thread's work,
  until f has ended."
  [f]
  (let [flag (current-flag)]
    (interrupt/holding flag #(.masked flag f))))

(defn give-back!
  "Interrupts the calling thread again for a foreign interrupt that it has used up."
  []
  (if-some [place (place/current)]
    (.giveBack ^InterruptFlag (.interruptFlag place))
    (.interrupt (Thread/currentThread))))

;; To park a platform thread and to wake it costs more than a fork that does little. A virtual
;; thread that yields comes back after those that wait to begin, and often finds what it wants.

(def ^:private ^:const looks "Some 4 us." 128)

(def ^:private alone? (= 1 (.availableProcessors (Runtime/getRuntime))))

(defn- spin! [ready?]
  (loop [left (long looks)]
    (when (and (pos? left) (not (ready?)))
      (Thread/onSpinWait)
      (recur (dec left)))))

(defn look!
  "Before a wait that is often short. A platform thread calls (ready?) for a moment, until it is
  true; a virtual one lets others run once, unless it is true. See decision 52."
  [ready?]
  (cond
    (.isVirtual (Thread/currentThread)) (when-not (ready?) (Thread/yield))
    (not alone?) (spin! ready?)))

(defn room
  "Overflows a stack that has less room than so many frames; returns n otherwise."
  ^long [^long n]
  (if (pos? n) (inc (long (room (dec n)))) 0))

;; A waiter: where the thread stands that waits for others, nil while none does

(defn- ready-now?
  "Returns what (ready?) does; where it is false, once more with the calling thread as the waiter
  (nil: none)."
  [^AtomicReference waiter ready?]
  (or (ready?)
      (and (some? waiter)
           (do (.set waiter (Thread/currentThread))
               (ready?)))))

(defn signal!
  "Unparks the thread that waits, if one does."
  [^AtomicReference waiter]
  (when-some [thread (.get waiter)]
    (when (.compareAndSet waiter thread nil)
      (LockSupport/unpark thread))))

(defn await-signal!
  "Parks the calling thread until (ready?) is true, and then returns true; it is called again after
  each signal! of the waiter (nil: none). Returns false when the deadline (nil: none) comes first.
  Throws CancellationException, InterruptedException."
  [blocker waiter deadline ready?]
  (loop []
    (sync-point/reached :wait)
    (cond
      (ready-now? waiter ready?) true
      (do (check!) (and (some? deadline) (deadline/passed? deadline))) false
      :else (do (deadline/park-until blocker deadline) (recur)))))

(defn until
  "Parks the calling thread until (ready?) is true, and then returns true; returns false when the
  deadline (nil: none) comes first. The thread that makes it ready unparks this one. Throws
  CancellationException, InterruptedException."
  [blocker deadline ready?]
  (await-signal! blocker nil deadline ready?))

(defn until-anyway
  "Waits as await-signal!, however long that takes: no cancel interrupts the calling thread, and an
  interrupt is kept for its next wait."
  [blocker waiter ready?]
  (undisturbed
    #(loop [interrupted? false]
       (if (ready-now? waiter ready?)
         (when interrupted? (.interrupt (Thread/currentThread)))
         (do (LockSupport/park blocker)
             (recur (or (Thread/interrupted) interrupted?)))))))

(defn sleep!
  "Waits until the deadline."
  [deadline]
  (until nil deadline (constantly false)))

(defn- cancel-comes?
  "True if the group of the place has ended and cancels its tasks, one after the other: the place's
  own is one of them, unless it has ended."
  [^Place place]
  (and (identical? :ended (some-> ^Cancellable (.group place) .endReason))
       (some-> ^Future (.task place) .isDone not)))

(defn check-cancelled!
  "As check-state!, and where the end of a scope is about to cancel the calling thread's work, waits
  for that first. May throw InterruptedException then."
  []
  (when-some [place (place/current)]
    (when (cancel-comes? place)
      ;; Looks again and again: inside `undisturbed` the cancel wakes nothing.
      (while (not (until place (deadline/in-ms 2) #(.cancelReason place)))))
    (check-state! place)))
