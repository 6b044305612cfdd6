(ns thrum.impl.error
  "Every exception that Thrum makes, and how several failures become one."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.impl.shown :as shown])
  (:import
   (clojure.lang ExceptionInfo)
   (java.net SocketException)
   (java.nio.channels ClosedByInterruptException)
   (java.util ArrayList)
   (java.util.concurrent CancellationException ExecutionException RejectedExecutionException)))

(set! *warn-on-reflection* true)

(def ^:private most-suppressed
  "How many other failures ride on the one that is thrown."
  16)

;; What is read from a throwable may be anybody's code: it may throw, and a chain of causes may be
;; endless. What cannot be read is not there.

(defmacro ^:private readable [& body]
  `(try ~@body (catch Throwable _# nil)))

(defn type-of
  "Returns the :type in the throwable's ex-data, or nil."
  [t]
  (readable (:type (ex-data t))))

(defn cause-of
  "Returns the throwable's cause, or nil."
  ^Throwable [t]
  (readable (ex-cause t)))

(defn causes
  "Returns the throwable and its causes, the first 32 of them, as a lazy seq."
  [t]
  (take 32 (take-while some? (iterate cause-of t))))

;; What Thrum throws

(defn- in-bounds [data k]
  (cond-> data (contains? data k) (update k shown/datum)))

(defn invalid
  "Returns the answer to a misuse: what was given, and what is accepted. The :value and the :option
  that the user gave are kept within bounds, see thrum.impl.shown/datum."
  [message data]
  (ex-info message (-> data (in-bounds :value) (in-bounds :option) (assoc :type :thrum/invalid))))

(defn no-wrap
  "Returns the answer to a :wrap or *wrap* that is no function."
  [wrap]
  (invalid (str "What wraps a task's body is "
                (shown/text wrap)
                "; it must be a function from thunk to thunk, or nil")
           {:option :wrap, :value wrap, :accepts "a function from thunk to thunk, or nil"}))

(defn no-thunk
  "Returns the answer to a :wrap or *wrap* that returned no function."
  [thunk]
  (invalid (str "The :wrap returned "
                (shown/text thunk)
                "; it must return the thunk that the task runs, a function of no arguments")
           {:option :wrap, :value thunk, :accepts "a function from thunk to thunk, or nil"}))

(defn closed
  "Returns the answer to work for a scope that has ended."
  [scope-name reason]
  (ex-info (str "The scope " scope-name " has ended, nothing can run in it any more."
                " A lazy result must be realised inside: with doall, or by pmapv instead of pmap.")
           {:type :thrum/closed, :scope scope-name, :reason reason}))

(defn rejected
  "Returns what an executor throws for work after its end, for the :thrum/closed of its scope; any
  other throwable as it is."
  ^Throwable [closed]
  (if (= :thrum/closed (type-of closed))
    (RejectedExecutionException.
      (str "The executor " (:scope (ex-data closed)) " has been shut down"))
    closed))

(defn cancelled
  "Returns what a wait for a cancelled task throws; its cause carries the reason."
  (^CancellationException [task-name reason] (cancelled task-name reason nil))
  (^CancellationException [task-name reason cause]
   (doto (CancellationException. (str task-name " was cancelled"))
     ;; Many are cancelled at once: ex-info, which looks into its stack trace, would be the dearest
     ;; part of it.
     (.initCause
       (ExceptionInfo.
         (str task-name " was cancelled: " (if (keyword? reason) reason (shown/text reason)))
         {:type :thrum/cancelled
          :task task-name
          :reason (if (keyword? reason) reason (shown/datum reason))}
         cause)))))

(defn execution
  "Returns what the deref of a task throws that failed with t."
  ^ExecutionException [^Throwable t]
  ;; Its other constructor asks t for its message.
  (ExecutionException. (or (readable (.toString t)) (.getName (class t))) t))

(defn deadlock
  "Returns the answer to a wait that could never end."
  [message data]
  (ex-info message (assoc data :type :thrum/deadlock)))

(defn timeout
  "Returns what a form throws whose deadline came first; the cause is what its body threw."
  [form-name data cause]
  (ex-info (str form-name
                " was not done in time"
                (when-some [ms (:timeout-ms data)] (str ", within " ms " ms")))
           (assoc data :type :thrum/timeout :scope form-name)
           cause))

(defn foreign
  "Returns the answer to a thread that uses a scope which it does not work for."
  [scope-name]
  (invalid (str "This thread does not work for the scope " scope-name
                ". Only its body and its tasks may fork into it; a thread of"
                " somebody else's can hand its work to one of them, through a queue for instance")
           {:scope scope-name, :thread (.getName (Thread/currentThread))}))

(defn- context
  "Returns what rides along with a failure: which item failed, and in its stack trace where the
  result was asked for."
  [{:keys [task index]} dropped]
  (ex-info (str "Item " index " failed, in " task
                (when (pos? (long dropped)) (str "; failures not shown here: " dropped)))
           {:type :thrum/context, :task task, :index index, :dropped dropped}))

;; What was caused by a cancel

(defn- interruption? [^Throwable t]
  (or (= :thrum/closed (type-of t))
      (instance? InterruptedException t)
      (instance? CancellationException t)
      (instance? ClosedByInterruptException t)
      (and (instance? SocketException t)
           (readable (str/includes? (ex-message t) "Closed by interrupt")))))

(defn casualty?
  "Tells whether a throwable that came after a cancel is only its consequence: an interruption in
  its cause chain."
  [throwable]
  (boolean (some interruption? (causes throwable))))

;; Several failures

(definterface IFailures
  (record [failure])
  (^java.util.List kept [])
  (^long total []))

(defn- wrapper-of?
  "Is t the wrapper in which deref hands out the other throwable?"
  [t other]
  (and (instance? ExecutionException t) (identical? other (cause-of t))))

(defn- known? [failure kept]
  (let [t (:throwable failure)]
    (some #(or (identical? t (:throwable %)) (wrapper-of? t (:throwable %))) kept)))

(deftype Failures [^ArrayList kept ^:unsynchronized-mutable ^long total]
  IFailures
  (record [this failure]
    (locking this
      (when-not (known? failure kept)
        (set! total (inc total))
        (when (<= (.size kept) (long most-suppressed))
          (.add kept failure)))))
  (kept [this]
    (locking this (ArrayList. kept)))
  (total [this]
    (locking this total)))

(defn failures
  "Returns an empty record of failures, in the order of time; it keeps the first few and counts the
  others."
  ^Failures []
  (Failures. (ArrayList.) 0))

(defn- attach! [^Throwable root ^Throwable other]
  (.addSuppressed root other))

(defn- others [root kept]
  (let [known (into [root] (.getSuppressed ^Throwable root))]
    (loop [seen known, fresh [], [t & more] (map :throwable kept)]
      (cond
        (nil? t) fresh
        (some #(identical? t %) seen) (recur seen fresh more)
        :else (recur (conj seen t) (conj fresh t) more)))))

(defn- room-on ^long [^Throwable root]
  (- (long most-suppressed) (alength (.getSuppressed root))))

(defn merged
  "Returns the throwable of one failure, {:throwable t, :task name, :index i}, the same instance.
  The other failures on record are attached as suppressed, each instance once and at most 16 of
  them; where it is an item that failed, one more ex-info {:type :thrum/context, :task name, :index
  i, :dropped n} says which, and in its stack trace where it was asked for."
  ^Throwable [{:keys [throwable index] :as failure} ^Failures failures]
  (let [kept (.kept failures)
        riders (take (room-on throwable) (others throwable kept))
        same (count (filter #(identical? throwable (:throwable %)) kept))]
    (run! #(attach! throwable %) riders)
    (when (and index (<= 0 (room-on throwable)))
      (attach! throwable (context failure (- (.total failures) same (count riders)))))
    throwable))
