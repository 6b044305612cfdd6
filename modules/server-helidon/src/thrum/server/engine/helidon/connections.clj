(ns thrum.server.engine.helidon.connections
  "All connections of a server, from when Helidon accepts them to when they end; and who looks after
  them.

  A place of :max-connections belongs to a connection from when it is accepted until it is taken out
  of the set, by whomever: by the thread that has served it, or by the keeper, which finds its
  socket closed. So it is given back once, however a connection ends."
  (:require
   [thrum.server.engine.helidon.connection :as connection]
   [thrum.server.engine.helidon.http1 :as http1]
   [thrum.spi :as spi])
  (:import
   (io.helidon.common.buffers BufferData)
   (io.helidon.common.concurrency.limits Limit)
   (io.helidon.common.socket SocketOptions)
   (io.helidon.webserver CloseConnectionException ConnectionContext)
   (io.helidon.webserver.spi ServerConnection ServerConnectionSelector ServerConnectionSelector$Support)
   (java.io IOException)
   (java.net Socket StandardSocketOptions)
   (java.nio.channels SocketChannel)
   (java.time Duration)
   (java.util Optional Set)
   (java.util.concurrent ConcurrentHashMap CountDownLatch Semaphore TimeUnit)
   (java.util.concurrent.atomic AtomicBoolean)
   (thrum.server.engine.helidon.connection Connection)))

(set! *warn-on-reflection* true)

;; open: the connections. room: how many more there may be. timerless: open until Helidon's timer
;; has ended. closed: whether no more are taken.
(deftype Connections [options ^Set open ^Semaphore room ^CountDownLatch timerless
                      ^AtomicBoolean closed])

(defn connections
  "Returns the connections of a server with these options: none yet."
  ^Connections [{:keys [max-connections], :as options}]
  (Connections. options
                (ConcurrentHashMap/newKeySet)
                (Semaphore. (int max-connections))
                (CountDownLatch. 1)
                (AtomicBoolean.)))

(defn close!
  "Takes no more connections: those that are there stay."
  [^Connections all]
  (.set ^AtomicBoolean (.-closed all) true))

(defn- end!
  "Closes the connection, and gives its place to others; once."
  [^Connections all c]
  (connection/close! c)
  (when (.remove ^Set (.-open all) c)
    (.release ^Semaphore (.-room all))))

;; A new one

(def ^:private ^InheritableThreadLocal newest
  "The connection that this thread, Helidon's listener, has accepted last. Helidon shows sockets to
  nobody but their options; the thread that it starts for one next inherits its connection."
  (InheritableThreadLocal.))

(defn- take-place!
  "Returns the connection of a socket, which has taken a place."
  ^Connection [^Connections all ^Socket socket]
  (let [c (connection/connection socket (.-options all))]
    (.acquire ^Semaphore (.-room all))
    (.expect c (connection/in-ms (:header-timeout-ms (.-options all))))
    (.add ^Set (.-open all) c)
    c))

(defn- accept!
  "Takes a place for a socket that was just accepted, on the listener's thread, which waits here
  while there are too many. What this throws closes the socket, and so gives the place back."
  [^Connections all ^SocketChannel channel]
  (.set newest (take-place! all (.socket channel)))
  (when (.get ^AtomicBoolean (.-closed all))
    (throw (IOException. "The server takes no more connections")))
  (.setOption channel StandardSocketOptions/TCP_NODELAY true))

(defn socket-options
  "Returns options of Helidon's that take a place for each socket it accepts."
  ^SocketOptions [all]
  (reify SocketOptions
    (socketOptions [_] {})
    (connectTimeout [_] Duration/ZERO)
    (readTimeout [_] Duration/ZERO)
    (socketReceiveBufferSize [_] (Optional/empty))
    (socketSendBufferSize [_] (Optional/empty))
    (socketReuseAddress [_] true)
    (socketKeepAlive [_] false)
    (tcpNoDelay [_] true)
    (^void configureSocket [_ ^Socket _])
    (^void configureSocket [_ ^SocketChannel channel] (accept! all channel))))

(defn- inherited
  "Returns the connection that the context is of, on the thread which Helidon has started for it."
  ^Connection [^ConnectionContext context]
  (let [^Connection c (.get newest)]
    (.remove newest)
    (when-not (and c (= (connection/remote c) (.address (.remotePeer context))))
      (throw (CloseConnectionException. "Whose connection this is cannot be told")))
    c))

;; Helidon's timer

(def ^Duration timer-period
  "How often Helidon looks for idle connections: not for long."
  (Duration/ofMillis 20))

(def ^:private quiet
  (reify Thread$UncaughtExceptionHandler (uncaughtException [_ _ _])))

(defn- end-timer!
  "Ends the calling thread: that of a java.util.Timer which Helidon starts for each server, to look
  for idle connections, and never ends. We look ourselves."
  [^Connections all]
  (.setUncaughtExceptionHandler (Thread/currentThread) quiet)
  (.countDown ^CountDownLatch (.-timerless all))
  (throw (IllegalStateException. "This timer is not needed")))

(defn await-timer!
  "Waits until Helidon's timer has looked at a connection, and ended; not for long."
  [^Connections all]
  (.await ^CountDownLatch (.-timerless all) 5 TimeUnit/SECONDS))

(defn timer?
  "Tells whether Helidon's timer still runs."
  [^Connections all]
  (pos? (.getCount ^CountDownLatch (.-timerless all))))

;; Serving

(defn- handle! [^Connections all ^Connection c securing serve]
  (try
    (http1/talk! c (when securing (connection/secure! c securing)) serve)
    (connection/linger! c)
    ;; The client has gone, or speaks no TLS.
    (catch IOException _)
    (finally
      (end! all c)
      (await-timer! all))))

(defn- server-connection ^ServerConnection [all securing serve context]
  (let [c (inherited context)]
    (reify ServerConnection
      (^void handle [_ ^Limit _] (handle! all c securing serve))
      (idleTime [_] (end-timer! all))
      ;; Connections are ended one by one, when their time has come.
      (close [_ _interrupt]))))

(defn selector
  "Returns what gives Helidon the connection for a socket that it has accepted; securing: what makes
  it one of TLS, or nil."
  ^ServerConnectionSelector [all securing serve]
  (reify
    ServerConnectionSelector
    (bytesToIdentifyConnection [_] 0)
    (^ServerConnectionSelector$Support supports [_ ^BufferData _]
      ServerConnectionSelector$Support/SUPPORTED)
    (supportedApplicationProtocols [_] #{})
    (connection [_ context] (server-connection all securing serve context))))

;; The end

(defn- look-at-all!
  "Cuts connections that have been silent for too long, and gives the places of closed ones back."
  [^Connections all]
  (let [now (System/nanoTime)]
    (doseq [^Connection c (.-open all)]
      (.look c now)
      (when (connection/ended? c) (end! all c)))))

(defn- tick-ms [{:keys [header-timeout-ms idle-timeout-ms]}]
  (-> (min header-timeout-ms idle-timeout-ms) (quot 4) (max 5) (min 250)))

(defn keeper
  "Starts to look after connections; returns the thread, which ends when it is interrupted."
  ^Thread [^Connections all]
  (let [tick-ms (long (tick-ms (.-options all)))
        look (fn []
               (try
                 (while true
                   (Thread/sleep tick-ms)
                   (look-at-all! all))
                 (catch InterruptedException _)))]
    (doto (spi/clean-thread "helidon-keeper" look) .start)))

(defn cut-all!
  "Ends all connections."
  [^Connections all]
  (run! #(.cut ^Connection %) (.-open all)))
