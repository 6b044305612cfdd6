(ns thrum.impl.error
  "Every exception that Thrum makes, and what can be read from one."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.impl.show :as show])
  (:import
   (clojure.lang IExceptionInfo)
   (java.io InterruptedIOException)
   (java.net SocketException SocketTimeoutException)
   (java.nio.channels ClosedByInterruptException)
   (java.util.concurrent CancellationException CompletionException ExecutionException RejectedExecutionException TimeoutException)))

(set! *warn-on-reflection* true)

;; Reading from a throwable may run user code: it may throw, and a chain of causes may be endless. A
;; part that cannot be read counts as absent.

(defmacro ^:private readable [& body]
  `(try ~@body (catch Throwable _# nil)))

(defn any-type
  "Returns the :type in the throwable's ex-data, or nil."
  [t]
  (readable (:type (ex-data t))))

(defn type-of
  "Returns the :type in the throwable's ex-data where that is a keyword, or nil: to compare another
  one may run user code as well."
  [t]
  (let [type (any-type t)]
    (when (keyword? type) type)))

(defn reason-of
  "Returns the :reason in the throwable's ex-data, or nil."
  [t]
  (readable (:reason (ex-data t))))

(defn cause-of
  "Returns the throwable's cause, or nil."
  ^Throwable [t]
  (readable (ex-cause t)))

(defn causes
  "Returns the throwable and its causes, the first 32 of them, as a lazy seq."
  [t]
  (take 32 (take-while some? (iterate cause-of t))))

(defn- wrapper? [t]
  (or (instance? ExecutionException t) (instance? CompletionException t)))

(defn beneath
  "Returns what a future's ExecutionException or CompletionException wraps; any other throwable as
  it is. wrapper?: which throwables are wrappers, in place of these."
  (^Throwable [t] (beneath wrapper? t))
  (^Throwable [wrapper? t]
   (let [[wrappers [cause]] (split-with wrapper? (causes t))]
     (or cause (last wrappers)))))

(defn- interruption-itself? [^Throwable t]
  (or (= :thrum/closed (type-of t))
      (instance? InterruptedException t)
      (instance? CancellationException t)
      (instance? ClosedByInterruptException t)
      (and (instance? SocketException t)
           (readable (str/includes? (ex-message t) "Closed by interrupt")))))

(defn interruption?
  "True if there is an interruption in the throwable's cause chain."
  [throwable]
  (boolean (some interruption-itself? (causes throwable))))

;; What a pipe throws that was interrupted; but also what many clients throw at their own timeouts.
(defn- interrupted-io? [t]
  (and (instance? InterruptedIOException t) (not (instance? SocketTimeoutException t))))

(defn casualty?
  "True if the throwable, thrown after a cancel, is only its consequence."
  [throwable]
  (boolean (some #(or (interruption-itself? %) (interrupted-io? %)) (causes throwable))))

;; What Thrum throws

(defn- small [data k]
  (cond-> data (contains? data k) (update k show/datum)))

(defn- namespace-of
  "Returns the namespace of a frame."
  [^StackTraceElement frame]
  (first (str/split (.getClassName frame) #"\$" 2)))

(defn- clojures? [frame]
  (re-find #"^clojure\.(core|lang)\b" (namespace-of frame)))

(defn- between?
  "True for a frame of what checks arguments, or of Clojure's."
  [frame]
  (or (clojures? frame)
      (re-find #"^thrum\.(.*\.)?(impl|spi)\b" (namespace-of frame))))

(defn- from-call
  "Returns the exception with a stack trace that begins at the public function that was called, in
  place of what checked its arguments: a REPL shows the first frame as where the error is."
  [^Throwable e]
  (let [frames (drop-while between? (.getStackTrace e))
        front (some-> (first frames) namespace-of)
        own? #(= front (namespace-of %))
        ;; A REPL has no name for the doInvoke of a function with a rest argument.
        named? #(and (own? %) (not= "doInvoke" (.getMethodName ^StackTraceElement %)))]
    (when (some-> front (str/starts-with? "thrum."))
      (let [inside (take-while #(or (own? %) (clojures? %)) frames)
            above (dec (count (drop-while (complement named?) (reverse inside))))]
        (.setStackTrace e (into-array StackTraceElement (drop above frames)))))
    e))

(defn invalid
  "Returns the exception for misuse. The message says what was given and what is accepted. The
  :value and :option in the data, which the user gave, are kept small: see thrum.impl.show/datum."
  [message data]
  (from-call
    (ex-info message (-> data (small :value) (small :option) (assoc :type :thrum/invalid)))))

(defn no-wrap
  "Returns the exception for a :wrap or *wrap* that is not a function."
  [wrap]
  (invalid (str "The wrap of a task's body is " (show/text wrap)
                "; it must be a function from thunk to thunk, or nil")
           {:option :wrap, :value wrap, :accepts "a function from thunk to thunk, or nil"}))

(defn no-thunk
  "Returns the exception for a :wrap or *wrap* that did not return a function."
  [thunk]
  (invalid (str "The :wrap returned " (show/text thunk)
                "; it must return the thunk that the task runs, a function of no arguments")
           {:option :wrap, :value thunk, :accepts "a function from thunk to thunk, or nil"}))

(defn called-again
  "Returns the exception for a :wrap or *wrap* that calls its thunk a second time."
  []
  (invalid "The :wrap has called its thunk a second time; it must call it once" {:option :wrap}))

(defn closed
  "Returns the exception for work in a scope that has ended."
  [scope-name reason]
  (ex-info (str "The scope " scope-name " has ended, nothing can run in it any more."
                " A lazy result, if this is one, must be realised inside: with doall, or by pmapv"
                " instead of pmap.")
           {:type :thrum/closed, :scope scope-name, :reason reason}))

(defmacro ^:private with-data
  "Returns an exception of that class of the JDK's which is an ex-info as well."
  [class message data]
  `(let [data# ~data]
     (proxy [~class IExceptionInfo] [~message]
       (getData [] data#)
       (toString [] (str ~(.getName ^Class (resolve class)) ": " (ex-message ~'this))))))

(defn rejected
  "Returns what an executor throws for work after its end, for the :thrum/closed of its group; any
  other throwable as it is."
  ^Throwable [closed]
  (if (= :thrum/closed (type-of closed))
    (let [data (ex-data closed)]
      (with-data RejectedExecutionException
        (str "The executor " (:scope data) " has been shut down")
        data))
    closed))

(defn cancelled
  "Returns what a wait for cancelled work throws. cause: what the cancelled work threw, or nil."
  (^CancellationException [work-name reason] (cancelled work-name reason nil))
  (^CancellationException [work-name reason ^Throwable cause]
   (let [small (if (keyword? reason) reason (show/datum reason))
         ^Throwable e (with-data CancellationException
                        (str work-name " was cancelled: "
                             (if (keyword? reason) reason (show/text reason)))
                        {:type :thrum/cancelled, :task work-name, :reason small})]
     (when cause (.initCause e cause))
     e)))

(defn late
  "Returns what a wait for a task throws whose time is over."
  ^TimeoutException [task-name]
  (with-data TimeoutException
    (str task-name " was not done in time")
    {:type :thrum/timeout, :task task-name}))

(defn execution
  "Returns what the deref of a task throws that failed with t."
  ^ExecutionException [^Throwable t]
  ;; The constructor without a message calls t's toString, which may throw.
  (ExecutionException. (or (readable (.toString t)) (.getName (class t))) t))

(defn deadlock
  "Returns the exception for a wait that could never end."
  [message data]
  (ex-info message (assoc data :type :thrum/deadlock)))

(defn timeout
  "Returns what a scope throws whose deadline came first. cause: what its body threw."
  [scope-name {:keys [timeout-ms], :as data} cause]
  (ex-info (str scope-name " was not done in time"
                (when timeout-ms (str ", within " timeout-ms " ms")))
           (assoc data :type :thrum/timeout :scope scope-name)
           cause))

(defn foreign
  "Returns the exception for a thread that uses a scope for which it does not work."
  [scope-name]
  (invalid (str "This thread does not work for the scope " scope-name
                ". Only its body and its tasks may fork into it; another thread can hand"
                " its work to one of them, through a queue for instance")
           {:scope scope-name, :thread (.getName (Thread/currentThread))}))

(defn context
  "Returns what is suppressed on an item's failure to name the item. Its stack trace shows where the
  result was asked for."
  [{:keys [task index]} dropped]
  (ex-info (str "Item " index " failed, in " task
                (when (pos? (long dropped)) (str "; failures not shown here: " dropped)))
           {:type :thrum/context, :task task, :index index, :dropped dropped}))
