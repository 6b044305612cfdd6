(ns thrum.server.engine.tomcat.connections
  "Tomcat's open connections: that of a request is cut, and those are closed whose clients take too
  long to send a request's head or a frame of HTTP/2, or to agree on TLS, however steadily they do
  so."
  (:require
   [thrum.server.spi.watchdog :as watchdog])
  (:import
   (java.io IOException)
   (java.lang.reflect Field)
   (java.net StandardSocketOptions)
   (java.nio.channels ClosedChannelException SocketChannel)
   (java.util Map WeakHashMap)
   (java.util.concurrent.locks Lock)
   (org.apache.coyote AbstractProcessor Processor Request)
   (org.apache.tomcat.util.net NioChannel NioEndpoint NioEndpoint$NioSocketWrapper SecureNioChannel SocketEvent SocketWrapperBase)))

(set! *warn-on-reflection* true)

(defn- channel ^NioChannel [^SocketWrapperBase wrapper]
  (.getSocket wrapper))

;; Cut

(defn- opened ^Field [^Class class ^String n]
  (doto (.getDeclaredField class n) (.setAccessible true)))

(def ^:private ^Field hook (opened Request "hook"))
(def ^:private ^Field socket-wrapper (opened AbstractProcessor "socketWrapper"))

(defn processor
  "Returns Tomcat's processor of the request, which has no public accessor."
  [^Request request]
  (.get hook request))

(defn cut!
  "Closes the socket; reset?: with a RST."
  [^SocketChannel socket reset?]
  (try
    (when reset? (.setOption socket StandardSocketOptions/SO_LINGER (Integer/valueOf 0)))
    (.close socket)
    ;; It is closed already.
    (catch IOException _)))

(defn socket
  "Returns the socket that the request came over, nil where it is there no more."
  ^SocketChannel [request]
  (some-> (.get socket-wrapper (processor request)) channel .getIOChannel))

(defn finish!
  "Ends the response towards the client, where Tomcat's thread cannot yet."
  [request]
  (when-some [socket (socket request)]
    (try
      (.shutdownOutput socket)
      (catch IOException _))))

(defn close!
  "Closes the socket that the request came over, under Tomcat, whose thread finds out; reset?: with
  a RST, where a FIN would look like the end of the body."
  [request reset?]
  (some-> (socket request) (cut! reset?)))

(def ^:private ^Field write-operation (opened SocketWrapperBase "writeOperation"))

(defn fail-write!
  "Has a write fail that a thread waits in, on a connection that has ended: Tomcat would let the
  thread wait for its timeout."
  [^SocketWrapperBase wrapper]
  (when-some [operation (.get write-operation wrapper)]
    (.setError wrapper (ClosedChannelException.))
    (.run ^Runnable operation)))

(defn abandon!
  "Closes the connection of a websocket, with what Tomcat keeps of it."
  [^NioEndpoint endpoint wrapper]
  (some-> (.getIOChannel (channel wrapper)) (cut! false))
  (try
    (fail-write! wrapper)
    (finally (.processSocket endpoint wrapper SocketEvent/ERROR true))))

;; Slow clients

(defn- head-begun-ms
  "Returns how many ms ago the head began that is being received, nil where none is. A connection
  that waits has a processor only in the middle of a head."
  [processor]
  (when-some [^Request request (when (instance? Processor processor)
                                 (.getRequest ^Processor processor))]
    (let [begun (.getStartTimeNanos request)]
      (when-not (= -1 begun) (quot (- (System/nanoTime) begun) 1000000)))))

(defn- agreed? [channel]
  (or (not (instance? SecureNioChannel channel))
      (.isHandshakeComplete ^SecureNioChannel channel)))

(defn- seen-ms
  "Returns for how many ms x has been seen, a connection without an agreement on TLS or a read;
  seen: when each was first, in ns."
  [^Map seen x]
  (let [now (System/nanoTime)]
    (.putIfAbsent seen x now)
    (quot (- now (long (.get seen x))) 1000000)))

;; Tomcat keeps nothing of a connection that has sent empty lines in place of a request. It writes a
;; response to each request, and holds the lock while it reads one and calls its handler.

(defn- idle? [^SocketWrapperBase wrapper]
  (let [^Lock lock (.getLock wrapper)]
    (and (.tryLock lock)
         (try
           (nil? (.getCurrentProcessor wrapper))
           (finally (.unlock lock))))))

(defn- no-request-ms
  "Returns for how many ms an idle connection has sent bytes that are no request; nil where it has
  not."
  [seen ^NioEndpoint$NioSocketWrapper wrapper]
  (watchdog/unanswered-ms seen wrapper (.getLastWrite wrapper) (.getLastRead wrapper)))

;; A read of HTTP/2 ends with its frame, or with the client's preface.
(def ^:private ^Field read-operation (opened SocketWrapperBase "readOperation"))
(def ^:private operation-class
  (Class/forName "org.apache.tomcat.util.net.SocketWrapperBase$OperationState"))
(def ^:private ^Field received (opened operation-class "nBytes"))
(def ^:private ^Field completion (opened operation-class "handler"))
(def ^:private ^Class preface
  (Class/forName "org.apache.coyote.http2.Http2AsyncParser$PrefaceCompletionHandler"))

(defn- frame-overdue?
  "True if the client's preface, or a frame of HTTP/2 that has begun, takes too long. A connection
  waits for its next frame with a read that has got nothing."
  [seen {:keys [head-ms frame-ms]} wrapper]
  (when-some [operation (.get read-operation wrapper)]
    (if (.isInstance preface (.get completion operation))
      (< (long head-ms) (long (seen-ms seen operation)))
      (and (pos? (.getLong received operation))
           (< (long frame-ms) (long (seen-ms seen operation)))))))

(defn- overdue?
  "True if the client has kept the server waiting for too long, for a head, a frame or a handshake."
  [{:keys [seen idle]} {:keys [head-ms] :as most} ^SocketWrapperBase wrapper]
  (let [overdue? #(and (some? %) (< (long head-ms) (long %)))]
    (if (agreed? (channel wrapper))
      (or (frame-overdue? seen most wrapper)
          (overdue? (head-begun-ms (.getCurrentProcessor wrapper)))
          (and (idle? wrapper) (overdue? (no-request-ms idle wrapper))))
      (overdue? (seen-ms seen wrapper)))))

(defn- close-slow! [^NioEndpoint endpoint seen most]
  (doseq [^SocketWrapperBase wrapper (.getConnections endpoint)
          :when (overdue? seen most wrapper)]
    ;; As Tomcat does itself when a client is silent for too long.
    (.processSocket endpoint wrapper SocketEvent/ERROR true)))

(defn slow-closer
  "Returns a function of an endpoint, to be called from time to time. It closes the connections of
  clients that have kept it waiting for more than :head-ms for a head, a handshake or the preface of
  HTTP/2, or more than :frame-ms for the rest of a frame."
  [most]
  (let [seen {:seen (WeakHashMap.), :idle (WeakHashMap.)}]
    (fn [endpoint] (close-slow! endpoint seen most))))
