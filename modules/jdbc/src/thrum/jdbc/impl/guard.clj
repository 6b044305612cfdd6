(ns thrum.jdbc.impl.guard
  "Guards every call of a connection's objects: proxies around connections, statements, results and
  other objects that the driver returns."
  {:no-doc true}
  (:require
   [thrum.core :as t]
   [thrum.jdbc.impl.call :as call]
   [thrum.jdbc.impl.session :as session]
   [thrum.jdbc.impl.streams :as streams]
   [thrum.spi :as spi])
  (:import
   (java.lang ClassValue)
   (java.lang.reflect InvocationHandler InvocationTargetException Method Proxy)
   (java.sql Array Blob CallableStatement Clob Connection DatabaseMetaData NClob ParameterMetaData PreparedStatement Ref ResultSet ResultSetMetaData SQLFeatureNotSupportedException SQLXML Statement Struct Wrapper)
   (java.util.concurrent CancellationException ConcurrentHashMap)
   (java.util.concurrent.atomic AtomicReference)
   (java.util.function Function)
   (thrum.jdbc.impl.session Session)))

(set! *warn-on-reflection* true)

;; parent: the proxy of what handed it out, or nil. statement: the raw statement whose cancel stops
;; it, or nil.
(deftype Guard [^Session session raw parent ^Statement statement invocation]
  InvocationHandler
  (invoke [this proxy method args] (invocation this proxy method args)))

(defn- guard-of ^Guard [x]
  (when (instance? Proxy x)
    (let [handler (Proxy/getInvocationHandler x)]
      (when (instance? Guard handler) handler))))

(defn raw
  "Returns what is inside, where x is a proxy of ours; else x."
  [x]
  (if-some [guard (guard-of x)] (.-raw guard) x))

(defn- raw-all!
  "Returns the array of a call's arguments (nil: none) with what is inside of each in its place."
  [^objects args]
  (when args
    (dotimes [i (alength args)]
      (when (guard-of (aget args i)) (aset args i (raw (aget args i))))))
  args)

(defn- call-raw [guard ^Method method args]
  (try
    (.invoke method (.-raw ^Guard guard) (raw-all! args))
    (catch InvocationTargetException e
      (throw (.getCause e)))))

;; What is handed out. Its proxy has all of these interfaces that it has, in this order: SQLite's
;; ResultSet is its own ResultSetMetaData.

(def ^:private interfaces
  [CallableStatement PreparedStatement Statement ResultSet DatabaseMetaData ResultSetMetaData
   ParameterMetaData Array NClob Clob Blob SQLXML Ref Struct])

(declare invoke invoke-driver)

(defn- one [^Class interface] (into-array Class [interface]))

;; A driver may have a class loader that ours does not see.
(defn- proxied [interfaces guard]
  (Proxy/newProxyInstance (.getClassLoader ^Class (first interfaces)) interfaces guard))

(defn- kind
  "Returns what is done with values of a class: :plain and :other are handed out as they are,
  :connection and :stream as ours, the elements of :objects each by itself; else the interfaces of
  their proxies, in an array."
  [^Class c]
  (let [a? (fn [^Class of] (.isAssignableFrom of c))]
    (cond
      (some a? [String Number Boolean byte/1]) :plain
      (= Object/1 c) :objects
      (a? Connection) :connection
      (some a? streams/classes) :stream
      :else (let [own (filter a? interfaces)]
              (if (seq own) (into-array Class own) :other)))))

(def ^:private ^ClassValue kinds (proxy [ClassValue] [] (computeValue [c] (kind c))))

(defn- statement-of
  "Returns the statement whose cancel stops x."
  [guard x]
  (condp instance? x
    Statement x
    ResultSet (or (.-statement ^Guard guard)
                  (try (.getStatement ^ResultSet x) (catch Exception _ nil)))
    (.-statement ^Guard guard)))

(defn- canceller-of
  "Returns a function that returns what stops a call: the connection's cancel, where the driver has
  it, else its statement's. PostgreSQL's statement waits for its own cancel to return, also where
  the server does not answer, and sends but one. HikariCP's gives its connection up where its cancel
  cannot connect: an abort then does nothing."
  [^Guard guard]
  (let [statement (.-statement guard)]
    #(or (session/canceller (.-session guard))
         (when statement
           (let [^Statement inside (session/unwrapped statement Statement)]
             (fn [] (.cancel inside)))))))

(defn- guarded-call [^Guard guard method args]
  (call/run (.-session guard) (canceller-of guard) #(call-raw guard method args)))

(defn- unless-given-up
  "Calls f, which need not end well where the connection is given up, before or meanwhile: what it
  would throw then hides the cancel. Returns its value, or nil."
  [session f]
  (when-not (session/aborted? session)
    (try
      (f)
      (catch CancellationException e (throw e))
      (catch Exception e
        (when-not (session/aborted? session) (throw e))))))

(defn- kind-of [x]
  (if (nil? x) :plain (.get kinds (class x))))

(defn- guarded-stream [^Guard guard x]
  (let [session (.-session guard)]
    (streams/guarded x
                     #(call/run session (canceller-of guard) %)
                     #(unless-given-up session (fn [] (call/clean-up session %))))))

(declare handed-out)

(defn- all-handed-out [guard proxy ^objects xs]
  (if (every? #(#{:plain :other} (kind-of %)) xs)
    xs
    (object-array (map #(handed-out guard proxy %) xs))))

(defn- handed-out
  "Returns what the user gets for a value of the driver's."
  [^Guard guard proxy x]
  (let [kind (kind-of x)]
    (case kind
      (:plain :other) x
      :connection (.get ^AtomicReference (.-proxy ^Session (.-session guard)))
      :stream (guarded-stream guard x)
      :objects (all-handed-out guard proxy x)
      (if (and (some? (.-parent guard)) (identical? x (raw (.-parent guard))))
        (.-parent guard)
        (proxied kind (Guard. (.-session guard) x proxy (statement-of guard x) invoke))))))

;; How a method is called

(def ^:private in-cancelled-work-too
  "What must be done, or may be asked, when the work is cancelled."
  #{"close" "closeOnCompletion" "isClosed" "isCloseOnCompletion" "cancel" "free" "rollback"
    "releaseSavepoint" "clearWarnings" "getWarnings" "setAutoCommit" "getAutoCommit" "setReadOnly"
    "isReadOnly" "setTransactionIsolation" "getTransactionIsolation" "setHoldability"
    "getHoldability" "setSchema" "getSchema" "setCatalog" "getCatalog" "setNetworkTimeout"
    "getNetworkTimeout" "setClientInfo" "getClientInfo" "getConnection" "getStatement"})

(defn- how [^Method method]
  (let [name (.getName method)]
    (cond
      (= Object (.getDeclaringClass method)) :object
      (#{"unwrap" "isWrapperFor" "abort" "commit"} name) (keyword name)
      (in-cancelled-work-too name) :clean-up
      (and (re-matches #"set.*|register.*|addBatch|clear.*" name)
           (.isAssignableFrom Statement (.getDeclaringClass method))) :set
      :else :read)))

(def ^:private ^ConcurrentHashMap hows (ConcurrentHashMap.))
(def ^:private ^Function compute-how (reify Function (apply [_ method] (how method))))

(defn- object-method [^Guard guard proxy ^Method method args]
  (case (.getName method)
    "equals" (identical? proxy (first args))
    "hashCode" (System/identityHashCode proxy)
    ;; With PostgreSQL an array's text is its value.
    (str (when-not (instance? Array (.-raw guard)) "thrum.jdbc ") (.-raw guard))))

(defn- unguarded [^Class interface]
  (SQLFeatureNotSupportedException.
    (str (.getName interface)
         " would go past the guard; thrum.jdbc/call-with calls a function with it")))

(defn- driver-result
  "Returns a value of a driver's own method: guarded, or nothing that could block."
  [^Guard guard proxy ^Method method x]
  (let [type (.getReturnType method), result (handed-out guard proxy x)]
    (cond
      (or (not (identical? x result)) (= :plain (kind-of x))) result
      (re-find #"^(?:java\.|\[)" (.getName (class x))) x
      (.isInterface type) (proxied (one type)
                                   (Guard. (.-session guard) x proxy (.-statement guard)
                                           invoke-driver))
      :else (throw (unguarded type)))))

(defn- invoke-driver [^Guard guard proxy ^Method method args]
  (if (= Object (.getDeclaringClass method))
    (object-method guard proxy method args)
    (driver-result guard proxy method
                   (guarded-call guard method args))))

(defn- inherited
  "Returns the method as the proxy's interface has it, or nil. A driver's interface may extend that
  one, and declare its methods again."
  ^Method [proxy ^Method method]
  (if (.isInstance (.getDeclaringClass method) proxy)
    method
    (try
      (let [^Class interface (first (.getInterfaces (class proxy)))
            own (.getMethod interface (.getName method) (.getParameterTypes method))]
        (when (= (.getReturnType own) (.getReturnType method)) own))
      (catch NoSuchMethodException _ nil))))

(defn- invoke-unwrapped
  "Calls a method of the driver's; what java.sql has, as on the object that was unwrapped."
  [^Guard guard proxy ^Method method args]
  (let [parent (.-parent guard)]
    (if-some [own (when-not (= Object (.getDeclaringClass method)) (inherited parent method))]
      (.invoke (guard-of parent) parent own args)
      (invoke-driver guard proxy method args))))

(defn- unwrap [^Guard guard proxy ^Class interface]
  (cond
    (.isInstance interface proxy) proxy
    (not (.isInterface interface)) (throw (unguarded interface))
    :else (let [x (.unwrap ^Wrapper (.-raw guard) interface)]
            (proxied (one interface)
                     (Guard. (.-session guard) x proxy (.-statement guard) invoke-unwrapped)))))

(defn- wrapper-for? [guard proxy method args]
  (let [^Class interface (first args)]
    (or (.isInstance interface proxy)
        (and (.isInterface interface) (call-raw guard method args)))))

(defn- large? [x]
  (or (= :stream (kind-of x)) (instance? Blob x) (instance? Clob x)))

(defn- read-guarded [guard proxy method args]
  (handed-out guard proxy (guarded-call guard method args)))

(defn- clean-up [^Guard guard proxy ^Method method args]
  (let [session (.-session guard)
        f #(handed-out guard proxy (call/clean-up session (fn [] (call-raw guard method args))))]
    (if (= Void/TYPE (.getReturnType method)) (unless-given-up session f) (f))))

(defn- invoke
  "Calls the method: in the guard of its session, unless it can neither block nor hand out."
  [^Guard guard proxy ^Method method args]
  (case (.computeIfAbsent hows method compute-how)
    :read (read-guarded guard proxy method args)
    :set (if (some large? args) (read-guarded guard proxy method args) (call-raw guard method args))
    :clean-up (clean-up guard proxy method args)
    :object (object-method guard proxy method args)
    :unwrap (unwrap guard proxy (first args))
    :isWrapperFor (wrapper-for? guard proxy method args)
    (read-guarded guard proxy method args)))

;; Connections

(defn- or-given-up
  "Calls f in cancelled work. Where it throws the connection is given up: the exception would hide
  the cancel."
  [session f]
  (try
    (f)
    (catch Exception e
      (when-not (session/aborted? session)
        (session/abort! session)
        (spi/uncaught! e)))))

(defn- roll-back! [session ^Connection raw]
  (when-not (session/aborted? session)
    (or-given-up session #(when-not (.getAutoCommit raw) (.rollback raw)))))

(defn- close-cancelled! [session ^Connection raw]
  (try
    (roll-back! session raw)
    (finally (or-given-up session #(session/give-back! session)))))

(defn- give-back! [session]
  (try
    (session/give-back! session)
    ;; HikariCP's throws a NullPointerException.
    (catch Exception e
      (when-not (session/aborted? session) (throw e)))))

(defn- close! [^Guard guard]
  (let [session (.-session guard), raw (.-raw guard)]
    (session/close! session
      (fn []
        (call/clean-up session
          #(if (t/cancelled?) (close-cancelled! session raw) (give-back! session)))))))

(defn- roll-back-cancelled!
  "Returns true, the transaction rolled back, where the work is cancelled."
  [^Guard guard]
  (when (t/cancelled?)
    (call/clean-up (.-session guard) #(roll-back! (.-session guard) (.-raw guard)))
    true))

(defn- roll-back-as-asked! [^Guard guard proxy method args]
  (try
    (when-not (roll-back-cancelled! guard) (invoke guard proxy method args))
    (finally (session/rolled-back! (.-session guard)))))

(defn- set-auto-commit!
  "An abort may have lost what it would commit, also while it is called."
  [^Guard guard proxy method args]
  (let [session (.-session guard)]
    (when-not (roll-back-cancelled! guard) (session/check-kept! session))
    (invoke guard proxy method args)
    (when-not (t/cancelled?) (session/check-kept! session))))

(defn- over? [session]
  (or (session/aborted? session) (session/closed? session)))

(defn- closed?
  "Gives an aborted connection back to its pool where the thread that took it asks: what is closed
  need not be closed again. Where another asks, a call may still run."
  [^Guard guard]
  (let [^Session session (.-session guard)]
    (when (and (session/aborted? session) (identical? (Thread/currentThread) (.-thread session)))
      (close! guard))
    (over? session)))

(defn- invoke-connection [^Guard guard proxy ^Method method args]
  (let [session (.-session guard), ^Connection raw (.-raw guard)]
    (case (.getName method)
      "close" (close! guard)
      ;; A close that hangs can be aborted, but for c3p0's.
      "abort" (when-not (and (session/closed? session) (.isClosed raw)) (session/abort! session))
      "isClosed" (or (closed? guard) (invoke guard proxy method args))
      "isValid" (and (not (over? session)) (invoke guard proxy method args))
      "commit" (call/run session nil #(.commit raw))
      "rollback" (if (first args)
                   (invoke guard proxy method args)
                   (roll-back-as-asked! guard proxy method args))
      ;; It commits.
      "setAutoCommit" (set-auto-commit! guard proxy method args)
      ;; With H2 an isolation commits. PostgreSQL refuses most of them in a transaction.
      ("setTransactionIsolation" "setReadOnly" "setSchema" "setCatalog" "setClientInfo")
      (do
        (roll-back-cancelled! guard)
        (invoke guard proxy method args))
      (invoke guard proxy method args))))

(defn connection
  "Returns the connection of the session for its user."
  ^Connection [^Session session]
  (let [guard (Guard. session (.-raw session) nil nil invoke-connection)
        connection (proxied (one Connection) guard)]
    (.set ^AtomicReference (.-proxy session) connection)
    connection))

(defn- drivers
  "Returns what x, of the driver's, is for this interface or class. Arrays and large objects have no
  unwrap."
  [x ^Class interface]
  (cond
    (instance? Wrapper x) (.unwrap ^Wrapper x interface)
    (.isInstance interface x) x
    :else (throw (SQLFeatureNotSupportedException.
                   (str (.getName (class x)) " is no " (.getName interface))))))

(defn call-with
  "Calls f with what the guarded x is for its driver, as one call."
  [x ^Class interface f]
  (if-some [guard (guard-of x)]
    (call/run (.-session guard)
              (canceller-of guard)
              #(f (drivers (.-raw guard) interface)))
    (throw (spi/invalid "call-with takes a connection of a guarded data source"
                        {:value x, :accepts "a guarded connection"}))))
