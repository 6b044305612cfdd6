(ns thrum.server.engine.tomcat.websocket
  "A request that becomes a websocket, over Tomcat's, without the servlets that Tomcat has them in.

  Tomcat answers each ping by itself, and tells nobody of it: pings are seen, and its own pongs
  dropped, by the link that it has for extensions in the chain which its frames go through."
  (:require
   [thrum.server.engine.tomcat.connections :as connections]
   [thrum.server.spi :as engine]
   [thrum.server.spi.http :as http]
   [thrum.spi :as spi])
  (:import
   (jakarta.servlet Filter FilterRegistration$Dynamic ServletContext)
   (jakarta.servlet.http HttpServletRequest)
   (jakarta.websocket CloseReason CloseReason$CloseCode Endpoint MessageHandler$Partial MessageHandler$Whole PongMessage)
   (jakarta.websocket.server ServerEndpointConfig ServerEndpointConfig$Builder ServerEndpointConfig$Configurator)
   (java.io ByteArrayOutputStream IOException)
   (java.nio ByteBuffer)
   (java.nio.charset StandardCharsets)
   (java.util Collections EventListener)
   (java.util.concurrent CompletableFuture ExecutionException Executor TimeUnit TimeoutException)
   (java.util.concurrent.atomic AtomicBoolean)
   (org.apache.coyote ActionCode Request Response UpgradeToken)
   (org.apache.coyote.http11.upgrade InternalHttpUpgradeHandler)
   (org.apache.tomcat.util.net AbstractEndpoint$Handler$SocketState)
   (org.apache.tomcat.websocket Constants MessagePart Transformation TransformationResult WsSession)
   (org.apache.tomcat.websocket.server WsHandshakeRequest WsHttpUpgradeHandler WsSci WsServerContainer)))

(set! *warn-on-reflection* true)

;; The container

(defn- context
  "Returns as much of a servlets' context as Tomcat's container of websockets asks for; containers:
  an atom that it is put into."
  ^ServletContext [container]
  (reify ServletContext
    (getAttribute [_ _] nil)
    (setAttribute [_ _ value] (reset! container value))
    (getInitParameter [_ _] nil)
    (^FilterRegistration$Dynamic addFilter [_ ^String _ ^Filter _] nil)
    (^void addListener [_ ^EventListener _] nil)))

(defn container
  "Returns a new container of websockets."
  ^WsServerContainer []
  (let [made (atom nil)]
    (.onStartup (WsSci.) nil (context made))
    (doto ^WsServerContainer @made
      ;; Seconds between looks for those that are silent.
      (.setProcessPeriod 1))))

;; Sockets

(defn- code ^CloseReason$CloseCode [n]
  (reify CloseReason$CloseCode (getCode [_] (int n))))

(defn- reason ^CloseReason [n text]
  (CloseReason. (code n) text))

(defmacro ^:private flushed
  "Sends, and blocks until that is flushed; throws IOException when the websocket is closed. over:
  whether that has been told, which Tomcat's session says later."
  [over & forms]
  `(try
     (when (.get ~over) (throw (IllegalStateException.)))
     ~@forms
     (catch IllegalStateException e#
       (throw (IOException. "The websocket is closed" e#)))))

(deftype TomcatSocket [^WsSession session ^AtomicBoolean over abort!]
  engine/Socket
  (open? [_] (and (not (.get over)) (.isOpen session)))
  (send-text! [_ message] (flushed over (.sendText (.getBasicRemote session) (str message))))
  (send-binary! [_ message] (flushed over (.sendBinary (.getBasicRemote session) message)))
  (send-ping! [_ data] (flushed over (.sendPing (.getBasicRemote session) data)))
  (send-pong! [_ data] (flushed over (.sendPong (.getBasicRemote session) data)))
  (close! [_ code text] (flushed over (.close session (reason code text))))
  (disconnect! [_] (abort!)))

;; What is received

(defn- too-big! [^WsSession session]
  (let [reason (reason 1009 "Too big")]
    (.doClose session reason reason true)))

(defn- joined
  "Returns a handler of a message's pieces that calls (told message) with the whole. held: what
  holds the pieces; size: how many bytes a piece has."
  ^MessageHandler$Partial [session most {:keys [hold! size whole clear!]} told]
  (let [held (volatile! 0)]
    (reify MessageHandler$Partial
      (onMessage [_ piece last?]
        (vswap! held + (long (size piece)))
        (if (< (long most) (long @held))
          (too-big! session)
          (do (hold! piece)
              (when last?
                (let [message (whole)]
                  (clear!)
                  (vreset! held 0)
                  (told message)))))))))

(defn- texts []
  (let [all (StringBuilder.)]
    {:hold! #(.append all ^String %)
     :size #(alength (.getBytes ^String % StandardCharsets/UTF_8))
     :whole #(.toString all)
     :clear! #(.setLength all 0)}))

(defn- bytes-of ^bytes [^ByteBuffer buffer]
  (let [all (byte-array (.remaining buffer))]
    (.get (.duplicate buffer) all)
    all))

(defn- binaries []
  (let [all (ByteArrayOutputStream.)]
    {:hold! #(.writeBytes all (bytes-of %))
     :size #(.remaining ^ByteBuffer %)
     :whole #(ByteBuffer/wrap (.toByteArray all))
     :clear! #(.reset all)}))

(defn- pong? [parts]
  (= Constants/OPCODE_PONG (.getOpCode ^MessagePart (first parts))))

(defn- noticing-pings
  "Returns what calls (told data) for each ping among the frames, and drops the pong that Tomcat
  sends for it, on the same thread, then."
  ^Transformation [told]
  (let [next (volatile! nil), reader (volatile! nil)]
    (reify Transformation
      (setNext [_ t] (vreset! next t))
      (validateRsvBits [_ n] (.validateRsvBits ^Transformation @next n))
      (getExtensionResponse [_] nil)
      (getMoreData [_ opcode fin rsv dest]
        (let [result (.getMoreData ^Transformation @next opcode fin rsv dest)]
          (when (and (= Constants/OPCODE_PING opcode) (= TransformationResult/END_OF_FRAME result))
            (vreset! reader (Thread/currentThread))
            (told (ByteBuffer/wrap (bytes-of (.flip (.duplicate ^ByteBuffer dest))))))
          result))
      (validateRsv [_ rsv opcode] (.validateRsv ^Transformation @next rsv opcode))
      (sendMessagePart [_ parts]
        (if (and (identical? (Thread/currentThread) @reader) (pong? parts))
          []
          (.sendMessagePart ^Transformation @next parts)))
      (close [_] (.close ^Transformation @next)))))

(defn- listen!
  "Has the listener told of the session's messages."
  [^WsSession session socket listener most]
  (let [^MessageHandler$Partial text
        (joined session most (texts) #(engine/on-text listener socket %))
        ^MessageHandler$Partial binary
        (joined session most (binaries) #(engine/on-binary listener socket %))
        ^MessageHandler$Whole pong (reify
                                     MessageHandler$Whole
                                     (onMessage [_ message]
                                       (engine/on-pong listener
                                         socket
                                         (ByteBuffer/wrap (bytes-of (.getApplicationData
                                                                      ^PongMessage message))))))]
    (doto session
      (.addMessageHandler String text)
      (.addMessageHandler ByteBuffer binary)
      (.addMessageHandler PongMessage pong))))

;; A websocket's life

(def ^:private ^:const most-close-ms
  "How long a client may take to answer a close."
  5000)

(def ^:private ^Executor elsewhere
  (reify Executor (execute [_ task] (.start (spi/clean-thread "tomcat-websocket" task)))))

(definterface Life
  (^Object opened [session])
  (^Object pinged [data])
  (^Object failed [throwable])
  (^Object closed [code reason])
  (^Object later [^Runnable say])
  (^Object abort []))

;; The end is told on threads of its own, one after the other: a send that fails ends the session,
;; and the listener may be in it. opened?: completed when the session is open. wrapper: a promise of
;; the connection. said: completed when all that is to be told later has been.
(deftype Conversation [listener options endpoint ^CompletableFuture opened? wrapper
                       ^AtomicBoolean over ^:volatile-mutable socket
                       ^:unsynchronized-mutable ^CompletableFuture said]
  Life
  (opened [this session]
    (let [{:keys [ws-idle-timeout-ms ws-max-message-bytes]} options]
      (.setMaxIdleTimeout ^WsSession session (long ws-idle-timeout-ms))
      (doto (.getUserProperties ^WsSession session)
        (.put Constants/BLOCKING_SEND_TIMEOUT_PROPERTY (long ws-idle-timeout-ms))
        (.put Constants/SESSION_CLOSE_TIMEOUT_PROPERTY
              (long (min (long ws-idle-timeout-ms) most-close-ms))))
      (set! socket (TomcatSocket. session over #(.abort this)))
      (listen! session socket listener ws-max-message-bytes)
      (if (.complete opened? nil)
        (engine/on-open listener socket)
        ;; await-open! has given up.
        (.abort this))))
  (pinged [_ data] (engine/on-ping listener socket data))
  (failed [this throwable] (when socket (.later this #(engine/on-error listener socket throwable))))
  (closed [this code reason]
    (.completeExceptionally opened? (IOException. "The websocket is closed"))
    (when (and socket (.compareAndSet over false true))
      (.later this #(engine/on-close listener socket code (or reason "")))))
  (later [this say] (locking this (set! said (.thenRunAsync said say elsewhere))))
  (abort [_] (connections/abandon! endpoint @wrapper)))

(defn- endpoint
  "Returns what Tomcat tells of its session, for the conversation."
  ^Endpoint [^Conversation conversation]
  (proxy [Endpoint] []
    (onOpen [session _] (.opened conversation session))
    (onClose [_ reason]
      (.closed conversation
               (.getCode (.getCloseCode ^CloseReason reason))
               (.getReasonPhrase ^CloseReason reason)))
    (onError [_ throwable] (.failed conversation throwable))))

(defn- configuration
  "Returns the configuration of a session whose endpoint is this one."
  ^ServerEndpointConfig [endpoint]
  (-> (ServerEndpointConfig$Builder/create Endpoint "/")
      (.configurator (proxy [ServerEndpointConfig$Configurator] []
                       (getEndpointInstance [_] endpoint)))
      (.build)))

(def ^:private no-request
  "What the session may tell of its request: nobody asks."
  (reify HttpServletRequest
    (getQueryString [_])
    (getUserPrincipal [_])
    (getSession [_ _])
    (getScheme [_] "http")
    (getServerName [_] "localhost")
    (getServerPort [_] 80)
    (getRequestURI [_] "/")
    (getParameterMap [_] {})
    (getHeaderNames [_] (Collections/emptyEnumeration))))

(defn- tomcats-handler
  "Returns Tomcat's own handler of the connection, once it is one of a websocket."
  ^WsHttpUpgradeHandler [container ^Conversation conversation secure?]
  (doto (WsHttpUpgradeHandler.)
    (.preInit (configuration (endpoint conversation))
              container
              (WsHandshakeRequest. no-request {})
              []
              nil
              (noticing-pings #(.pinged conversation %))
              {}
              (boolean secure?))))

(defn- handler
  "Returns the handler of the connection: Tomcat's, and whatever way the connection ends, the
  listener is told."
  ^InternalHttpUpgradeHandler [^WsHttpUpgradeHandler tomcats ^Conversation conversation]
  (reify InternalHttpUpgradeHandler
    (init [_ connection] (.init tomcats connection))
    (upgradeDispatch [_ event]
      (let [state (.upgradeDispatch tomcats event)]
        (when (= AbstractEndpoint$Handler$SocketState/CLOSED state) (.closed conversation 1006 ""))
        state))
    (timeoutAsync [_ now] (.timeoutAsync tomcats now))
    (setSocketWrapper [_ wrapper]
      (deliver (.-wrapper conversation) wrapper)
      (.setSocketWrapper tomcats wrapper))
    (setSslSupport [_ support] (.setSslSupport tomcats support))
    (pause [_] (.pause tomcats))
    (hasAsyncIO [_] false)
    (getUpgradeInfo [_] (.getUpgradeInfo tomcats))
    (destroy [_]
      (.destroy tomcats)
      (.closed conversation 1006 ""))))

;; Handshakes

(defn- sent? [^Response response]
  (let [failed (AtomicBoolean.)]
    (.action response ActionCode/IS_ERROR failed)
    (not (.get failed))))

(defn accept!
  "Sends the handshake, and has Tomcat make the connection a websocket's when its thread goes on;
  returns the conversation, for await-open!. options: the server's, and :container."
  ^Conversation
  [^Request request ^Response response endpoint protocol listener {:keys [container], :as options}]
  (let [conversation (Conversation. listener
                                    options
                                    endpoint
                                    (CompletableFuture.)
                                    (promise)
                                    (AtomicBoolean.)
                                    nil
                                    (CompletableFuture/completedFuture nil))
        handler (handler
                  (tomcats-handler container conversation (.equals (.scheme request) "https"))
                  conversation)]
    (doseq [[^String field ^String value]
            (http/websocket-headers (.getHeader request "sec-websocket-key") protocol)]
      (.setString (.addValue (.getMimeHeaders response) field) value))
    (.setStatus response 101)
    (.action request ActionCode/UPGRADE (UpgradeToken. handler nil nil "websocket"))
    (.action response ActionCode/CLIENT_FLUSH nil)
    (.action response ActionCode/CLOSE nil)
    (when-not (sent? response) (throw (IOException. "The handshake could not be sent")))
    conversation))

(def ^:private patience-s
  "How long Tomcat's thread may take to go on."
  10)

(defn- give-up!
  "Closes the websocket, now or as soon as it is open: nobody attends to it."
  [^Conversation conversation t]
  (let [^CompletableFuture opened (.-opened? conversation)]
    (when-not (or (.completeExceptionally opened t) (.isCompletedExceptionally opened))
      (.abort conversation))))

(defn- await-completed! [^CompletableFuture opened]
  (try
    (.get opened patience-s TimeUnit/SECONDS)
    (catch ExecutionException e (throw (.getCause e)))
    (catch TimeoutException e
      (throw (IOException. "The connection did not become a websocket" e)))))

(defn await-open!
  "Waits until the websocket is open; throws IOException when the connection has ended before."
  [^Conversation conversation]
  (try
    (await-completed! (.-opened? conversation))
    (catch Throwable t
      (give-up! conversation t)
      (throw t))))
