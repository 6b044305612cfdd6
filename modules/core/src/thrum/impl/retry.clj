(ns thrum.impl.retry
  "Calls again what failed. How long to wait before each new attempt is data: a schedule, any
  sequential collection of ms, lazy and endless as a rule. Schedules are pure; only `call` waits."
  {:no-doc true}
  (:require
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.failures :as failures]
   [thrum.impl.group :as group]
   [thrum.impl.options :as options]
   [thrum.impl.place :as place]
   [thrum.impl.show :as show]
   [thrum.impl.wait :as wait])
  (:import
   (java.util.concurrent ExecutionException ThreadLocalRandom)))

(set! *warn-on-reflection* true)

;; Schedules

(defn- refused
  "Returns the answer to what is no wait or schedule."
  [what x accepts]
  (error/invalid (str what " is " (show/text x) "; it must be " accepts)
                 {:value x, :accepts accepts}))

(defn- ms
  ^long [what x]
  (when-not (nat-int? x)
    (throw (refused what x "an integer of ms, not negative")))
  (long x))

(defn- wait-ms ^long [x]
  (ms "A schedule's wait" x))

(defn- waits [schedule]
  (when-not (sequential? schedule)
    (throw (refused "The schedule" schedule "a sequential collection of ms")))
  schedule)

(defn constant
  "Returns an endless schedule of the same wait. Throws :thrum/invalid unless it is an integer, not
  negative."
  [wait]
  (repeat (wait-ms wait)))

(defn exponential
  "Returns an endless schedule whose waits double from base-ms on and stay at max-ms once they would
  be longer. Throws :thrum/invalid unless both are integers, not negative."
  [base-ms max-ms]
  (let [base (ms "The base" base-ms), longest (ms "The longest wait" max-ms)]
    (iterate #(min longest (*' 2 %)) (min base longest))))

(defn- at-random
  "Returns an integer from 0 to n, each as likely as the others."
  [n]
  (inc (.nextLong (ThreadLocalRandom/current) -1 n)))

(defn jitter
  "Returns the schedule with each wait replaced by a random one, from 0 up to the whole of it (full
  jitter), so that those who failed together do not come back together. Every walk through it draws
  anew, also when it stands in a def: it is an eduction, not a cached seq. uniform: a function from
  n to an integer from 0 to n, in place of the JDK's. Throws :thrum/invalid unless the schedule is
  sequential."
  ([schedule]
   (jitter at-random schedule))
  ([uniform schedule]
   (eduction (map (comp (options/function uniform) wait-ms)) (waits schedule))))

(defn- while-within
  "Returns a transducer that ends before the first wait with which their sum would be more than
  total."
  [^long total]
  (fn [step]
    (let [left (volatile! total)]
      (fn
        ([result] (step result))
        ([result wait]
         (if (neg? (long (vswap! left - (wait-ms wait))))
           (reduced result)
           (step result wait)))))))

(defn max-elapsed
  "Returns the schedule up to the first wait with which the sum of its waits would be more than
  total-ms: a sum of exactly total-ms is within. Only waits count, not what the attempts take; a
  deadline bounds both. As with jitter, every walk through it is a new one. Throws :thrum/invalid
  unless total-ms is an integer, not negative, and the schedule sequential."
  [total-ms schedule]
  (eduction (while-within (ms "The longest sum of waits" total-ms)) (waits schedule)))

;; Attempts

(def ^:private defaults
  {:schedule (exponential 100 10000), :attempts 3, :retry? (constantly true)})

(defn- attempt [f]
  (try
    {:value (f)}
    (catch Throwable t
      {:throwable t})))

(defn- beneath
  "Returns what a task failed with, for what its deref threw."
  [t]
  (let [[wrappers [cause]] (split-with #(instance? ExecutionException %) (error/causes t))]
    (or cause (last wrappers))))

(defn- passing?
  "Tells whether a failure may be gone the next time: an Exception that is no misuse, and no
  interruption. A timeout of the body's own has an interruption as its cause, and is none."
  [t]
  (let [type (error/type-of t)]
    (and (instance? Exception t)
         (not (#{:thrum/invalid :thrum/deadlock :thrum/closed} type))
         (or (= :thrum/timeout type) (not (error/casualty? t))))))

(defn- wanted?
  "Tells whether the calling thread's work should go on."
  []
  (and (nil? (wait/cancel-reason))
       (not (.isInterrupted (Thread/currentThread)))))

(defn- before-deadline? [time]
  (deadline/earlier? time (some-> (place/current-group) group/deadline)))

(defn- sleep-before-deadline!
  "Waits so many ms and returns true; returns false at once when the deadline comes first."
  [wait]
  (let [end (deadline/in-ms wait)]
    (when (before-deadline? end)
      (wait/sleep! end)
      true)))

(defn- again?
  "Returns true after the wait for another attempt, false when there is none. What is thrown
  meanwhile, by the wait or by what the user gave, carries the failures."
  [throwable waits retry? failures]
  (try
    (and (seq waits)
         (passing? (beneath throwable))
         (wanted?)
         (retry? throwable)
         (sleep-before-deadline! (wait-ms (first waits))))
    (catch Throwable t
      (throw (failures/merged {:throwable t} failures)))))

(defn call
  "Returns the value of the first call of f that returns. After one that throws, it waits as the
  schedule says and calls again, until the attempts or the schedule are used up.

  Options:
    :schedule - the waits, default (exponential 100 10000); each call of this function walks it anew
    :attempts - how many calls of f there are at most, default 3
    :retry?   - a predicate of the throwable, asked where another attempt is left; default: every
                Exception

  Not retried, whatever :retry? says: an Error, also one that a task failed with and its deref
  wrapped; what has an interruption in its cause chain, unless it is a :thrum/timeout, which a
  deadline inside f threw; anything while the thread is interrupted or its work cancelled; the
  misuses :thrum/invalid, :thrum/deadlock and :thrum/closed. Nor does a wait begin that would reach
  the deadline of the current scope: the failure is thrown at once.

  Throws the last failure, the same instance, with the first ones suppressed on it, each instance
  once and at most 16. A cancel or an interrupt during a wait throws CancellationException or
  InterruptedException, with the failures suppressed. A wait in the schedule that is none throws
  :thrum/invalid when it is reached, in the same way; wrong options do so at the call."
  [options f]
  (let [{:keys [schedule attempts retry?]}
        (merge defaults (options/check options [:schedule :attempts :retry?]))
        failures (failures/failures)]
    (loop [waits (take (dec attempts) schedule)]
      (let [{:keys [value throwable], :as outcome} (attempt f)]
        (cond (nil? throwable) value
              (do
                (.record failures outcome)
                (again? throwable waits retry? failures))
              (recur (rest waits))
              :else (throw (failures/merged outcome failures)))))))
