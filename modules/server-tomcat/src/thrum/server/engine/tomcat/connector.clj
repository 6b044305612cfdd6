(ns thrum.server.engine.tomcat.connector
  "Tomcat's connectors for the options: which protocols a port speaks, and within which bounds."
  (:require
   [thrum.server.engine.tomcat.head :as head]
   [thrum.server.engine.tomcat.request :as request]
   [thrum.server.engine.tomcat.rests :as rests]
   [thrum.server.engine.tomcat.stream :as stream]
   [thrum.server.engine.tomcat.tls :as tls]
   [thrum.spi :as spi])
  (:import
   (java.net InetAddress)
   (java.util.concurrent Executor Executors RejectedExecutionException ScheduledExecutorService ThreadFactory TimeUnit)
   (java.util.logging Level Logger)
   (org.apache.coyote.http11 Http11NioProtocol)
   (org.apache.coyote.http2 Http2Protocol)
   (org.apache.tomcat.util.net NioEndpoint)))

(set! *warn-on-reflection* true)

(def ^:private loggers
  "Tomcat's loggers of a connector's start and stop, and of bad requests. They log
  warnings only, unless the application has set their level. Held, since java.util.logging forgets
  levels otherwise."
  (mapv #(Logger/getLogger %) ["org.apache.coyote" "org.apache.tomcat.util.net"]))

(doseq [^Logger logger loggers :when (nil? (.getLevel logger))]
  (.setLevel logger Level/WARNING))

;; Threads

(def ^:private ^ThreadFactory virtual
  (spi/clean-threads "tomcat"))

(defn- executor ^Executor [rests]
  (reify Executor
    (execute [_ task]
      (.start (.newThread virtual
                (fn []
                  (try
                    (.run task)
                    ;; The connector has been stopped: streams of HTTP/2 that wait are not run.
                    (catch RejectedExecutionException _)
                    (finally (rests/end! rests)))))))))

(defn threads
  "Returns the executor of what Tomcat does from time to time."
  ^ScheduledExecutorService []
  (Executors/newSingleThreadScheduledExecutor (spi/clean-threads "tomcat-utility")))

;; Protocols

(def ^:private ^:const most-response-header-bytes
  "Each request's processor holds as much."
  16384)

(def ^:private ^:const most-idle-processors
  "What Tomcat serves a request with is kept for another: some 57 kB. Tomcat keeps 200 by default,
  and with thousands of requests in flight throws most of them away. Measured with 4 000 of 50 ms: a
  request takes twice the CPU then."
  4096)

(def ^:private ^:const idle-processors-ms
  "How long, at most, a processor is kept that no request needs: after a crowd they held 170 MB."
  3000)

(def ^:private ^String relaxed
  "Handlers get what was sent."
  "\"<>[\\]^`{|}")

(defn- int-of ^long [n]
  (min (long n) Integer/MAX_VALUE))

(defn- bound!
  [^Http11NioProtocol protocol {:keys [backlog max-connections max-header-bytes idle-timeout-ms]}]
  (let [idle (int (int-of idle-timeout-ms))]
    (doto protocol
      (.setAcceptCount (int (int-of backlog)))
      (.setMaxConnections (int (int-of max-connections)))
      (.setMaxHttpRequestHeaderSize (int (int-of max-header-bytes)))
      (.setMaxHttpResponseHeaderSize most-response-header-bytes)
      (.setMaxHeaderCount -1)
      (.setProcessorCache most-idle-processors)
      (.setMaxKeepAliveRequests -1)
      (.setConnectionTimeout idle)
      (.setKeepAliveTimeout idle))))

(defn- protocol
  ^Http11NioProtocol [^NioEndpoint endpoint port adapter threads
                      {:keys [^String host rests] :as options}]
  (doto (Http11NioProtocol. endpoint)
    (.setAddress (InetAddress/getByName host))
    (.setPort (int port))
    (bound! options)
    (.setExecutor (executor rests))
    (.setUtilityExecutor threads)
    (.setContinueResponseTiming "onRead")
    (.setUseKeepAliveResponseHeader false)
    (.setRelaxedPathChars relaxed)
    (.setRelaxedQueryChars relaxed)
    (.setAdapter adapter)))

(defn- upgrading
  "Returns a Http2Protocol for connections that begin with HTTP/1.1. They go on with it where the
  request has a body: Tomcat would read it first, with no bound of ours on its time, and refuse one
  of more than 4 kB."
  ^Http2Protocol []
  (let [plain (Http2Protocol.)]
    (proxy [Http2Protocol] []
      (accept [request]
        (and (head/may-upgrade? request)
             (not (request/announces-body? request))
             (.accept plain request))))))

(def ^:private ^long drain-ns
  "How long a connection takes new requests when the server stops: longer than any drain. Tomcat
  would take none, and end the connection, with all that is in flight, for the body of one that its
  client has sent meanwhile."
  (.toNanos TimeUnit/DAYS 365))

(defn- http2 ^Http2Protocol [secure? {:keys [idle-timeout-ms engine-options]}]
  (let [idle (long idle-timeout-ms)]
    (doto (if secure? (Http2Protocol.) (upgrading))
      (.setMaxConcurrentStreams (long (:h2-max-streams engine-options 256)))
      (.setReadTimeout idle)
      (.setWriteTimeout idle)
      (.setKeepAliveTimeout idle)
      (.setStreamReadTimeout idle)
      (.setStreamWriteTimeout idle)
      (.setOverheadResetFactor stream/reset-charge)
      (.setDrainTimeout drain-ns)
      (.setUseSendfile false))))

(defn- endpoint ^NioEndpoint []
  (let [endpoint (doto (NioEndpoint.) (.setBindOnInit false))]
    ;; A crowd that has gone would leave its buffers behind.
    (.setBufferPool (.getSocketProperties endpoint) 0)
    endpoint))

(defn- connector
  "Returns {:endpoint, :protocol} for a port, not started yet."
  [port threads adapter-of secure? {:keys [h2? h2c? engine-options] :as options}]
  (let [endpoint (endpoint)
        protocol (protocol endpoint port (adapter-of endpoint) threads options)]
    (when secure? (tls/secure! protocol options))
    (when (if secure? (not (false? h2?)) h2c?)
      (.addUpgradeProtocol protocol (http2 secure? options)))
    (when-some [configure (:configurator engine-options)] (configure protocol))
    {:endpoint endpoint, :protocol protocol}))

(defn ports
  "Returns the connectors by the options that ask for them; adapter-of: from an endpoint to what
  gets its requests."
  [{:keys [port ssl-port] :as options} threads adapter-of]
  (cond-> {}
    port (assoc :port (connector port threads adapter-of false options))
    ssl-port (assoc :ssl-port (connector ssl-port threads adapter-of true options))))

;; Life

(defn port-of
  "Returns the port that a connector listens on."
  [{:keys [^Http11NioProtocol protocol]}]
  (.getLocalPort protocol))

(defn close-listener!
  "Lets no new connection in."
  [{:keys [^Http11NioProtocol protocol]}]
  (.closeServerSocketGraceful protocol))

(defn stop!
  "Ends the connectors, their connections and threads."
  [connectors rests ^ScheduledExecutorService threads]
  (doseq [{:keys [^Http11NioProtocol protocol]} connectors]
    (.stop protocol)
    (.destroy protocol))
  (rests/stop! rests)
  (.shutdownNow threads))

(defn- let-processors-go!
  "Frees the processors that no request uses, again and again."
  [^NioEndpoint endpoint ^ScheduledExecutorService threads]
  (let [handler (.getHandler endpoint)]
    (.scheduleWithFixedDelay threads #(.recycle handler)
      idle-processors-ms idle-processors-ms TimeUnit/MILLISECONDS)))

(defn start!
  "Starts the connectors, all or none."
  [connectors rests threads]
  (try
    (doseq [{:keys [^Http11NioProtocol protocol endpoint]} connectors]
      (.init protocol)
      (.start protocol)
      (let-processors-go! endpoint threads))
    (catch Throwable t
      (stop! connectors rests threads)
      (throw t))))
