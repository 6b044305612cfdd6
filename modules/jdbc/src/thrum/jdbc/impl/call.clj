(ns thrum.jdbc.impl.call
  "One call of a driver's method that may block, on the thread that makes it. A cancel stops it by
  the driver's own cancel, after the grace by an abort of the connection, and never by an
  interrupt."
  {:no-doc true}
  (:require
   [thrum.jdbc.impl.session :as session]
   [thrum.spi :as spi])
  (:import
   (java.sql BatchUpdateException Connection SQLException)
   (java.util.concurrent CancellationException)
   (java.util.concurrent.atomic AtomicReference)
   (thrum.jdbc.impl.session Session)))

(set! *warn-on-reflection* true)

;; state: nil while the call runs; :stopping once a cancel has come; :aborted when the connection
;; was given up for it; :ended. sent: what became of the driver's cancel: nil: it was not called;
;; :begun; :done; :twice, where it was called once more; a throwable; :over: it is called no more.
(deftype Call [^Session session
               ^AtomicReference state ^AtomicReference alarm ^AtomicReference sent])

(defn- call ^Call [session]
  (Call. session (AtomicReference.) (AtomicReference.) (AtomicReference.)))

(defn- move? [^Call call from to]
  (.compareAndSet ^AtomicReference (.-state call) from to))

(defn- finish!
  "Returns the state that the call had; from here on nothing stops it."
  [^Call call]
  (let [state (.getAndSet ^AtomicReference (.-state call) :ended)]
    (some-> (.get ^AtomicReference (.-alarm call)) spi/disarm!)
    state))

(defn- grace-ms ^long [^Call call]
  (.-grace-ms ^Session (.-session call)))

(defn- needed?
  "True if the call still runs; only then is the driver's cancel called."
  [^Call call]
  (and (= :stopping (.get ^AtomicReference (.-state call)))
       (not (session/closed? (.-session call)))))

(def ^:private patience-ms
  "How long a call may end by itself before a cancel is sent: most calls, of rows that are there
  already, or of a statement that is made, take some micros."
  1)

(def ^:private last-cancel-ms
  "How long an abort waits for the cancel that is sent before it."
  100)

(defn- call-cancel!
  "Calls the driver's cancel, if the call still runs, and nothing has become of a cancel since."
  [^Call call was cancel]
  (let [^AtomicReference sent (.-sent call)]
    (when (and (needed? call) (.compareAndSet sent was :begun))
      (.compareAndSet sent :begun
                      (try (cancel) (if was :twice :done) (catch Throwable t t))))))

(defn- send!
  "As call-cancel!, with what is found to cancel by, on a thread of its own, since both may block.
  Returns when that has ended, or after so many ms."
  [call cancel was ms]
  (let [end (promise)]
    (spi/arm! (spi/deadline-in patience-ms)
              #(try
                 (some->> @cancel (call-cancel! call was))
                 (finally (deliver end true))))
    (deref end ms nil)))

(defn- give-up!
  "Has the connection aborted. The cancel is sent before that where it was not, and once more where
  it was: one that came before the driver, or the database, had begun the statement was lost, and an
  abort alone leaves it running there."
  [^Call call cancel]
  (let [sent (.get ^AtomicReference (.-sent call))]
    (when (and cancel (contains? #{nil :done} sent))
      (send! call cancel sent last-cancel-ms)))
  (when (move? call :stopping :aborted) (session/abort! (.-session call))))

(defn- expire!
  "Gives the call the grace to end, from now on. Returns false if it has ended already."
  [^Call call cancel]
  (let [runs (move? call nil :stopping)]
    (when runs
      (.set ^AtomicReference (.-alarm call)
            (spi/arm! (spi/deadline-in (grace-ms call)) #(give-up! call cancel))))
    runs))

(defn- stop! [^Call call cancel]
  (let [cancel (when cancel (delay (cancel)))]
    ;; A shorter grace has no room for a cancel: the one before the abort is the first.
    (when (and (expire! call cancel) cancel (< patience-ms (grace-ms call)))
      (send! call cancel nil (grace-ms call)))))

;; PostgreSQL, H2 and DB2; MySQL; SQL Server; Oracle. MySQL's driver has its own exception too,
;; without a state. SQLite is left out: its cancel may roll a transaction back, and what comes
;; behind that would be committed alone.
(def ^:private cancelled-states #{"57014" "70100" "HY008"})
(def ^:private cancelled-codes #{57014 1013})
(def ^:private cancelled-class "com.mysql.cj.jdbc.exceptions.MySQLStatementCancelledException")

(defn- answers-cancel? [^SQLException e]
  (or (contains? cancelled-states (.getSQLState e))
      (contains? cancelled-codes (.getErrorCode e))
      (= cancelled-class (.getName (class e)))))

(defn- own-causes
  "Returns the throwable and its causes, without those of a CancellationException: these are another
  call's."
  [t]
  (take 16 (take-while #(and (some? %) (not (instance? CancellationException %)))
                       (iterate ex-cause t))))

(defn- answered?
  "True if what the call threw says that a cancel has reached it: then it can reach nothing else."
  [t]
  (boolean
    (some #(and (instance? SQLException %) (answers-cancel? %))
          (cond->> (own-causes t)
            (instance? BatchUpdateException t)
            (cons (.getNextException ^SQLException t))))))

(defn- valid? [^Session session]
  (let [seconds (min Integer/MAX_VALUE (inc (quot (.-grace-ms session) 1000)))]
    (try
      (.isValid ^Connection (.-raw session) seconds)
      (catch Exception _ false)
      ;; An AbstractMethodError, of a driver from before JDBC 4.
      (catch Error e (spi/uncaught! e) false))))

(defn- pass-barrier!
  "Has the connection answer, within the grace, before it is used again; or gives it up."
  [session]
  (let [call (call session)]
    (expire! call nil)
    (let [valid (try (valid? session) (finally (finish! call)))]
      (when-not valid (session/abort! session)))))

(defn- settle!
  "Leaves the connection such that no cancel can reach what uses it next. A cancel that nothing has
  answered may still come: the connection is given up."
  [^Call call t]
  (when-some [sent (.getAndSet ^AtomicReference (.-sent call) :over)]
    (if (and (= :done sent) (answered? t))
      (pass-barrier! (.-session call))
      (session/abort! (.-session call)))))

(defn- end!
  "Returns what to throw in place of t, what the call threw; nil: it returned."
  [call token t]
  (let [state (finish! call)
        thrown (spi/end-on-cancel! token t)]
    (case state
      :stopping (spi/undisturbed #(settle! call t))
      :aborted (session/abort! (.-session ^Call call))
      nil)
    thrown))

(defn- within [call token f]
  (let [value (try
                (f)
                (catch Throwable t
                  (throw (end! call token t))))]
    (end! call token nil)
    value))

(defn run
  "Returns the value of f. A cancel of the thread's work calls what (cancel) returns, on another
  thread; where that is nil, or f goes on, the connection is aborted after the grace. cancel may be
  nil too. Throws CancellationException; f is not called where the work is cancelled already."
  [session cancel f]
  (let [call (call session)
        f #(do (session/check-open! session) (f))]
    (if-some [token (spi/begin-on-cancel! #(stop! call cancel))]
      (within call token f)
      (f))))

(defn- in-cancelled-work [session f]
  (let [call (call session)]
    (expire! call nil)
    (spi/undisturbed #(try (f) (finally (finish! call))))))

(defn clean-up
  "As run, without a cancel of the driver's, for what must be done in cancelled work too: there it
  has the grace, and then the connection is aborted."
  [session f]
  (let [call (call session)
        token (try
                (spi/begin-on-cancel! #(stop! call nil))
                (catch CancellationException _ :cancelled))]
    (case token
      nil (f)
      :cancelled (in-cancelled-work session f)
      (within call token f))))
