(ns thrum.server.engine.helidon.connections
  "All connections of a server, from when Helidon accepts them to when they end; and who looks after them."
  (:require
   [thrum.jdk :as jdk]
   [thrum.server.engine.helidon.connection :as connection]
   [thrum.server.engine.helidon.http1 :as http1])
  (:import
   (io.helidon.common.buffers BufferData)
   (io.helidon.common.concurrency.limits Limit)
   (io.helidon.common.socket SocketOptions)
   (io.helidon.webserver CloseConnectionException ConnectionContext)
   (io.helidon.webserver.spi ServerConnection ServerConnectionSelector ServerConnectionSelector$Support)
   (java.io IOException)
   (java.net Socket StandardSocketOptions)
   (java.time Duration)
   (java.util Optional Set)
   (java.util.concurrent ConcurrentHashMap CountDownLatch Semaphore TimeUnit)
   (java.util.concurrent.atomic AtomicBoolean)
   (thrum.server.engine.helidon.connection Connection)))

(set! *warn-on-reflection* true)

;; accepted: [remote address, local one] -> the Accepted that Helidon has not handed over yet. open: the connections of the others.
;; room: how many more sockets there may be. timerless: open until Helidon's timer has ended. closed: whether no more are taken.
(deftype Connections [options ^ConcurrentHashMap accepted ^Set open ^Semaphore room ^CountDownLatch timerless ^AtomicBoolean closed])

(deftype Accepted [^Socket socket ^long until])

(defn connections
  "Returns the connections of a server with these options: none yet."
  ^Connections [{:keys [max-connections] :as options}]
  (Connections. options (ConcurrentHashMap.) (ConcurrentHashMap/newKeySet) (Semaphore. (int max-connections))
                (CountDownLatch. 1) (AtomicBoolean.)))

(defn close!
  "Takes no more connections: those that are there stay."
  [^Connections all]
  (.set ^AtomicBoolean (.-closed all) true))

;; A new one

(defn- note! [^Connections all ^Socket socket]
  (when (.get ^AtomicBoolean (.-closed all)) (throw (IOException. "The server takes no more connections")))
  (.setOption socket StandardSocketOptions/TCP_NODELAY true)
  (.put ^ConcurrentHashMap (.-accepted all)
        [(.getRemoteSocketAddress socket) (.getLocalSocketAddress socket)]
        (Accepted. socket (connection/in-ms (:header-timeout-ms (.-options all))))))

(defn- accept!
  "Notes a socket that was just accepted, on the listener's thread, which waits here while there are too many. Helidon's own bound is no
  use: a TLS handshake that fails takes a place for ever. What this throws closes the socket."
  [^Connections all socket]
  (.acquire ^Semaphore (.-room all))
  (try
    (note! all socket)
    (catch Throwable t
      (.release ^Semaphore (.-room all))
      (throw t))))

(defn socket-options
  "Returns options of Helidon's that note each socket it accepts: it shows it to nobody else."
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
    (configureSocket [_ socket] (accept! all socket))))

(defn- take-over!
  "Returns the connection that the context is of."
  ^Connection [^Connections all ^ConnectionContext context]
  (if-some [^Accepted accepted (.remove ^ConcurrentHashMap (.-accepted all)
                                        [(.address (.remotePeer context)) (.address (.localPeer context))])]
    (let [c (connection/connection (.-socket accepted) (.serverSocket context) (.-options all))]
      (.add ^Set (.-open all) c)
      c)
    (throw (CloseConnectionException. "It has been closed already"))))

;; Helidon's timer

(def ^Duration timer-period
  "How often Helidon looks for idle connections: not for long."
  (Duration/ofMillis 20))

(def ^:private quiet
  (reify Thread$UncaughtExceptionHandler (uncaughtException [_ _ _])))

(defn- end-timer!
  "Ends the calling thread: that of a java.util.Timer which Helidon starts for each server, to look for idle connections, and never
  ends. We look ourselves."
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

(defn- handle! [^Connections all ^Connection c context serve limit]
  (try
    (http1/talk! c context serve limit)
    (finally
      (try
        (connection/linger! c)
        (finally
          (.release ^Semaphore (.-room all))
          (await-timer! all)
          (.remove ^Set (.-open all) c))))))

(defn- server-connection ^ServerConnection [^Connections all serve ^ConnectionContext context]
  (let [c (take-over! all context)]
    (reify ServerConnection
      (^void handle [_ ^Limit limit] (handle! all c context serve limit))
      (idleTime [_] (end-timer! all))
      ;; Connections are ended one by one, when their time has come.
      (close [_ _interrupt]))))

(defn selector
  "Returns what gives Helidon the connection for a socket that it has accepted, and whose TLS handshake is done."
  ^ServerConnectionSelector [all serve]
  (reify ServerConnectionSelector
    (bytesToIdentifyConnection [_] 0)
    (^ServerConnectionSelector$Support supports [_ ^BufferData _] ServerConnectionSelector$Support/SUPPORTED)
    (supportedApplicationProtocols [_] #{"http/1.1"})
    (connection [_ context] (server-connection all serve context))))

;; The end

(defn- look-at-accepted!
  "Closes a socket whose handshake takes too long; gives the place of a closed one to others."
  [^Connections all addresses ^Accepted accepted now]
  (let [^Socket socket (.-socket accepted)]
    (cond
      (.isClosed socket) (when (.remove ^ConcurrentHashMap (.-accepted all) addresses accepted)
                           (.release ^Semaphore (.-room all)))
      (neg? (- (.-until accepted) (long now))) (connection/close! socket))))

(defn- look-at-all! [^Connections all]
  (let [now (System/nanoTime)]
    (run! #(.look ^Connection % now) (.-open all))
    (run! (fn [[addresses accepted]] (look-at-accepted! all addresses accepted now)) (.-accepted all))))

(defn- tick-ms [{:keys [header-timeout-ms idle-timeout-ms]}]
  (-> (min header-timeout-ms idle-timeout-ms) (quot 4) (max 5) (min 250)))

(defn keeper
  "Starts to look for connections that are silent; returns the thread, which ends when it is interrupted."
  ^Thread [^Connections all]
  (let [tick-ms (long (tick-ms (.-options all)))
        look (fn []
               (try
                 (while true
                   (Thread/sleep tick-ms)
                   (look-at-all! all))
                 (catch InterruptedException _)))]
    (doto (jdk/clean-thread "helidon-keeper" look) .start)))

(defn cut-all!
  "Ends all connections."
  [^Connections all]
  (run! #(.cut ^Connection %) (.-open all))
  (run! #(connection/close! (.-socket ^Accepted %)) (vals (.-accepted all))))
