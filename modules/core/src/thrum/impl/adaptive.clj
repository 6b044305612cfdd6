(ns thrum.impl.adaptive
  "A limiter whose number of permits follows what a function makes of each use."
  {:no-doc true}
  (:require
   [clojure.core.protocols :as protocols]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.limit :as limit]
   [thrum.impl.permits :as permits]
   [thrum.impl.wait :as wait])
  (:import
   (java.lang AutoCloseable)
   (java.util.concurrent ConcurrentLinkedQueue)
   (java.util.concurrent.atomic AtomicBoolean)
   (thrum.impl.limit Limiter)))

(set! *warn-on-reflection* true)

(def ^:private ^:const first-permits
  "Where the limit begins, unless it is given."
  20)

(def ^:private ^:const most-waiting
  "How many uses wait for f. Where it is too slow for more, the others are left out."
  1000)

(def ^:private ^:const most-in-turn
  "For how many uses a caller calls f before it goes on, and leaves the others to the next."
  100)

;; f: called by one thread at a time, with what stands in uses; busy: while it is. No lock: threads
;; that return a permit would wait for it, and overtake others.
(deftype AdaptiveLimiter [^Limiter limiter f ^ConcurrentLinkedQueue uses ^AtomicBoolean busy])

(defn- new-limit [f use]
  (let [n (f use)]
    (when-not (pos-int? n)
      (throw (error/invalid "The function of an adaptive limiter returned no positive integer"
                            {:option :adaptive, :value n, :accepts "a positive integer"})))
    n))

(defn- adapt!
  "Makes the limit what f says. A failure of f leaves it as it is."
  [^AdaptiveLimiter adaptive use]
  (try
    (limit/resize! (.-limiter adaptive) (new-limit (.-f adaptive) use))
    (catch Throwable t
      ;; It has used up the caller's interrupt.
      (when (and (instance? InterruptedException t) (not (wait/cancel-reason)))
        (wait/give-back!))
      (jdk/uncaught! t))))

(defn- adapt-to-all!
  "Adapts the limit to the uses, also to those that are added meanwhile. Returns false where it
  leaves some."
  [^AdaptiveLimiter adaptive]
  (loop [left (long most-in-turn)]
    (if-some [use (when (pos? left) (.poll ^ConcurrentLinkedQueue (.-uses adaptive)))]
      (do (adapt! adaptive use) (recur (dec left)))
      (pos? left))))

(defn- used!
  "Adapts the limit to the use, here or on the thread that is adapting it to another."
  [^AdaptiveLimiter adaptive use]
  (let [^ConcurrentLinkedQueue uses (.-uses adaptive), ^AtomicBoolean busy (.-busy adaptive)]
    (when (< (.size uses) (long most-waiting)) (.add uses use))
    (loop []
      (when (and (not (.isEmpty uses)) (.compareAndSet busy false true))
        ;; One that has come since the last look has found it busy.
        (when (try (adapt-to-all! adaptive) (finally (.set busy false))) (recur))))))

(defn- use-of
  "Returns what f is called with for a use that ends now. since: when its permit was had; among: how
  many were in use then."
  [since among dropped?]
  {:latency-ns (- (deadline/nanos-until since)), :in-flight among, :dropped? dropped?})

(defn- release! [^AdaptiveLimiter adaptive permit since among]
  (limit/release! permit)
  (used! adaptive (use-of since among false)))

(deftype AdaptivePermit [limiter permit ^long since ^long among]
  permits/Permit
  (release! [this] (.close this))

  AutoCloseable
  (close [_] (release! limiter permit since among)))

(defn- had
  "Returns the permit that acquire returns as one of the adaptive limiter's, or nil."
  [^AdaptiveLimiter adaptive acquire]
  (let [^Limiter limiter (.-limiter adaptive)]
    (when-some [permit (acquire limiter)]
      (try
        (AdaptivePermit. adaptive permit (deadline/now) (limit/in-use limiter))
        ;; Where the stack is full, it had room to take the permit, and has it to return it.
        (catch Throwable t
          (limit/release! permit)
          (throw t))))))

(defn- too-much?
  "True for a throwable of too much to do: a deadline, a cancel or a refusal."
  [t]
  (or (#{:thrum/timeout :thrum/rejected} (error/type-of (error/beneath t)))
      (error/interruption? t)))

(defn- call-holding
  "Returns the value of f, called with a permit. The use is shown when the permit is returned; not
  for a failure that says nothing of the limit."
  [^AdaptiveLimiter adaptive f]
  (let [limiter (.-limiter adaptive)
        use (volatile! nil)
        permit (limit/acquire-own! limiter)]
    (try
      (let [since (deadline/now)
            among (limit/in-use limiter)
            note! #(vreset! use (use-of since among %))]
        (try
          (let [value (f)]
            (note! false)
            value)
          (catch Throwable t
            (when (too-much? t) (note! true))
            (throw t))))
      (finally
        (limit/release! permit)
        (some->> @use (used! adaptive))))))

(extend-type AdaptiveLimiter
  permits/Permits
  (acquire! [adaptive n]
    (permits/checked-weight n 1)
    (had adaptive limit/acquire!))
  (try-acquire! [adaptive n]
    (permits/checked-weight n 1)
    (had adaptive #(permits/try-acquire! % 1)))
  (call-with [adaptive n f]
    (permits/checked-weight n 1)
    (call-holding adaptive f))
  protocols/Datafiable
  (datafy [adaptive] (protocols/datafy (.-limiter adaptive))))

(defn limiter
  "Returns a limiter of one permit at a time, whose limit begins at permits (nil: 20) and is what f
  makes of each use. Options as of thrum.impl.limit/limiter."
  [permits f options]
  (AdaptiveLimiter. (limit/limiter (or permits first-permits) options)
                    f
                    (ConcurrentLinkedQueue.)
                    (AtomicBoolean.)))

(defmethod print-method AdaptiveLimiter [^AdaptiveLimiter adaptive ^java.io.Writer w]
  (print-method (.-limiter adaptive) w))
