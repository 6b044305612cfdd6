(ns thrum.server.engine.tomcat.stream
  "Ends one stream of HTTP/2 from any thread: its client gets a RST_STREAM, and those who wait
  inside Tomcat for the stream go on. And says whether a stream has been ended so, by either side.

  An interrupt would do the second, and end the connection with all its other streams. Tomcat itself
  ends a stream so when a frame of its client's is wrong, by methods that are its own package's;
  they are looked up when this namespace is loaded."
  (:require
   [thrum.server.engine.tomcat.connections :as connections])
  (:import
   (java.lang.reflect AccessibleObject Constructor Field InvocationTargetException Method)
   (java.util.concurrent RejectedExecutionException)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(defn- class-named ^Class [n]
  (Class/forName (str "org.apache.coyote.http2." n)))

(defn- opened [^AccessibleObject member]
  (doto member (.setAccessible true)))

(defn- field ^Field [^Class class ^String n]
  (opened (.getDeclaredField class n)))

(defn- method ^Method [^Class class ^String n & parameters]
  (opened (.getDeclaredMethod class n (into-array Class parameters))))

(def ^:private ^Field stream (field (class-named "StreamProcessor") "stream"))
(def ^:private ^Field connection (field (class-named "Stream") "handler"))
(def ^:private ^Field charged (field (class-named "Http2UpgradeHandler") "overheadCount"))
(def ^:private ^Field states (field (class-named "AbstractNonZeroStream") "state"))
(def ^:private ^Method state-name
  (method (class-named "StreamStateMachine") "getCurrentStateName"))
(def ^:private ^Method number (method (class-named "AbstractStream") "getIdAsInt"))
(def ^:private ^Method input-finished (method (class-named "Stream") "isInputFinished"))
(def ^:private ^Method input-buffer
  (method (class-named "Stream") "getInputByteBuffer" Boolean/TYPE))
(def ^:private ^Method close (method (class-named "Stream") "close" (class-named "Http2Exception")))
(def ^:private internal-error (Enum/valueOf (class-named "Http2Error") "INTERNAL_ERROR"))
(def ^:private ^Constructor failure
  (opened (.getDeclaredConstructor (class-named "StreamException")
                                   (into-array Class
                                               [String (class-named "Http2Error") Integer/TYPE]))))

(defn- stream-of [request]
  (.get stream (connections/processor request)))

(def ^:private reset-states
  (into #{}
        (map #(str (Enum/valueOf (class-named "StreamStateMachine$State") %)))
        ["CLOSED_RST_RX" "CLOSED_RST_TX"]))

(defn reset?
  "True if the request's stream has been reset, by either side, or its connection has ended. To who
  reads the body Tomcat then says that it has ended."
  [request]
  (contains? reset-states
             (.invoke state-name (.get states (stream-of request)) (object-array 0))))

(defn body-open?
  "True if the client has not ended the request's body: Tomcat resets the stream behind the
  response, for the client to send no more of it."
  [request]
  (not (.invoke input-finished (stream-of request) (object-array 0))))

(def ^:const reset-charge
  "What Tomcat charges a connection for each RST_STREAM, the client's and its own; one that is
  charged too much is closed."
  50)

(defn absolve!
  "Has the connection not suffer from the reset of the request's stream, which is about to come: the
  server asked for it, or has answered before the body had ended. Takes back what Tomcat charges for
  it. And where none of the body has come yet, Tomcat would take all of it for more than it allowed,
  charge a reset for each frame, and keep the connection's window for good."
  [request]
  (let [stream (stream-of request)]
    (when (body-open? request) (.invoke input-buffer stream (object-array [true])))
    (.addAndGet ^AtomicLong (.get charged (.get connection stream)) (- reset-charge))))

(defn cut!
  "Ends the stream of the request. May block while the connection is written to. The calling thread
  must not be interrupted."
  [request]
  (let [stream (stream-of request)
        n (.invoke number stream (object-array 0))]
    (absolve! request)
    (try
      (.invoke close
               stream
               (object-array [(.newInstance failure (object-array ["aborted" internal-error n]))]))
      (catch InvocationTargetException e
        ;; The connector has been stopped, and runs nothing any more.
        (when-not (instance? RejectedExecutionException (.getCause e))
          (throw (.getCause e)))))))
