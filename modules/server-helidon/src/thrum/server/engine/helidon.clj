(ns thrum.server.engine.helidon
  "The engine on Helidon 4 SE's web server: HTTP/1.1, HTTP/1.0 and TLS.

  Helidon listens, accepts, and has a virtual thread for each connection. What is said on a
  connection is ours: doc/decisions says why."
  (:require
   [thrum.server.engine.helidon.connections :as connections]
   [thrum.server.engine.helidon.tls :as tls]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (io.helidon.common SerializationConfig SerializationConfig$Action)
   (io.helidon.common.socket SocketOptions)
   (io.helidon.webserver ListenerConfig ListenerConfig$BuilderBase WebServer WebServerConfig)
   (java.io IOException)
   (java.net InetAddress InetSocketAddress ServerSocket Socket StandardSocketOptions)
   (java.time Duration)
   (java.util.logging Level Logger)))

(set! *warn-on-reflection* true)

;; Before the start

(def ^:private ^Logger logger
  "Helidon tells when a server starts and stops; unless somebody asked for that, nobody hears it.
  Held, lest its level is forgotten."
  (Logger/getLogger "io.helidon"))

(when (nil? (.getLevel logger))
  (.setLevel logger Level/WARNING))

(defn- leave-deserialization-alone!
  "Helidon would forbid all deserialization to the whole JVM, or refuse to start where somebody
  allows some."
  []
  (try
    (.configure (.build (doto (SerializationConfig/builder)
                          (.onNoConfig SerializationConfig$Action/IGNORE)
                          (.onWrongConfig SerializationConfig$Action/IGNORE))))
    ;; The application has configured Helidon's filter itself.
    (catch IllegalArgumentException _)))

(defn- check-addresses!
  "Throws what Helidon would only write to its log: that an address cannot be listened on."
  [{:keys [^String host port ssl-port backlog]}]
  (doseq [port (remove nil? [port ssl-port])]
    (with-open [probe (ServerSocket.)]
      (.bind probe (InetSocketAddress. (InetAddress/getByName host) (int port)) (int backlog)))))

;; Listeners. Helidon's server is a listener itself, and may have others by name.

(def ^:private ^Duration for-ever (Duration/ofDays 365))

(defn- listener!
  "Tells Helidon how to listen on this port; securing: what makes a socket one of TLS, or nil."
  [^ListenerConfig$BuilderBase builder all port securing {:keys [^String host backlog]} serve]
  (doto builder
    (.protocolsDiscoverServices false)
    (.address (InetAddress/getByName host))
    (.port (int port))
    (.backlog (int backlog))
    ;; 4096 otherwise.
    (.putListenerSocketOption StandardSocketOptions/SO_RCVBUF (Integer/valueOf 65536))
    (.connectionOptions ^SocketOptions (connections/socket-options all))
    (.addConnectionSelector (connections/selector all securing serve))
    ;; Otherwise it has buffers of its own for each connection.
    (.useNio false)
    (.shutdownGracePeriod for-ever)
    (.idleConnectionPeriod connections/timer-period)))

(def ^:private ^String secure-name "tls")

(defn- config ^WebServerConfig [all {:keys [port ssl-port] :as options} serve]
  (let [builder (doto (WebServerConfig/builder)
                  (.featuresDiscoverServices false)
                  (.shutdownHook false))
        securing (when ssl-port (tls/securing options))]
    (if port
      (listener! builder all port nil options serve)
      (listener! builder all ssl-port securing options serve))
    (when (and port ssl-port)
      (.putSocket builder secure-name
                  (.buildPrototype (doto (ListenerConfig/builder)
                                     (.name secure-name)
                                     (listener! all ssl-port securing options serve)))))
    (.buildPrototype builder)))

(defn- ports-of [^WebServer server {:keys [port ssl-port]}]
  {:port (if port (.port server) -1)
   :ssl-port (cond
               (nil? ssl-port) -1
               port (.port server secure-name)
               :else (.port server))})

;; The server

(defn- stop-thread
  "Returns a thread that stops the server: it closes the listeners, and waits for the connections to
  end."
  ^Thread [^WebServer server]
  (spi/platform-thread "thrum-helidon-stop" #(.stop server)))

(defn- visit!
  "Connects to the server where nobody ever did: for its timer to end, there must be a connection."
  [all {:keys [port ssl-port]}]
  (when (connections/timer? all)
    (try
      (with-open [_ (Socket. (InetAddress/getLoopbackAddress)
                             (int (max (long port) (long ssl-port))))]
        (connections/await-timer! all))
      (catch IOException _))))

(defn- stop-soon!
  "Has the server stop, once; returns when it takes no more connections."
  [all ^Thread stopping ports]
  (when (= Thread$State/NEW (.getState stopping))
    (visit! all ports)
    (connections/close! all)
    (.start stopping)))

(deftype HelidonServer [^WebServer server ports all ^Thread keeper ^Thread stopping]
  engine/Running
  (port [_] (int (:port ports)))
  (ssl-port [_] (int (:ssl-port ports)))
  (close-listeners! [_]
    (stop-soon! all stopping ports))
  (stop! [_]
    (stop-soon! all stopping ports)
    (while (not (.join stopping (Duration/ofMillis 20)))
      (connections/cut-all! all))
    (.interrupt keeper)
    (.join keeper))
  (native [_] server))

;; Helidon 4.5's classes and its registry of services wait for each other where two threads make the
;; first servers at once.
(def ^:private making (Object.))

(defn- started ^WebServer [all options serve]
  (locking making
    (doto (WebServer/create (config all options serve))
      .start)))

(defn- start
  [options serve]
  (check-addresses! options)
  (leave-deserialization-alone!)
  (let [all (connections/connections options)
        server (started all options serve)]
    (when-not (.isRunning server) (throw (IOException. "Helidon did not start; its log says why")))
    (HelidonServer. server
                    (ports-of server options)
                    all
                    (connections/keeper all)
                    (stop-thread server))))

(def engine
  "Helidon 4 SE."
  {:name :helidon
   :capabilities #{:tls :client-certificates :blocking-send :http-1.0}
   :rows {}
   :start start})
