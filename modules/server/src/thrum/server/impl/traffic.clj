(ns thrum.server.impl.traffic
  "What is in flight on one server: counted, bounded, watched and drained."
  {:no-doc true}
  (:require
   [clojure.datafy :as datafy]
   [thrum.core :as t]
   [thrum.server.spi.exchanges :as exchanges]
   [thrum.spi :as spi])
  (:import
   (java.io FileNotFoundException)
   (java.util Map Set)
   (java.util.concurrent ConcurrentHashMap)
   (java.util.concurrent.atomic AtomicReference LongAdder)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

;; The options that each request looks at, as fields: a look in the map of all fifty costs more.
;; observer: its functions by event, or nil. checked?: whether the engine lets no control character
;; through in a header's value.
(deftype Settings [async? interrupt? health max-body-bytes max-header-bytes as-asked timeout-ms
                   observer checked?])

(defn- settings-of
  ^Settings [{:keys [async? interrupt-on-disconnect? health max-body-bytes max-header-bytes as-asked
                     request-timeout-ms observer clean-values?]}]
  (Settings. async? interrupt-on-disconnect? health max-body-bytes max-header-bytes as-asked
             request-timeout-ms observer clean-values?))

;; state: :running, :draining, :closing, when kept connections get 503, :ending, when streams end
;; too, :stopped. drainer: the thread that waits for the last one. observing: the threads that run
;; a function of the observer.
(deftype Traffic [options ^Settings settings limiter streams ^Set exchanges ^Map counters
                  ^AtomicReference state ^AtomicReference drainer ^Set observing])

(def ^:private counted
  [:shed :timed-out :disconnected :served :failed :overdue :observer-errors])

(def ^:private latency-bounds
  "The limit that follows latency, at the start and at its ends."
  {:initial 100, :min 20, :max 10000})

(defn- latency-limit
  "Returns the function that a limit follows, of thrum-adaptive. Throws :thrum/invalid where that is
  not on the classpath."
  []
  (try
    ((requiring-resolve 'thrum.adaptive/gradient2) latency-bounds)
    (catch FileNotFoundException _
      (throw (spi/invalid
               ":max-concurrent :adaptive needs io.github.thrum-clj/thrum-adaptive on the classpath"
               {:option :max-concurrent, :value :adaptive})))))

(defn- limited
  "Returns a limiter of so many permits, or of as many as latency allows for :adaptive; permits
  itself where it is a limiter, or nil."
  [permits queue wait-ms name]
  (let [options {:queue queue, :wait-ms wait-ms, :name name}]
    (cond
      (int? permits) (t/limiter permits options)
      (= :adaptive permits)
      (t/limiter (:initial latency-bounds) (assoc options :adaptive (latency-limit)))
      :else permits)))

(defn in-flight
  "Returns the exchanges that have not ended."
  [^Traffic traffic]
  (vec (.-exchanges traffic)))

(defn traffic
  "Returns the traffic of a server with these options."
  [{:keys [max-concurrent max-queued queue-timeout-ms max-streams] :as options}]
  (doto (Traffic. options
                  (settings-of options)
                  (limited max-concurrent max-queued queue-timeout-ms "max-concurrent")
                  (limited (or max-streams Long/MAX_VALUE) 0 0 "max-streams")
                  (ConcurrentHashMap/newKeySet)
                  (into {} (map (fn [k] [k (LongAdder.)])) counted)
                  (AtomicReference. :running)
                  (AtomicReference.)
                  (ConcurrentHashMap/newKeySet))
    (exchanges/serves! in-flight)))

(defn options
  "Returns the options of the server."
  [^Traffic traffic]
  (.-options traffic))

(defn settings
  "Returns those of the options that each request looks at."
  ^Settings [^Traffic traffic]
  (.-settings traffic))

(defn state
  "Returns :running, :draining, :closing, :ending or :stopped."
  [^Traffic traffic]
  (.get ^AtomicReference (.-state traffic)))

(defn move!
  "Goes from one state to the next. Returns whether this call did."
  [^Traffic traffic from to]
  (.compareAndSet ^AtomicReference (.-state traffic) from to))

;; Counting

(defn add!
  "Adds n to a counter."
  [^Traffic traffic k n]
  (.add ^LongAdder (.get ^Map (.-counters traffic) k) (long n)))

(defn- in-use [limiter k]
  (if limiter (k (datafy/datafy limiter)) 0))

;; Watching

(defn- observing
  "Returns what (f) does, a call of the observer; `otherwise` where it throws, which is counted."
  [^Traffic traffic otherwise f]
  (let [^Set threads (.-observing traffic)
        thread (Thread/currentThread)
        outermost? (.add threads thread)]
    (try
      (f)
      (catch Throwable _
        (add! traffic :observer-errors 1)
        otherwise)
      (finally (when outermost? (.remove threads thread))))))

(defn observing?
  "True if the calling thread runs a function of the observer."
  [^Traffic traffic]
  (.contains ^Set (.-observing traffic) (Thread/currentThread)))

(defn observe!
  "Calls the observer's function for this event, if there is one, with (facts). An exception of it
  is counted."
  [^Traffic traffic event facts]
  (when-some [f (get (:observer (.-options traffic)) event)]
    (observing traffic nil #(f (facts)))))

(defn- dropped [^Traffic traffic]
  (if-some [f (:dropped (:observer (.-options traffic)))]
    (observing traffic 0 f)
    0))

;; The counts

(defn status
  "Returns the counts of the server: what is under way now (:in-flight :queued :streams :overdue),
  and since it started."
  [^Traffic traffic]
  (into {:state (let [state (state traffic)] ({:closing :draining, :ending :draining} state state))
         :in-flight (.size ^Set (.-exchanges traffic))
         :queued (in-use (.-limiter traffic) :waiting)
         :streams (in-use (.-streams traffic) :in-use)
         :observer-dropped (dropped traffic)}
        (map (fn [[k adder]] [k (.sum ^LongAdder adder)]))
        (.-counters traffic)))

;; What is in flight

(defn enter!
  "An exchange begins."
  [^Traffic traffic exchange]
  (.add ^Set (.-exchanges traffic) exchange))

(defn wake!
  "Wakes the thread that waits for the last exchange."
  [^Traffic traffic]
  (when-some [thread (.get ^AtomicReference (.-drainer traffic))]
    (LockSupport/unpark thread)))

(defn leave!
  "An exchange has ended."
  [^Traffic traffic exchange]
  (.remove ^Set (.-exchanges traffic) exchange)
  (wake! traffic))

(defn await-quiet!
  "Waits until no exchange is left for which (counts? exchange), or the deadline has come. Returns
  whether none is left."
  [^Traffic traffic counts? deadline]
  (.set ^AtomicReference (.-drainer traffic) (Thread/currentThread))
  (try
    (spi/wait-until traffic deadline #(not-any? counts? (.-exchanges traffic)))
    (finally (.set ^AtomicReference (.-drainer traffic) nil))))
