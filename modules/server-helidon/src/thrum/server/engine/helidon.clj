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
   (io.helidon.webserver ListenerConfig$BuilderBase WebServer WebServerConfig)
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

;; Listeners: a server of Helidon's for each port. One server stops its listeners one after the
;; other, each when the connections of the one before have ended.

(def ^:private ^Duration for-ever (Duration/ofDays 365))

(defn- listener!
  "Sets how Helidon listens on this port; securing: the function that makes a socket one of TLS, or
  nil."
  [^ListenerConfig$BuilderBase builder port securing {:keys [all options address serve]} timer held]
  (doto builder
    (.protocolsDiscoverServices false)
    (.address ^InetAddress address)
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

(defn- config ^WebServerConfig [port securing parts timer held]
  (.buildPrototype (doto (WebServerConfig/builder)
                     (.featuresDiscoverServices false)
                     (.shutdownHook false)
                     (listener! port securing parts timer held))))

;; The server

(deftype Port [^WebServer server ^long number timer ^CountDownLatch held ^Thread stopping])

(defn- stop-thread
  "Returns a thread that stops the server: it closes the listener, and waits for the connections to
  end."
  ^Thread [^WebServer server]
  (spi/platform-thread "thrum-helidon-stop" #(.stop server)))

(defn- number ^long [^Port p]
  (.-number p))

(defn- await-timer!
  "Returns when the server's timer has ended, which takes a connection."
  [{:keys [address]} ^Port p]
  (let [timer (.-timer p)]
    (when-not (timer/ended? timer)
      (timer/visit! address (number p) #(timer/await-end! timer)))))

(defn- hold!
  "Returns when the listener accepts no more, which takes a connection; not for long."
  [{:keys [address]} ^Port p]
  (timer/visit! address (number p) #(.await ^CountDownLatch (.-held p) 1 TimeUnit/SECONDS)))

(defn- stop-soon!
  "Has the servers stop, once; returns when they take no more connections."
  [{:keys [all] :as parts} ports]
  (when (= Thread$State/NEW (.getState ^Thread (.-stopping ^Port (first ports))))
    (run! #(await-timer! parts %) ports)
    (http1/close! all)
    (run! #(hold! parts %) ports)
    (run! #(.start ^Thread (.-stopping ^Port %)) ports)))

(def ^:private ^Duration patience
  "How long the threads of connections that were cut may take to end: they may find no carrier."
  (Duration/ofSeconds 1))

(defn- await-end!
  "Waits until the server has stopped. Where that takes too long the threads of its connections are
  left behind, interrupted, and the listeners are closed all the same."
  [^Thread stopping]
  (when-not (.join stopping patience) (.interrupt stopping)))

(defn- stop! [{:keys [all] :as parts} ports]
  (stop-soon! parts ports)
  (http1/end-all! all)
  (run! #(await-end! (.-stopping ^Port %)) ports))

(defn- port-of [p]
  (int (if p (number p) -1)))

(deftype HelidonServer [parts plain secure watchdog]
  engine/Running
  (port [_] (port-of plain))
  (ssl-port [_] (port-of secure))
  (close-listeners! [_]
    (stop-soon! parts (keep identity [plain secure])))
  (stop! [_]
    (stop! parts (keep identity [plain secure]))
    (watchdog/stop! watchdog))
  (native [_]
    (let [^Port p (or plain secure)] (.-server p))))

;; Helidon 4.5's classes and its registry of services wait for each other where two threads make the
;; first servers at once. A start waits for virtual threads of Helidon's.
(def ^:private making (ReentrantLock.))

(defn- started ^Port [port securing parts]
  (holding making
    (let [timer (timer/timer)
          held (CountDownLatch. 1)
          server (doto (WebServer/create (config port securing parts timer held)) .start)]
      (when-not (.isRunning server)
        (throw (IOException. "Helidon did not start; its log says why")))
      (Port. server (.port server) timer held (stop-thread server)))))

(defn- start
  [{:keys [port ssl-port] :as options} serve]
  (check-addresses! options)
  (leave-deserialization-alone!)
  (let [securing (when ssl-port (http1/securing options))
        all (http1/connections options)
        parts {:all all, :options options, :serve serve
               ;; Once: the name may lead elsewhere when the server stops.
               :address (InetAddress/getByName (:host options))}
        ;; Before the servers: what fails behind it would leave its listeners open.
        watchdog (http1/watch all)]
    (watchdog/starting watchdog
      (fn []
        (let [plain (when port (started port nil parts))]
          (try
            (HelidonServer. parts plain (when ssl-port (started ssl-port securing parts)) watchdog)
            (catch Throwable t
              (when plain (stop! parts [plain]))
              (throw t))))))))

(def engine
  "Helidon 4 SE."
  {:name :helidon
   :capabilities #{:tls :client-certificates :disconnect :blocking-send :http-1.0}
   :clean-values? true
   :rows http1/rows
   :start start})
