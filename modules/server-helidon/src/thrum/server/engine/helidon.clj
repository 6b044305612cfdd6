(ns thrum.server.engine.helidon
  "The engine on Helidon 4 SE's web server: HTTP/1.1, HTTP/1.0 and TLS.

  Helidon listens, accepts, and has a virtual thread for each connection; HTTP is
  thrum.server.http1's: doc/decisions says why."
  (:require
   [thrum.server.engine.helidon.handover :as handover]
   [thrum.server.engine.helidon.timer :as timer]
   [thrum.server.http1 :as http1]
   [thrum.server.spi :as engine]
   [thrum.server.spi.lock :refer [holding]]
   [thrum.server.spi.watchdog :as watchdog]
   [thrum.spi :as spi])
  (:import
   (io.helidon.common SerializationConfig SerializationConfig$Action)
   (io.helidon.common.socket SocketOptions)
   (io.helidon.webserver ListenerConfig ListenerConfig$BuilderBase WebServer WebServerConfig)
   (java.io IOException)
   (java.net InetAddress InetSocketAddress ServerSocket StandardSocketOptions)
   (java.time Duration)
   (java.util.concurrent CountDownLatch TimeUnit)
   (java.util.concurrent.locks ReentrantLock)
   (java.util.logging Level Logger)))

(set! *warn-on-reflection* true)

;; Before the start

(def ^:private ^Logger logger
  "Helidon logs, at INFO, when a server starts and stops: silent unless its level was set. Held,
  because the level is forgotten with the last reference."
  (Logger/getLogger "io.helidon"))

(when (nil? (.getLevel logger))
  (.setLevel logger Level/WARNING))

(defn- leave-deserialization-alone!
  "Helidon would forbid all deserialization to the whole JVM, or refuse to start where some is
  allowed."
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
  "Sets how Helidon listens on this port; securing: the function that makes a socket one of TLS, or
  nil."
  [^ListenerConfig$BuilderBase builder port securing {:keys [all options serve timer held]}]
  (doto builder
    (.protocolsDiscoverServices false)
    (.address (InetAddress/getByName ^String (:host options)))
    (.port (int port))
    (.backlog (int (:backlog options)))
    ;; 4096 otherwise.
    (.putListenerSocketOption StandardSocketOptions/SO_RCVBUF (Integer/valueOf 65536))
    (.connectionOptions ^SocketOptions (handover/socket-options all securing held))
    (.addConnectionSelector (handover/selector all serve timer))
    ;; Otherwise it has buffers of its own for each connection.
    (.useNio false)
    (.shutdownGracePeriod for-ever)
    (.idleConnectionPeriod timer/period)))

(def ^:private ^String secure-name "tls")

(defn- config ^WebServerConfig [{{:keys [port ssl-port] :as options} :options :as parts}]
  (let [builder (doto (WebServerConfig/builder)
                  (.featuresDiscoverServices false)
                  (.shutdownHook false))
        securing (when ssl-port (http1/securing options))]
    (if port
      (listener! builder port nil parts)
      (listener! builder ssl-port securing parts))
    (when (and port ssl-port)
      (.putSocket builder secure-name
                  (.buildPrototype (doto (ListenerConfig/builder)
                                     (.name secure-name)
                                     (listener! ssl-port securing parts)))))
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

(defn- await-timer!
  "Returns when the server's timer has ended, which takes a connection."
  [{:keys [options timer]} port]
  (when-not (timer/ended? timer)
    (timer/visit! (:host options) port #(timer/await-end! timer))))

(defn- hold-listeners!
  "Returns when the listeners accept no more, which takes a connection to each; not for long."
  [{:keys [options ^CountDownLatch held]} ports]
  (doseq [port ports]
    (timer/visit! (:host options) port (fn [])))
  (.await held 1 TimeUnit/SECONDS))

(defn- stop-soon!
  "Has the server stop, once; returns when it takes no more connections."
  [{:keys [all] :as parts} {:keys [port ssl-port]} ^Thread stopping]
  (when (= Thread$State/NEW (.getState stopping))
    (let [ports (filter pos? [port ssl-port])]
      (await-timer! parts (first ports))
      (http1/close! all)
      (hold-listeners! parts ports))
    (.start stopping)))

(def ^:private ^Duration patience
  "How long the threads of connections that were cut may take to end: they may find no carrier."
  (Duration/ofSeconds 1))

(defn- await-end!
  "Waits until the server has stopped. Where that takes too long the threads of its connections are
  left behind, interrupted, and the listeners are closed all the same."
  [^Thread stopping]
  (when-not (.join stopping patience) (.interrupt stopping)))

(deftype HelidonServer [^WebServer server parts ports watchdog ^Thread stopping]
  engine/Running
  (port [_] (int (:port ports)))
  (ssl-port [_] (int (:ssl-port ports)))
  (close-listeners! [_]
    (stop-soon! parts ports stopping))
  (stop! [_]
    (stop-soon! parts ports stopping)
    (http1/end-all! (:all parts))
    (await-end! stopping)
    (watchdog/stop! watchdog))
  (native [_] server))

;; Helidon 4.5's classes and its registry of services wait for each other where two threads make the
;; first servers at once. A start waits for virtual threads of Helidon's.
(def ^:private making (ReentrantLock.))

(defn- started ^WebServer [parts]
  (holding making
    (let [server (doto (WebServer/create (config parts)) .start)]
      (when-not (.isRunning server)
        (throw (IOException. "Helidon did not start; its log says why")))
      server)))

(defn- start
  [options serve]
  (check-addresses! options)
  (leave-deserialization-alone!)
  (let [all (http1/connections options)
        listeners (count (keep options [:port :ssl-port]))
        parts {:all all, :options options, :serve serve, :timer (timer/timer)
               :held (CountDownLatch. listeners)}
        ;; Before the server: what fails behind it would leave its listeners open.
        watchdog (http1/watch all)
        server (watchdog/starting watchdog #(started parts))]
    (HelidonServer. server parts (ports-of server options) watchdog (stop-thread server))))

(def engine
  "Helidon 4 SE."
  {:name :helidon
   :capabilities #{:tls :client-certificates :disconnect :blocking-send :http-1.0}
   :clean-values? true
   :rows http1/rows
   :start start})
