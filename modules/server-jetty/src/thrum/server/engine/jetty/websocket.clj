(ns thrum.server.engine.jetty.websocket
  "A request that becomes a websocket, over Jetty's."
  (:require
   [thrum.server.spi :as engine]
   [thrum.server.spi.flow :as flow]
   [thrum.server.spi.lock :refer [holding]])
  (:import
   (java.io IOException InterruptedIOException)
   (java.nio ByteBuffer)
   (java.time Duration)
   (java.util.concurrent CompletableFuture)
   (java.util.concurrent.atomic AtomicBoolean AtomicReference)
   (java.util.concurrent.locks ReentrantLock)
   (org.eclipse.jetty.http HttpStatus)
   (org.eclipse.jetty.server Request Response Server)
   (org.eclipse.jetty.util Callback)
   (org.eclipse.jetty.websocket.api Callback$Completable Session Session$Listener$AutoDemanding)
   (org.eclipse.jetty.websocket.server ServerUpgradeResponse ServerWebSocketContainer WebSocketCreator)))

(set! *warn-on-reflection* true)

(defmacro ^:private flushed
  "Waits until the frame that the forms send, with done as their callback, is flushed. over: whether
  the client has closed, which Jetty's session reports later."
  [[done ^AtomicBoolean over] & forms]
  `(let [~done (Callback$Completable.)]
     (when (.get ~over) (throw (IOException. "The websocket is closed")))
     ~@forms
     (flow/await! ~done)))

(defn- await-earlier!
  "Waits until the message before is flushed, or has failed. An interrupt of its sender has left it
  to Jetty, which would take the next ones too, as many as are sent."
  [^AtomicReference sending]
  (when-some [earlier (.get sending)]
    (try
      (flow/await! earlier)
      (catch InterruptedIOException e (throw e))
      (catch IOException _))))

(defmacro ^:private in-order
  "The same for a message, behind the one that sending holds."
  [[done over ^AtomicReference sending] & forms]
  `(do
     (await-earlier! ~sending)
     (flushed [~done ~over]
       ~@forms
       (.set ~sending ~done))))

;; sending: the future of the message that was sent last, or nil. Messages are sent one after the
;; other; pings and pongs may be sent beside them, and wait for the message.
(deftype JettySocket [^Session session ^AtomicBoolean over ^AtomicReference sending]
  engine/Socket
  (open? [_] (and (not (.get over)) (.isOpen session)))
  (send-text! [_ message] (in-order [done over sending] (.sendText session (str message) done)))
  (send-binary! [_ message] (in-order [done over sending] (.sendBinary session message done)))
  (send-ping! [_ data]
    (await-earlier! sending)
    (flushed [done over] (.sendPing session data done)))
  (send-pong! [_ data]
    (await-earlier! sending)
    (flushed [done over] (.sendPong session data done)))
  (close! [_ code reason] (flushed [done over] (.close session code reason done)))
  (disconnect! [_] (.disconnect session)))

(defn- copied
  "Returns a buffer of its own: Jetty's is used again when the callback is over."
  ^ByteBuffer [^ByteBuffer payload]
  (-> (ByteBuffer/allocate (.remaining payload)) (.put payload) (.flip)))

;; Calls of the listener. Messages are delivered on Jetty's thread: while the listener is busy
;; nothing more is read. The end is delivered on threads of its own, one after the other: Jetty must
;; go on, and let a send fail that the listener may be in.
(deftype Caller [listener turn ^AtomicReference last-call])

(defn- call!
  "Calls (f listener) when it is this thread's turn."
  [^Caller caller f]
  (holding (.-turn caller)
    (f (.-listener caller))))

(defn- call-after
  "Calls (f listener) on a thread of its own when before, a CompletableFuture or nil, is done;
  returns its own."
  [caller ^CompletableFuture before f]
  (flow/elsewhere (fn []
                    (some-> before (.exceptionally (fn [_])) (.join))
                    (call! caller f))))

(defn- call-later!
  "Calls (f listener) on a thread of its own, after the earlier calls of this kind."
  [^Caller caller f]
  (let [^AtomicReference last-call (.-last-call caller)]
    (locking caller
      (.set last-call (call-after caller (.get last-call) f)))))

(defn- endpoint
  "Returns Jetty's endpoint that calls the listener; opened is completed when the session is open."
  [listener ^CompletableFuture opened]
  (let [socket (promise)
        over (AtomicBoolean.)
        caller (Caller. listener (ReentrantLock. true) (AtomicReference.))]
    (reify
      Session$Listener$AutoDemanding
      (onWebSocketOpen [_ session]
        (deliver socket (JettySocket. session over (AtomicReference.)))
        (.complete opened nil)
        (call! caller #(engine/on-open % @socket)))
      (onWebSocketText [_ message] (call! caller #(engine/on-text % @socket message)))
      (onWebSocketBinary [_ payload callback]
        (let [message (copied payload)] (call! caller #(engine/on-binary % @socket message)))
        (.succeed callback))
      (onWebSocketPing [_ payload] (call! caller #(engine/on-ping % @socket payload)))
      (onWebSocketPong [_ payload] (call! caller #(engine/on-pong % @socket payload)))
      (onWebSocketError [_ cause]
        (.set over true)
        (when (realized? socket) (call-later! caller #(engine/on-error % @socket cause))))
      (onWebSocketClose [_ code reason callback]
        (.set over true)
        (when (realized? socket)
          (call-later! caller #(engine/on-close % @socket code (or reason ""))))
        (.succeed callback)))))

(defn- creator
  "Returns what accepts the upgrade, without extensions: a compressed message could be longer than
  it says."
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

(defn- declined []
  (IOException. "Jetty takes the request for no websocket's handshake"))

(defn upgrade!
  "Makes the request a websocket, and returns when the handshake has been sent; throws IOException
  when that fails."
  [^ServerWebSocketContainer container ^Request request ^Response response ^Callback callback
   protocol listener]
  (let [opened (CompletableFuture.)
        endpoint (endpoint listener opened)
        ;; The exchange that fails aborts Jetty's own. Jetty may have declined by an answer.
        sent (reify
               Callback
               (succeeded [_]
                 (when-not (= HttpStatus/SWITCHING_PROTOCOLS_101 (.getStatus response))
                   (.completeExceptionally opened (declined)))
                 (.succeeded callback))
               (failed [_ cause] (.completeExceptionally opened cause)))]
    ;; What follows the handshake runs on the thread that sent it.
    (flow/elsewhere
      #(try
         (when-not (.upgrade container (creator endpoint protocol) request response sent)
           (throw (declined)))
         (catch Throwable t (.completeExceptionally opened t))))
    (flow/await! opened)))
