(ns thrum.server.engine.jetty.connector
  "Jetty's connectors for the options: which protocols a port speaks, and within which bounds."
  (:require
   [thrum.server.engine.jetty.events :as events]
   [thrum.server.engine.jetty.threads :as threads]
   [thrum.server.engine.jetty.tls :as tls])
  (:import
   (org.eclipse.jetty.alpn.server ALPNServerConnectionFactory)
   (org.eclipse.jetty.http HttpCompliance UriCompliance UriCompliance$Violation)
   (org.eclipse.jetty.http2.server AbstractHTTP2ServerConnectionFactory HTTP2CServerConnectionFactory HTTP2ServerConnectionFactory)
   (org.eclipse.jetty.server ConnectionFactory HttpConfiguration HttpConnectionFactory SecureRequestCustomizer Server ServerConnector SslConnectionFactory)))

(set! *warn-on-reflection* true)

;; HTTP

(defn- uris
  "Handlers get what was sent, //foo, %2F and ..; too; a user's name in a target is refused."
  ^UriCompliance []
  (.without UriCompliance/UNSAFE
            "THRUM"
            (into-array UriCompliance$Violation [UriCompliance$Violation/USER_INFO])))

(def ^:private ^:const most-response-header-bytes 65536)

(def ^:private ^:const response-header-bytes
  "Room for the 16 000 that a handler's may have, with the engine's own. Where a head does not fit
  Jetty writes it anew, and then forgets that the connection is to end."
  16384)

(defn- configuration ^HttpConfiguration [{:keys [max-header-bytes]}]
  (doto (HttpConfiguration.)
    (.setSendServerVersion false)
    (.setSendXPoweredBy false)
    (.setSendDateHeader true)
    (.setHttpCompliance HttpCompliance/STRICT)
    (.setUriCompliance (uris))
    ;; Jetty's cache of headers confuses two that differ in case only. Its case-sensitive mode takes
    ;; a third of the whole time.
    (.setHeaderCacheSize 0)
    (.setRequestHeaderSize (int max-header-bytes))
    (.setResponseHeaderSize response-header-bytes)
    (.setMaxResponseHeaderSize most-response-header-bytes)))

(defn- secured
  "Returns the configuration, for TLS. Jetty's own way would answer 400 to whom the certificate does
  not name: to who asks by an address, as health checks do."
  ^HttpConfiguration [^HttpConfiguration configuration {:keys [engine-options]}]
  (doto configuration
    (.addCustomizer (SecureRequestCustomizer. (boolean (:sni-host-check? engine-options))))))

(defn- bound-streams!
  "Bounds what a client of HTTP/2 may do: streams at once, and frames per second that cost it less
  than the server (resets, settings, pings, continuations)."
  [^AbstractHTTP2ServerConnectionFactory factory {:keys [h2-max-streams h2-max-events]}]
  (doto factory
    (.setMaxConcurrentStreams (int (or h2-max-streams 256)))
    (.setRateControlFactory (events/factory (or h2-max-events 128)))
    (.setConnectProtocolEnabled false)))

(defn- plain-factories
  [configuration {:keys [h2c? engine-options]}]
  (cond-> [(HttpConnectionFactory. configuration)]
    h2c? (conj (bound-streams! (HTTP2CServerConnectionFactory. ^HttpConfiguration configuration)
                               engine-options))))

(defn- secure-factories
  [configuration {:keys [h2? engine-options], :as options}]
  (let [http1 (HttpConnectionFactory. configuration)
        tls (tls/factory options)]
    (if (false? h2?)
      [(SslConnectionFactory. tls "http/1.1") http1]
      (let [alpn (doto (ALPNServerConnectionFactory. "h2,http/1.1")
                   (.setDefaultProtocol "http/1.1"))]
        [(SslConnectionFactory. tls "alpn") alpn
         (bound-streams! (HTTP2ServerConnectionFactory. ^HttpConfiguration configuration)
                         engine-options) http1]))))

;; Connectors

(defn- connector
  ^ServerConnector
  [^Server server port factories {:keys [host backlog idle-timeout-ms engine-options]}]
  (doto (ServerConnector. server
                          (threads/executor (.getThreadPool server))
                          nil
                          nil
                          (int (threads/acceptors engine-options))
                          (int (threads/selectors engine-options))
                          ^"[Lorg.eclipse.jetty.server.ConnectionFactory;"
                          (into-array ConnectionFactory factories))
    (.setHost host)
    (.setPort (int port))
    (.setAcceptQueueSize (int backlog))
    (.setIdleTimeout (long idle-timeout-ms))))

(defn plain
  "Returns the connector for HTTP, or nil."
  ^ServerConnector [server {:keys [port] :as options}]
  (when port
    (connector server port (plain-factories (configuration options) options) options)))

(defn secure
  "Returns the connector for HTTPS, or nil."
  ^ServerConnector [server {:keys [ssl-port], :as options}]
  (when ssl-port
    (connector server
               ssl-port
               (secure-factories (secured (configuration options) options) options)
               options)))
