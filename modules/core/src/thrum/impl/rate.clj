(ns thrum.impl.rate
  "So many permits in a time, shared by many callers: a token bucket without a thread. A permit is
  not returned. Callers pass in the order of asking: the first that waits sleeps until its time, the
  others until they are first. Each leaves in constant time."
  {:no-doc true}
  (:require
   [clojure.core.protocols :as protocols]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.options :as options]
   [thrum.impl.permits :as permits]
   [thrum.impl.registry :as registry]
   [thrum.impl.show :as show]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.wait :as wait])
  (:import
   (java.lang AutoCloseable)
   (java.util LinkedHashSet)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

;; No protocol: with them a permit costs 1.4 x the CPU (decision 32).
(definterface IRate
  (^boolean free [^long n])         ; true if n permits are to be had now; under the lock
  (^Object take [^long n])          ; under the lock
  (^boolean tryTake [^long n])
  (ask [waiter])                    ; nil: it has passed; :waits, or the full queue's facts
  (^boolean first [waiter])         ; true if no other waits before it
  (^long due [^long n])             ; when n permits are to be had
  (pass [waiter])                   ; takes its permits and leaves; the next to wait, or nil
  (leave [waiter])                  ; leaves the queue; the next to wait, if the waiter was first
  (refused [])
  (facts []))

(deftype Waiter [^Thread thread ^long n])

;; A permit of a rate: there is nothing to return.
(deftype Pass []
  permits/Permit
  (release! [_])
  AutoCloseable
  (close [_]))

(def ^:private pass (Pass.))

;; interval: ns for a permit. span: ns for a burst. paid-until: all permits that were taken are paid
;; for by time up to here.
(deftype RateLimiter [name ^long permits ^long per-ms ^long burst ^long interval ^long span
                      queue wait-ms ^LinkedHashSet waiting
                      ^:unsynchronized-mutable ^long paid-until
                      ^:unsynchronized-mutable ^long rejected]
  IRate
  (free [_ n]
    (<= (+ (max 0 (deadline/nanos-until paid-until)) (* n interval)) span))
  (take [_ n]
    (let [now (deadline/now)
          from (if (pos? (unchecked-subtract paid-until now)) paid-until now)]
      (set! paid-until (unchecked-add from (* n interval)))))
  (tryTake [this n]
    (locking this
      (let [passes (and (.isEmpty waiting) (.free this n))]
        (when passes (.take this n))
        passes)))
  (ask [this waiter]
    (locking this
      (cond
        (.tryTake this (.-n ^Waiter waiter)) nil
        (and queue (<= (long queue) (.size waiting))) (.refused this)
        ;; With room for leaving the queue, which no full stack may prevent.
        :else (do (wait/room 100) (.add waiting waiter) :waits))))
  (first [this waiter]
    (locking this (identical? waiter (.getFirst waiting))))
  (due [this n]
    (locking this (unchecked-add paid-until (- (* n interval) span))))
  (pass [this waiter]
    (locking this
      (.take this (.-n ^Waiter waiter))
      (.leave this waiter)))
  (leave [this waiter]
    (locking this
      (let [was-first (and (not (.isEmpty waiting)) (identical? waiter (.getFirst waiting)))]
        (.remove waiting waiter)
        (when (and was-first (not (.isEmpty waiting))) (.getFirst waiting)))))
  (refused [this]
    (locking this
      (set! rejected (inc rejected))
      (.facts this)))
  (facts [this]
    (locking this
      (cond-> {:permits permits, :per-ms per-ms, :burst burst
               :waiting (.size waiting), :rejected rejected}
        name (assoc :limiter name)
        queue (assoc :queue queue)
        wait-ms (assoc :wait-ms wait-ms))))

  protocols/Datafiable
  (datafy [this] (.facts this)))

(defn- state [{:keys [permits per-ms waiting]}]
  (str permits " in " per-ms " ms, " waiting " waiting"))

(defn- wake! [^Waiter waiter]
  (when waiter (LockSupport/unpark (.-thread waiter))))

(defn- too-late [^RateLimiter rate waiter]
  (wake! (.leave rate waiter))
  (let [facts (.refused rate)]
    (permits/too-late (state facts) facts)))

(defn- await-turn!
  "Waits until the waiter is first, and then until its permits are to be had. Throws :thrum/rejected
  when the deadline comes first; at once where it is sure to."
  [^RateLimiter rate ^Waiter waiter deadline]
  (when-not (wait/until rate deadline #(.first rate waiter)) (throw (too-late rate waiter)))
  (let [due (.due rate (.-n waiter))]
    (when (deadline/earlier? deadline due) (throw (too-late rate waiter)))
    (wait/sleep! due)))

(defn- give-up! [^RateLimiter rate waiter]
  (try
    (sync-point/reached :rate/leave)
    (finally (wake! (.leave rate waiter)))))

(defn- waits?
  "Asks for the waiter's permits. Returns true where it has to wait for them; throws :thrum/rejected
  where the queue is full."
  [^RateLimiter rate waiter]
  (when-some [answer (.ask rate waiter)]
    (when-not (= :waits answer) (throw (permits/queue-full (state answer) answer)))
    true))

(defn- acquire [^RateLimiter rate n]
  (wait/check!)
  (let [waiter (Waiter. (Thread/currentThread) (permits/checked-weight n (.-burst rate)))
        deadline (some-> (.-wait-ms rate) deadline/in-ms)]
    (try
      (when (waits? rate waiter)
        (sync-point/reached :rate/wait)
        (await-turn! rate waiter deadline)
        (wake! (.pass rate waiter)))
      (catch Throwable t
        (give-up! rate waiter)
        (throw t)))
    pass))

(extend-type RateLimiter
  permits/Permits
  (acquire! [rate n] (acquire rate n))
  (try-acquire! [rate n]
    (when (.tryTake rate (permits/checked-weight n (.-burst rate))) pass))
  (call-with [rate n f]
    (acquire rate n)
    (f)))

(def ^:private longest "Longer times cannot be compared." (quot Long/MAX_VALUE 4))

(defn- positive [what x]
  (when-not (pos-int? x)
    (throw (error/invalid (str what " is " (show/text x) "; it must be a positive integer")
                          {:option :permits, :value x, :accepts "a positive integer"})))
  x)

(defn- checked-span
  "Returns the ns of a burst."
  [burst interval]
  (let [span (*' burst interval)]
    (when (< (long longest) span)
      (throw (error/invalid (str "A burst of " burst " lasts longer than can be measured")
                            {:option :burst, :value burst, :accepts "a smaller integer"})))
    span))

(defn- shown
  "Returns what those see of the limiter who look at all that is registered."
  [^RateLimiter rate]
  (let [{:keys [limiter waiting] :as facts} (.facts rate)]
    (assoc (dissoc facts :limiter)
           :name (or limiter "rate-limiter")
           :state (if (pos? (long waiting)) :crowded :open))))

(defn rate-limiter
  "Returns a limiter of so many permits in a time. Throws :thrum/invalid."
  ^RateLimiter [permits options]
  (let [n (positive "A rate" permits)
        {:keys [per-ms burst queue wait-ms name]}
        (options/with-defaults {:per-ms 1000, :burst 1} :rate-limiter options)
        nanos (*' per-ms 1000000)
        interval (max 1 (quot (+' nanos (dec (long n))) n))
        span (checked-span burst interval)]
    (doto (RateLimiter. name n per-ms burst interval span queue wait-ms
                        (LinkedHashSet.) (deadline/now) 0)
      (as-> rate (registry/register! :rate-limiter rate shown)))))

(defmethod print-method RateLimiter [^RateLimiter rate ^java.io.Writer w]
  (.write w "#<rate-limiter ")
  (print-method (.facts rate) w)
  (.write w ">"))
