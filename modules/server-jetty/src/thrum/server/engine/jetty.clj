(ns thrum.server.engine.jetty
  "The engine of Jetty 12.1's core: HTTP/1.1, 1.0 and 2, TLS, websockets, and a disconnect that is
  noticed.

  Jetty's few platform threads accept and select. A request is parsed on a virtual thread of Jetty's
  and handled on another, fresh one. So its connection can go on when another thread has answered
  the request, and a late interrupt meets a thread that is out of use."
  (:require
   [thrum.server.engine.jetty.accepting :as accepting]
   [thrum.server.engine.jetty.connector :as connector]
   [thrum.server.engine.jetty.quiet]
   [thrum.server.engine.jetty.slow :as slow]
   [thrum.server.engine.jetty.threads :as threads]
   [thrum.server.engine.jetty.websocket :as websocket]
   [thrum.server.engine.jetty.wire :as wire]
   [thrum.server.spi :as engine]
   [thrum.server.spi.watchdog :as watchdog]
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent ThreadFactory)
   (org.eclipse.jetty.http HttpException HttpHeader HttpStatus)
   (org.eclipse.jetty.server Connector Handler Handler$Abstract NetworkConnectionLimit Request Request$Handler Response Server ServerConnector)
   (org.eclipse.jetty.server.handler ErrorHandler)
   (org.eclipse.jetty.util Callback)
   (org.eclipse.jetty.util.component LifeCycle)))

(set! *warn-on-reflection* true)

(def ^:private positive {:check pos-int?, :accepts "a positive integer"})

(def ^:private rows
  {:sni-host-check?
   {:check boolean?
    :accepts "true or false"
    :default "false"
    :doc
    "whether a request over TLS is answered with 400 whose Host the certificate does not name"}
   :acceptors
   (assoc positive :default "1" :doc "how many threads of each connector accept connections")
   :selectors (assoc positive
                     :default "half the processors"
                     :doc "how many threads of each connector wait for sockets")
   :h2-max-streams
   (assoc positive :default "256" :doc "how many requests an HTTP/2 connection may have at once")
   :h2-max-events
   (assoc
     positive
     :default "128"
     :doc
     (str "how many resets, pings, settings and the like a client may send per second on an "
          "HTTP/2 connection"))
   :configurator {:check ifn?
                  :accepts "a function of the org.eclipse.jetty.server.Server"
                  :doc "called before the server starts, with its connectors in it"}})

;; Requests

(def ^:private ^ThreadFactory request-threads
  (spi/clean-threads "http-request"))

(defn- handler
  "Returns the handler that has each request served on a thread of its own; watched?: whether
  their clients are watched."
  [serve container watched?]
  (proxy [Handler$Abstract] []
    (handle [request response callback]
      (let [wire (wire/wire request response callback container watched?)]
        (.start (.newThread request-threads #(wire/serve! wire serve)))
        true))))

(defn- error-status
  "Returns the status to refuse the request with; one bound for the head, line and headers, has one
  status. A head that has half come when the server stops is no failure of the server's."
  [^Request request ^Response response]
  (let [cause (.getAttribute request ErrorHandler/ERROR_EXCEPTION)
        status
        (if (instance? HttpException cause) (.getCode ^HttpException cause) (.getStatus response))]
    (cond (= HttpStatus/URI_TOO_LONG_414 status) HttpStatus/REQUEST_HEADER_FIELDS_TOO_LARGE_431
          (and (= HttpStatus/INTERNAL_SERVER_ERROR_500 status)
               (.isStopping (.getServer (.getConnector (.getConnectionMetaData request)))))
          HttpStatus/SERVICE_UNAVAILABLE_503
          :else status)))

(defn- refusals
  "What Jetty refuses by itself gets a status and nothing else."
  ^Request$Handler [options]
  (reify Request$Handler
    (handle [_ request response callback]
      (let [status (error-status request response)]
        (.setStatus response status)
        ;; Bytes behind a request that was refused are not read (HTTP/2 ignores this).
        (.put (.getHeaders response) HttpHeader/CONNECTION "close")
        (.succeeded ^Callback callback)
        (engine/refused! options status (wire/remote-of request))
        true))))

;; The server

(defn- limit ^NetworkConnectionLimit [^Server server {:keys [max-connections]}]
  (NetworkConnectionLimit. (int (min (long max-connections) Integer/MAX_VALUE)) server))

(deftype JettyRunning [^Server server connectors ports ^LifeCycle limit accepting ^Thread heads]
  engine/Running
  (port [_] (:port ports -1))
  (ssl-port [_] (:ssl-port ports -1))
  (close-listeners! [_]
    ;; First: it would have them accept again when a connection ends.
    (.stop limit)
    (doseq [^ServerConnector connector connectors]
      (.setAccepting connector false)
      (.close connector)))
  (stop! [_]
    (try
      (accepting/await-end! accepting)
      (.stop server)
      (finally (watchdog/stop! heads))))
  (native [_] server))

(defn- ports-of
  "Returns the connectors' ports by the options that asked for them."
  [connectors]
  (update-vals connectors #(.getLocalPort ^ServerConnector %)))

(defn- start-server! [^Server server]
  (try
    (.start server)
    (catch Throwable t
      (.stop server)
      (throw t))))

(defn- server
  "Returns a server of Jetty's that is not started yet, with these connectors still to come."
  ^Server [options serve]
  (let [server (Server. (threads/pool options))]
    (doto server
      (.setErrorHandler (refusals options))
      (.setHandler ^Handler (handler serve
                                     (websocket/container server options)
                                     (:interrupt-on-disconnect? options))))))

(defn- connectors-of [server options]
  (into {}
        (remove (comp nil? val))
        {:port (connector/plain server options), :ssl-port (connector/secure server options)}))

(defn- start
  "Starts Jetty; returns it as Running."
  [{:keys [header-timeout-ms engine-options], :as options} serve]
  (let [server (server options serve)
        connectors (connectors-of server options)
        limit (limit server options)
        accepting (accepting/watch (vals connectors))]
    (run! #(.addConnector server ^Connector %) (vals connectors))
    (.addBean server limit)
    (when-some [configure (:configurator engine-options)] (configure server))
    ;; The server last: what fails behind it would leave its listeners open.
    (let [heads (slow/start (vals connectors) header-timeout-ms)]
      (watchdog/starting heads #(start-server! server))
      (JettyRunning. server (vals connectors) (ports-of connectors) limit accepting heads))))

(def engine
  "What thrum.server.spi says an engine is."
  {:name :jetty
   :capabilities #{:websockets :h2 :tls :client-certificates :disconnect :http-1.0 :blocking-send}
   :rows rows
   :start start})
