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
   (java.util.concurrent.atomic AtomicLong)
   (thrum.impl.limit Limiter Permit)))

(set! *warn-on-reflection* true)

(def ^:private ^:const first-permits
  "Where the limit begins, unless it is given."
  20)

;; f: called by one thread at a time, with what stands in uses. pending: how many uses it has not
;; been called with. No lock: threads that return a permit would wait for it, and overtake others.
(deftype AdaptiveLimiter [^Limiter limiter f ^ConcurrentLinkedQueue uses ^AtomicLong pending])

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
  "Adapts the limit to all uses, also to those that are added meanwhile."
  [^AdaptiveLimiter adaptive]
  (loop [n 1]
    (if-some [use (.poll ^ConcurrentLinkedQueue (.-uses adaptive))]
      (do (adapt! adaptive use) (recur n))
      (let [more (.addAndGet ^AtomicLong (.-pending adaptive) (- n))]
        (when (pos? more) (recur more))))))

(defn- used!
  "Adapts the limit to the use, here or on the thread that is adapting it to another."
  [^AdaptiveLimiter adaptive use]
  (let [^AtomicLong pending (.-pending adaptive)]
    (.add ^ConcurrentLinkedQueue (.-uses adaptive) use)
    (when (zero? (.getAndIncrement pending))
      (try
        (adapt-to-all! adaptive)
        ;; A full stack: the next use finds the others.
        (catch Throwable t
          (.set pending 0)
          (throw t))))))

(declare release!)

;; since: when it was had. among: how many permits were in use then, it among them.
(deftype AdaptivePermit [^AdaptiveLimiter limiter ^Permit permit ^long since ^long among]
  permits/Permit
  (release! [this] (.close this))

  AutoCloseable
  (close [this] (release! this false)))

(defn release!
  "Returns the permit. dropped?: whether what it was for was refused, or took too long; nil: its use
  says nothing of the limit."
  [^AdaptivePermit permit dropped?]
  (limit/release! (.-permit permit))
  (when (some? dropped?)
    (used! (.-limiter permit)
           {:latency-ns (- (deadline/nanos-until (.-since permit)))
            :in-flight (.-among permit)
            :dropped? dropped?})))

(defn- had ^AdaptivePermit [^AdaptiveLimiter adaptive permit]
  (AdaptivePermit. adaptive permit (deadline/now) (limit/in-use (.-limiter adaptive))))

(defn- too-much
  "Returns true for a throwable of too much to do: a deadline, a cancel or a refusal; nil for
  another, that says nothing of it."
  [t]
  (when (or (#{:thrum/timeout :thrum/rejected} (error/type-of (error/beneath t)))
            (error/casualty? t))
    true))

(defn- call-holding [permit f]
  (let [dropped? (volatile! nil)]
    (try
      (let [value (f)]
        (vreset! dropped? false)
        value)
      (catch Throwable t
        (vreset! dropped? (too-much t))
        (throw t))
      (finally (release! permit @dropped?)))))

(extend-type AdaptiveLimiter
  permits/Permits
  (acquire! [adaptive n]
    (permits/checked-weight n 1)
    (had adaptive (limit/acquire! (.-limiter adaptive))))
  (try-acquire! [adaptive n]
    (permits/checked-weight n 1)
    (some->> (permits/try-acquire! (.-limiter adaptive) 1) (had adaptive)))
  (call-with [adaptive n f]
    (permits/checked-weight n 1)
    (call-holding (had adaptive (limit/acquire-own! (.-limiter adaptive))) f))
  protocols/Datafiable
  (datafy [adaptive] (protocols/datafy (.-limiter adaptive))))

(defn limiter
  "Returns a limiter of one permit at a time, whose limit begins at permits (nil: 20) and is what f
  makes of each use. Options as of thrum.impl.limit/limiter."
  [permits f options]
  (AdaptiveLimiter. (limit/limiter (or permits first-permits) options)
                    f
                    (ConcurrentLinkedQueue.)
                    (AtomicLong.)))

(defmethod print-method AdaptiveLimiter [^AdaptiveLimiter adaptive ^java.io.Writer w]
  (print-method (.-limiter adaptive) w))
