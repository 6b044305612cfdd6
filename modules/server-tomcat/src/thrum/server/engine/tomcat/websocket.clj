(ns thrum.server.engine.tomcat.websocket
  "A request that becomes a websocket: Tomcat's, without its servlets."
  (:require
   [thrum.server.engine.tomcat.connections :as connections]
   [thrum.server.engine.tomcat.messages :as messages]
   [thrum.server.spi :as engine]
   [thrum.server.spi.http :as http]
   [thrum.spi :as spi])
  (:import
   (jakarta.servlet Filter FilterRegistration$Dynamic ServletContext)
   (jakarta.servlet.http HttpServletRequest)
   (jakarta.websocket CloseReason CloseReason$CloseCodes Endpoint)
   (jakarta.websocket.server ServerEndpointConfig ServerEndpointConfig$Builder ServerEndpointConfig$Configurator)
   (java.io IOException)
   (java.util Collections EventListener)
   (java.util.concurrent CompletableFuture ExecutionException Executor TimeUnit TimeoutException)
   (java.util.concurrent.atomic AtomicBoolean AtomicReference)
   (org.apache.coyote ActionCode Request Response UpgradeToken)
   (org.apache.coyote.http11.upgrade InternalHttpUpgradeHandler)
   (org.apache.tomcat.util.net AbstractEndpoint$Handler$SocketState)
   (org.apache.tomcat.websocket Constants WsSession)
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

;; A websocket's life

(def ^:private ^:const most-close-ms
  "How long a client may take to get a close, and to answer it."
  5000)

(def ^:private ^Executor elsewhere
  (reify Executor (execute [_ task] (.start (spi/clean-thread "tomcat-websocket" task)))))

(def ^:private ^CloseReason cut-off
  "How a websocket has ended that neither side has closed."
  (CloseReason. CloseReason$CloseCodes/CLOSED_ABNORMALLY nil))

(defprotocol Life
  "What comes about in a websocket."
  (opened [life session] "The session is open.")
  (pinged [life data] "A ping has come.")
  (failed [life throwable] "The session has failed.")
  (closed [life reason] "The websocket has ended; later calls change nothing.")
  (gone [life] "The connection has ended, and with it the websocket.")
  (later [life f] "Calls (f) on a thread of its own, after the earlier ones have returned.")
  (abort [life] "Cuts the connection."))

;; The end is delivered on threads of its own: a send that fails ends the session, and the listener
;; may be in it. opened?: completed when the session is open. wrapper: a promise of the connection.
;; closing: the reason that the server's side closes with, or nil. failure: what the session has
;; failed with since, or nil. last-call: completed when all later calls have returned.
(deftype Conversation [listener options endpoint ^CompletableFuture opened? wrapper
                       ^AtomicBoolean over ^AtomicReference closing ^AtomicReference failure
                       ^:volatile-mutable socket
                       ^:unsynchronized-mutable ^CompletableFuture last-call]
  Life
  (opened [this session]
    (let [{:keys [ws-idle-timeout-ms ws-max-message-bytes]} options
          close-ms (long (min (long ws-idle-timeout-ms) most-close-ms))]
      (.setMaxIdleTimeout ^WsSession session (long ws-idle-timeout-ms))
      (doto (.getUserProperties ^WsSession session)
        (.put Constants/BLOCKING_SEND_TIMEOUT_PROPERTY (long ws-idle-timeout-ms))
        (.put Constants/SESSION_CLOSE_TIMEOUT_PROPERTY close-ms))
      (set! socket (messages/socket session over closing failure close-ms #(abort this)))
      (messages/listen! session socket listener ws-max-message-bytes)
      (if (.complete opened? nil)
        (engine/on-open listener socket)
        ;; await-open! has given up.
        (abort this))))
  (pinged [_ data] (engine/on-ping listener socket data))
  (failed [this throwable]
    (when (.get closing) (.set failure throwable))
    (when socket (later this #(engine/on-error listener socket throwable))))
  (closed [this reason]
    (.completeExceptionally opened? (IOException. "The websocket is closed"))
    (when (and socket (.compareAndSet over false true))
      (let [^CloseReason reason reason, code (.getCode (.getCloseCode reason))]
        (later this #(engine/on-close listener socket code (or (.getReasonPhrase reason) ""))))))
  ;; A client may answer a close before Tomcat, on the thread that has sent it, reports it.
  (gone [this]
    (when (realized? wrapper) (connections/fail-write! @wrapper))
    (closed this (or (.get closing) cut-off)))
  (later [this f] (locking this (set! last-call (.thenRunAsync last-call ^Runnable f elsewhere))))
  (abort [_] (connections/abandon! endpoint @wrapper)))

(defn- endpoint
  "Returns Tomcat's endpoint for the conversation."
  ^Endpoint [^Conversation conversation]
  (proxy [Endpoint] []
    (onOpen [session _] (opened conversation session))
    (onClose [_ reason] (closed conversation reason))
    (onError [_ throwable] (failed conversation throwable))))

(defn- configuration
  "Returns the configuration of a session whose endpoint is this one."
  ^ServerEndpointConfig [endpoint]
  (-> (ServerEndpointConfig$Builder/create Endpoint "/")
      (.configurator (proxy [ServerEndpointConfig$Configurator] []
                       (getEndpointInstance [_] endpoint)))
      (.build)))

(def ^:private no-request
  "The request's data in a session, which is not used."
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
              (messages/noticing-pings #(pinged conversation %))
              {}
              (boolean secure?))))

(defn- handler
  "Returns the handler of the connection: Tomcat's, but the listener's on-close is called however
  the connection ends."
  ^InternalHttpUpgradeHandler [^WsHttpUpgradeHandler tomcats ^Conversation conversation]
  (reify InternalHttpUpgradeHandler
    (init [_ connection] (.init tomcats connection))
    (upgradeDispatch [_ event]
      (let [state (.upgradeDispatch tomcats event)]
        (when (= AbstractEndpoint$Handler$SocketState/CLOSED state) (gone conversation))
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
      (gone conversation))))

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
                                    (AtomicReference.)
                                    (AtomicReference.)
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
  "Closes a websocket without a listener, now or as soon as it is open."
  [^Conversation conversation t]
  (let [^CompletableFuture opened (.-opened? conversation)]
    (when-not (or (.completeExceptionally opened t) (.isCompletedExceptionally opened))
      (abort conversation))))

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
