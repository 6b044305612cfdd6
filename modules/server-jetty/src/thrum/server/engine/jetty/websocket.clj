(ns thrum.server.engine.jetty.websocket
  "A request that becomes a websocket, over Jetty's."
  (:require
   [thrum.server.engine]
   [thrum.server.engine.jetty.flow :as flow])
  (:import
   (java.io IOException)
   (java.nio ByteBuffer)
   (java.time Duration)
   (java.util.concurrent CompletableFuture)
   (org.eclipse.jetty.server Request Response Server)
   (org.eclipse.jetty.util Callback)
   (org.eclipse.jetty.websocket.api Callback$Completable Session Session$Listener$AutoDemanding)
   (org.eclipse.jetty.websocket.server ServerUpgradeResponse ServerWebSocketContainer WebSocketCreator)
   (thrum.server.engine Listener Socket)))

(set! *warn-on-reflection* true)

(defmacro ^:private flushed
  "Waits until the frame that the forms send, with done as their callback, is flushed."
  [[done] & forms]
  `(let [~done (Callback$Completable.)]
     ~@forms
     (flow/await! ~done)))

(deftype JettySocket [^Session session]
  Socket
  (isOpen [_] (.isOpen session))
  (text [_ message] (flushed [done] (.sendText session (str message) done)))
  (binary [_ message] (flushed [done] (.sendBinary session message done)))
  (ping [_ data] (flushed [done] (.sendPing session data done)))
  (pong [_ data] (flushed [done] (.sendPong session data done)))
  (close [_ code reason] (flushed [done] (.close session code reason done)))
  (abort [_] (.disconnect session)))

(defn- copied
  "Returns a buffer of its own: Jetty's is used again when the callback is over."
  ^ByteBuffer [^ByteBuffer payload]
  (-> (ByteBuffer/allocate (.remaining payload)) (.put payload) (.flip)))

(defn- endpoint
  "Returns what Jetty tells of the session, for listener; opened is completed when it is open."
  [^Listener listener ^CompletableFuture opened]
  (let [socket (promise)]
    (reify Session$Listener$AutoDemanding
      (onWebSocketOpen [_ session]
        (deliver socket (JettySocket. session))
        (.complete opened nil)
        (.opened listener @socket))
      (onWebSocketText [_ message] (.text listener @socket message))
      (onWebSocketBinary [_ payload callback]
        (.binary listener @socket (copied payload))
        (.succeed callback))
      (onWebSocketPing [_ payload] (.ping listener @socket payload))
      (onWebSocketPong [_ payload] (.pong listener @socket payload))
      (onWebSocketError [_ cause]
        (when (realized? socket) (.failed listener @socket cause)))
      (onWebSocketClose [_ code reason callback]
        (when (realized? socket) (.closed listener @socket code (or reason "")))
        (.succeed callback)))))

(defn- creator
  "Returns what accepts the upgrade, without extensions: a compressed message could be longer than it says."
  ^WebSocketCreator [endpoint protocol]
  (reify WebSocketCreator
    (createWebSocket [_ _ response _]
      (.setExtensions ^ServerUpgradeResponse response [])
      (when protocol (.setAcceptedSubProtocol ^ServerUpgradeResponse response protocol))
      endpoint)))

(defn container
  "Returns the server's container of websockets; to be called before the server starts."
  ^ServerWebSocketContainer [^Server server {:keys [ws-max-message-bytes ws-idle-timeout-ms]}]
  (doto (ServerWebSocketContainer/ensure server)
    (.setMaxTextMessageSize (long ws-max-message-bytes))
    (.setMaxBinaryMessageSize (long ws-max-message-bytes))
    (.setMaxFrameSize (long ws-max-message-bytes))
    (.setIdleTimeout (Duration/ofMillis (long ws-idle-timeout-ms)))))

(defn upgrade!
  "Makes the request a websocket, and returns when the handshake has been sent; throws IOException when that fails."
  [^ServerWebSocketContainer container ^Request request ^Response response ^Callback callback protocol listener]
  (let [opened (CompletableFuture.)
        endpoint (endpoint listener opened)
        told (reify Callback
               (succeeded [_] (.succeeded callback))
               (failed [_ cause]
                 (.completeExceptionally opened cause)
                 (.failed callback cause)))]
    ;; What follows the handshake runs on the thread that sent it.
    (flow/elsewhere
      #(try
         (when-not (.upgrade container (creator endpoint protocol) request response told)
           (throw (IOException. "The request is no websocket's handshake")))
         (catch Throwable t (.completeExceptionally opened t))))
    (flow/await! opened)))
