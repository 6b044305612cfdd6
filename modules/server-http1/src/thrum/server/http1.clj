(ns thrum.server.http1
  "HTTP/1.1 and 1.0 on sockets that an engine has accepted, for engines without an HTTP of their
  own.

  A permit of :max-connections belongs to a connection from accept! until it is taken out of the
  set: by the thread that has served it, or by the watchdog, which finds its socket closed. So it is
  given back once, however a connection ends."
  (:require
   [thrum.server.http1.connection :as connection]
   [thrum.server.http1.requests :as requests]
   [thrum.server.http1.tls :as tls]
   [thrum.server.spi :as engine]
   [thrum.server.spi.watchdog :as watchdog]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.net Socket)
   (java.util Set)
   (java.util.concurrent ConcurrentHashMap Semaphore TimeUnit)
   (java.util.concurrent.atomic AtomicBoolean)
   (thrum.server.http1.connection Connection)))

(set! *warn-on-reflection* true)

;; open: the connections. room: how many more there may be. closed: whether no more are taken.
(deftype Connections [options ^Set open ^Semaphore room ^AtomicBoolean closed])

(defn- permits
  "Returns how many connections there may be."
  ^long [{:keys [max-connections]}]
  (min (long max-connections) Integer/MAX_VALUE))

(def rows
  "The option rows that engines over this module have."
  {:reuse-threads? engine/reuse-threads})

(defn connections
  "Returns the connections of a server with these options: none yet."
  ^Connections [options]
  (Connections. options (ConcurrentHashMap/newKeySet) (Semaphore. (int (permits options)))
                (AtomicBoolean.)))

(defn close!
  "Takes no more connections: those that are there stay."
  [^Connections all]
  (.set ^AtomicBoolean (.-closed all) true))

(defn closed?
  "True behind close!."
  [^Connections all]
  (.get ^AtomicBoolean (.-closed all)))

(defn- closed ^IOException []
  (IOException. "The server takes no more connections"))

(defn- end!
  "Closes the connection, and gives its permit back; once."
  [^Connections all c]
  (connection/close! c)
  (when (.remove ^Set (.-open all) c)
    (.release ^Semaphore (.-room all))))

(defn securing
  "Returns what makes an accepted socket one of TLS, for accept!. Throws where a key store cannot be
  loaded."
  [options]
  (tls/securing options))

(def ^:private ^:const look-ms
  "How often a connection that waits for a permit looks for close!."
  20)

(defn- take-permit!
  "Blocks while there is none. Throws IOException behind close!."
  [^Connections all]
  (while (not (.tryAcquire ^Semaphore (.-room all) look-ms TimeUnit/MILLISECONDS))
    (when (closed? all) (throw (closed)))))

(defn- admit!
  "Takes a permit for the connection, and expects its first request; blocks while there is none."
  [^Connections all c]
  (take-permit! all)
  (try
    (connection/expect! c (spi/deadline-in (:header-timeout-ms (.-options all))))
    (.add ^Set (.-open all) c)
    (catch Throwable t
      (.release ^Semaphore (.-room all))
      (throw t))))

(defn accept!
  "Returns the connection of a socket that was just accepted; securing: as above, or nil. Blocks
  while there are :max-connections. Throws IOException behind close!, and where the socket is no
  good; the caller closes it then."
  ^Connection [^Connections all ^Socket socket securing]
  (let [c (connection/connection socket (if securing (securing socket) socket) (.-options all))]
    (.setTcpNoDelay socket true)
    (admit! all c)
    (when (closed? all)
      (end! all c)
      (throw (closed)))
    c))

(defn serve!
  "Serves the connection's requests, and returns when it is closed. upgrade: opens a websocket, and
  returns when its handshake is sent; nil where the engine has none. It gets a map of :connection,
  :input, :key, the client's Sec-WebSocket-Key, :headers, of the response, :protocol, the
  subprotocol or nil, :listener, and :end, to be called when the connection is to end."
  [all c serve upgrade]
  (try
    (connection/shake-hands! c)
    (requests/serve-all! c serve upgrade)
    (connection/linger! c)
    ;; The client has gone, or speaks no TLS.
    (catch IOException _)
    (finally (end! all c))))

(defn- look-at-all! [^Connections all]
  (let [now (System/nanoTime)]
    (doseq [c (.-open all)]
      (connection/look! c now)
      (when (connection/closed? c) (end! all c)))))

(defn watch
  "Returns a watchdog for the connections, which cuts those that are silent for too long."
  ^Thread [^Connections all]
  (let [{:keys [header-timeout-ms idle-timeout-ms]} (.-options all)]
    (watchdog/start "thrum-http1" (watchdog/period-ms [header-timeout-ms idle-timeout-ms])
                    #(look-at-all! all))))

(def ^:private ^:const end-ms
  "How long end-all! waits for the connections to end: their threads may find no carrier to end on."
  2000)

(defn end-all!
  "Cuts all connections behind close!, and returns when they have ended, or are not to be waited for
  any longer."
  [^Connections all]
  (let [^Semaphore room (.-room all)
        n (int (permits (.-options all)))
        until (spi/deadline-in end-ms)]
    (loop []
      (cond
        (.tryAcquire room n 20 TimeUnit/MILLISECONDS) (.release room n)
        (not (spi/passed? until)) (do (run! connection/cut! (.-open all))
                                      (recur))))))
