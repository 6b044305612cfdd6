(ns thrum.impl.permits
  "The protocols and the errors that a limiter and a rate limiter share. The queue of a limiter, and
  its order, are in thrum.impl.limit."
  {:no-doc true}
  (:require
   [thrum.impl.error :as error]
   [thrum.impl.options :as options]
   [thrum.impl.show :as show]))

(set! *warn-on-reflection* true)

(defprotocol Permits
  "Hands out permits, in the order of asking. n: how many at once."
  (acquire! [limiter n]
    "Waits for n permits and returns them as one Permit, a java.lang.AutoCloseable.")
  (try-acquire! [limiter n]
    "Returns n permits as one if they are free and no thread waits; nil otherwise.")
  (call-with [limiter n f]
    "Returns the value of f, called while the thread has n permits."))

(defprotocol Permit
  "What is handed out."
  (release! [permit]
    "Returns it to its limiter; see thrum.core/release!."))

(defn- refusing [expected]
  (fn [x & _] (throw (options/unexpected expected x))))

;; What is neither a limiter nor a permit.
(let [no-limiter (refusing "a limiter or a rate limiter"), no-permit (refusing "a permit")]
  (doseq [anything [nil Object]]
    (extend anything
      Permits {:acquire! no-limiter, :try-acquire! no-limiter, :call-with no-limiter}
      Permit {:release! no-permit})))

(defn checked-weight
  "Returns n if it is an integer from 1 to most; throws :thrum/invalid otherwise."
  ^long [n most]
  (when-not (and (pos-int? n) (<= (long n) (long most)))
    (let [accepts (str "an integer from 1 to " most)]
      (throw (error/invalid (str "So many permits at once: " (show/text n) "; it must be " accepts)
                            {:option :permits, :value n, :accepts accepts}))))
  (long n))

;; What is thrown when there is no permit

(defn- of-name [{:keys [limiter]}]
  (when limiter (str " of " limiter)))

(defn rejected
  "Returns the exception for a permit that is not to be had. state: the facts in words."
  [why state facts]
  (ex-info (str "No permit" (of-name facts) " " why " (" state ")")
           (assoc facts :type :thrum/rejected)))

(defn queue-full
  "Returns the exception for a queue that is full."
  [state {:keys [queue], :as facts}]
  (rejected (str "without waiting, and the queue of " queue " is full") state facts))

(defn too-late
  "Returns the exception for a wait that was too long."
  [state {:keys [wait-ms], :as facts}]
  (rejected (str "within " wait-ms " ms") state facts))

(defn held-already
  "Returns the exception for a thread that waits for permits of its own."
  [facts]
  (error/deadlock
    (str "This thread itself holds too many permits" (of-name facts) ", and would wait for ever")
    facts))
