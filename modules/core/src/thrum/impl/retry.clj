(ns thrum.impl.retry
  "Decides when to try again. A schedule is a sequential collection of waits in ms, usually lazy
  and endless; when it ends, retrying ends. Schedules are pure; only `call` waits."
  {:no-doc true}
  (:require
   [thrum.impl.budget :as budget]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.failures :as failures]
   [thrum.impl.group :as group]
   [thrum.impl.options :as options]
   [thrum.impl.place :as place]
   [thrum.impl.show :as show]
   [thrum.impl.wait :as wait])
  (:import
   (java.util Iterator)
   (java.util.concurrent ThreadLocalRandom)))

(set! *warn-on-reflection* true)

;; Schedules

(defn- refused
  "Returns the exception for a wrong wait or schedule."
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
  "Returns an endless schedule: base-ms, 2 base-ms, 4 base-ms ..., none longer than max-ms. Throws
  :thrum/invalid unless both are integers, not negative."
  [base-ms max-ms]
  (let [base (ms "The base" base-ms), longest (ms "The longest wait" max-ms)]
    (iterate #(min longest (*' 2 %)) (min base longest))))

(defn- at-random
  "Returns an integer from 0 to n, each as likely as the others."
  [n]
  (inc (.nextLong (ThreadLocalRandom/current) -1 n)))

(defn jitter
  "Returns the schedule with each wait replaced by a random one, from 0 up to the wait itself (full
  jitter): callers that failed together do not come back together. Every walk draws anew, even if
  the schedule is kept in a var: it is an eduction, not a cached seq. uniform: a function from n to
  an integer from 0 to n, in place of the JDK's. Throws :thrum/invalid unless the schedule is
  sequential."
  ([schedule]
   (jitter at-random schedule))
  ([uniform schedule]
   (eduction (map (comp (options/function "by jitter" uniform) wait-ms)) (waits schedule))))

(defn- while-within
  "Returns a transducer that ends before the first wait that would bring the sum of the waits
  above total."
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
  "Returns the schedule up to the first wait that would bring the sum of the waits above total-ms:
  a sum of exactly total-ms is within. Only waits count, not the time of the attempts; a deadline
  bounds both. As with jitter, every walk is a new one. Throws :thrum/invalid unless total-ms is an
  integer, not negative, and the schedule sequential."
  [total-ms schedule]
  (eduction (while-within (ms "The longest sum of waits" total-ms)) (waits schedule)))

;; Attempts

(def ^:private defaults
  {:schedule (jitter (exponential 100 10000)), :attempts 3, :retry? (constantly true)})

(defn- attempt [f n]
  (try
    {:value (f n)}
    (catch Throwable t
      {:throwable t})))

(defn- passing?
  "True if the failure may be gone the next time: an Exception that is neither misuse nor an
  interruption. A timeout of the body's own counts, although its cause is an interruption."
  [t]
  (let [type (error/type-of t)]
    (and (instance? Exception t)
         (not (#{:thrum/invalid :thrum/deadlock} type))
         (or (= :thrum/timeout type) (not (error/interruption? t))))))

(defn- wanted?
  "True if the calling thread's work should go on."
  []
  (and (nil? (wait/cancel-reason))
       (not (.isInterrupted (Thread/currentThread)))))

(defn- before-deadline? [time]
  (deadline/earlier? time (some-> (place/current-group) group/deadline)))

(defn- wait-asked
  "Returns how many ms to wait: as the throwable asks, or else as the schedule says."
  ^long [throwable scheduled wait-of]
  (if-some [asked (when wait-of (wait-of throwable))]
    (ms "What :wait-of returned" asked)
    (wait-ms scheduled)))

(defn- sleep-before-deadline!
  "Waits and returns true; returns false at once when the deadline comes first, or the budget has
  nothing left."
  [attempt throwable wait {:keys [budget on-retry]}]
  (let [end (deadline/in-ms wait)]
    (when (and (before-deadline? end) (or (nil? budget) (budget/retry? budget)))
      (when on-retry (on-retry {:attempt attempt, :wait-ms wait, :throwable throwable}))
      (wait/sleep! end)
      true)))

(defn- again?
  "Waits for another attempt and returns true; returns false when there is none. attempt: the number
  of the one that failed. waits: an iterator, since a seq would draw 32 of a jitter at once. A
  throwable meanwhile, of the wait or of the user's functions, carries the failures."
  [attempt throwable ^Iterator waits {:keys [retry? wait-of attempts], :as options} failures]
  (try
    (and (< (long attempt) (long attempts))
         (.hasNext waits)
         (passing? (error/beneath throwable))
         (wanted?)
         (retry? throwable)
         (sleep-before-deadline! attempt
                                 throwable
                                 (wait-asked throwable (.next waits) wait-of)
                                 options))
    (catch Throwable t
      (throw (failures/merged {:throwable t} failures)))))

(defn retry-budget
  "Returns a budget of retries. Throws :thrum/invalid."
  [options]
  (let [{:keys [ratio burst]} (options/with-defaults {:ratio 0.1, :burst 10} :retry-budget options)]
    (budget/budget ratio burst)))

(defn call
  "Returns the value of the first call of f that returns; see thrum.core/retry, also for the
  options. f is called with the number of the attempt, from 1. Each call of this function walks the
  schedule anew. :retry? is asked only where another attempt is left.

  Never retried, even if :retry? returns true: an Error, also a task's that deref has wrapped; a
  throwable with an interruption in its cause chain, unless it is the :thrum/timeout of a deadline
  inside f; any failure while the thread is interrupted or its work cancelled; the misuses
  :thrum/invalid, :thrum/deadlock and :thrum/closed. A wait that would reach the deadline of the
  current scope does not begin: the failure is thrown at once.

  Throws the last failure, the same instance, with the first ones suppressed on it, each instance
  once and at most 16. A cancel or an interrupt during a wait throws CancellationException or
  InterruptedException, with the failures suppressed. A wrong wait in the schedule throws
  :thrum/invalid when it is reached, in the same way; wrong options do so at the call."
  [options f]
  (let [{:keys [schedule budget], :as options}
        (options/with-defaults defaults :retry options)
        ;; The head of the schedule would hold each wait.
        options (dissoc options :schedule)
        waits (.iterator ^Iterable schedule)
        failures (failures/failures)]
    (when budget (budget/called! budget))
    (loop [n 1]
      (let [{:keys [value throwable], :as outcome} (attempt f n)]
        (cond (nil? throwable) value
              (do
                (.record failures outcome)
                (again? n throwable waits options failures))
              (recur (inc n))
              :else (throw (failures/merged outcome failures)))))))
