(ns thrum.server.engine.jetty.slow
  "Closes connections whose client takes too long to send a request's head, or to agree on TLS,
  however steadily it does so."
  (:require
   [thrum.server.spi.watchdog :as watchdog])
  (:import
   (java.util Collection Map WeakHashMap)
   (javax.net.ssl SSLEngineResult$HandshakeStatus)
   (org.eclipse.jetty.http HttpParser)
   (org.eclipse.jetty.io EndPoint)
   (org.eclipse.jetty.io.ssl SslConnection)
   (org.eclipse.jetty.server ServerConnector)
   (org.eclipse.jetty.server.internal HttpConnection)))

(set! *warn-on-reflection* true)

(defn- head-begun-ms
  "Returns how many ms ago the head began that is being received, nil where none is."
  [^HttpParser parser]
  (let [begun (.getBeginNanoTime parser)]
    ;; The parser goes on meanwhile. Between two requests its time is 0; one that belongs to an
    ;; earlier head has changed behind the state.
    (when (and (.inHeaderState parser)
               (not (.isStart parser))
               (not (zero? begun))
               (= begun (.getBeginNanoTime parser)))
      (quot (- (System/nanoTime) begun) 1000000))))

(defn- kept-waiting-ms [seen ^HttpConnection connection]
  (let [parser (.getParser connection)]
    (if (.isStart parser)
      (watchdog/unanswered-ms seen connection (.getMessagesIn connection)
                              (.getBytesIn connection))
      (head-begun-ms parser))))

(defn- agreed?
  "True if no handshake is under way, and one has been completed: the session has a protocol before
  the client has said its last."
  [^SslConnection connection]
  (let [engine (.getSSLEngine connection)]
    (and (= SSLEngineResult$HandshakeStatus/NOT_HANDSHAKING (.getHandshakeStatus engine))
         (not= "NONE" (.getProtocol (.getSession engine))))))

;; Jetty's own time of the connection is a time of day, which may be set meanwhile. Later keys are
;; agreed on as the first are: only these have a time.
(defn- handshake-ms
  "Returns for how many ms the connection's first handshake has been seen to go on; nil when it has
  been completed."
  [^Map seen connection]
  (let [since (.get seen connection), now (System/nanoTime)]
    (cond
      (= :agreed since) nil
      (agreed? connection) (do (.put seen connection :agreed) nil)
      since (quot (- now (long since)) 1000000)
      :else (do (.put seen connection now) 0))))

(defn- waited-ms
  "Returns for how many ms the client at the end point has kept the server waiting for a head or a
  handshake; nil: it has not."
  [seen ^EndPoint end-point]
  (let [connection (.getConnection end-point)]
    (condp instance? connection
      HttpConnection (kept-waiting-ms seen connection)
      SslConnection (or (handshake-ms seen connection)
                        (recur seen (.getSslEndPoint ^SslConnection connection)))
      nil)))

(defn- close-slow! [seen ^EndPoint end-point most-ms]
  (when (< (long most-ms) (long (or (waited-ms seen end-point) 0)))
    (.close end-point)))

(defn- close-all-slow! [seen ^ServerConnector connector most-ms]
  (run! #(close-slow! seen % most-ms) ^Collection (.getConnectedEndPoints connector)))

(defn start
  "Starts to look after the connectors; returns the thread, which ends when it is interrupted."
  ^Thread [connectors most-ms]
  (let [seen (WeakHashMap.)]
    (watchdog/start "jetty-heads" (watchdog/period-ms [most-ms])
      (fn [] (run! #(close-all-slow! seen % most-ms) connectors)))))
