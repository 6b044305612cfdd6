(ns thrum.server.engine.helidon.handover
  "The way of a socket from Helidon, which has accepted it, to thrum.server.http1.

  Helidon shows a socket to SocketOptions alone, on the listener's thread, and starts a thread for
  it next, where a ServerConnectionSelector is asked for the connection, and shown no socket. So the
  connection is left in an InheritableThreadLocal, which is read nowhere else, and once."
  (:require
   [thrum.server.engine.helidon.descriptors :as descriptors]
   [thrum.server.engine.helidon.timer :as timer]
   [thrum.server.http1 :as http1]
   [thrum.server.http1.connection :as connection])
  (:import
   (io.helidon.common.buffers BufferData)
   (io.helidon.common.concurrency.limits Limit)
   (io.helidon.common.socket SocketOptions)
   (io.helidon.webserver CloseConnectionException ConnectionContext)
   (io.helidon.webserver.spi ServerConnection ServerConnectionSelector ServerConnectionSelector$Support)
   (java.io IOException)
   (java.net Socket)
   (java.nio.channels SocketChannel)
   (java.time Duration)
   (java.util Optional)
   (java.util.concurrent CountDownLatch)))

(set! *warn-on-reflection* true)

(def ^:private ^InheritableThreadLocal accepted
  "The connection that this thread, Helidon's listener, has accepted last."
  (InheritableThreadLocal.))

(defn- hold!
  "Blocks until Helidon interrupts the listener, as its stop does. In accept that interrupt makes
  the JDK forget a socket that has just been accepted: it stays open, and no thread serves it."
  [^SocketChannel channel ^CountDownLatch held]
  (.close channel)
  (.countDown held)
  (.await (CountDownLatch. 1)))

(defn- accept!
  "Accepts the socket as a connection; returns when there are file descriptors for the next one."
  [all ^SocketChannel channel securing]
  (try
    (.set accepted (http1/accept! all (.socket channel) securing))
    (catch Error e (throw (IOException. "The connection could not be taken" e)))
    (finally (descriptors/await!))))

(defn socket-options
  "Returns options of Helidon's that accept each of its sockets as a connection, on the listener's
  thread, which accepts the next one when there are file descriptors. Behind http1/close! they hold
  the listener, and count it in held. What they throw closes the socket, and is an Exception: an
  Error would end the listener."
  ^SocketOptions [all securing held]
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
    (^void configureSocket [_ ^SocketChannel channel]
      (try
        (accept! all channel securing)
        (catch IOException e
          (when (http1/closed? all) (hold! channel held))
          (throw e))))))

(defn- inherited
  "Returns the connection that the context is of, on the thread that Helidon has started for it."
  [^ConnectionContext context]
  (let [c (.get accepted)]
    (.remove accepted)
    (when-not (and c (= (connection/remote c) (.address (.remotePeer context))))
      (throw (CloseConnectionException. "The connection of this socket is not known")))
    c))

(defn- server-connection ^ServerConnection [all serve timer context]
  (let [c (inherited context)]
    (reify ServerConnection
      (^void handle [_ ^Limit _]
        (try
          (http1/serve! all c serve nil)
          (timer/await-end! timer)
          ;; A stop no longer waits for this thread. Helidon would log it.
          (catch InterruptedException _)))
      (idleTime [_] (timer/end! timer))
      ;; Connections are ended one by one, when their time has come.
      (close [_ _interrupt]))))

(defn selector
  "Returns what gives Helidon the connection for a socket that it has accepted."
  ^ServerConnectionSelector [all serve timer]
  (reify ServerConnectionSelector
    (bytesToIdentifyConnection [_] 0)
    (^ServerConnectionSelector$Support supports [_ ^BufferData _]
      ServerConnectionSelector$Support/SUPPORTED)
    (supportedApplicationProtocols [_] #{})
    (connection [_ context] (server-connection all serve timer context))))
