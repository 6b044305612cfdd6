(ns thrum.cluster.engine.jgroups
  "The JGroups channel of a node."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.cluster.engine.detection :as detection]
   [thrum.cluster.engine.loops :as loops])
  (:import
   (java.io ByteArrayInputStream)
   (java.lang.reflect Field)
   (org.infinispan.remoting.transport.jgroups JGroupsChannelConfigurator)
   (org.jgroups JChannel)
   (org.jgroups.blocks.cs Connection TcpConnectionNonBlocking)
   (org.jgroups.protocols MERGE3)
   (org.jgroups.stack ProtocolStack$Position)
   (org.jgroups.util Runner)))

(set! *warn-on-reflection* true)

(defn- escaped [x]
  (str/escape (str x) {\< "&lt;", \> "&gt;", \& "&amp;", \" "&quot;"}))

(defn- element [[tag attributes]]
  (str "<" tag (apply str (for [[k v] attributes] (str " " k "=\"" (escaped v) "\""))) "/>"))

(defn- tls [{:keys [key-store key-password trust-store trust-password] :as tls}]
  (when tls
    {"tls.enabled" true
     "tls.client_auth" "NEED"
     "tls.keystore_path" key-store
     "tls.keystore_password" key-password
     "tls.truststore_path" trust-store
     "tls.truststore_password" trust-password}))

(defn- initial-host
  "Returns an address, host:port or [IPv6 address]:port, as JGroups writes it."
  [address]
  (str/replace address #"^\[?(.+?)\]?:(\d+)$" "$1[$2]"))

(defn- discovery [{:keys [seeds dns]}]
  (if dns
    ["dns.DNS_PING" {"dns_query" dns, "num_discovery_runs" 2}]
    ["TCPPING" {"initial_hosts" (str/join "," (map initial-host seeds))
                "port_range" 0
                "num_discovery_runs" 2}]))

(def ^:private first-caller-port 7900)

(defn- ports
  "A caller takes the first free port of a range. JGroups has no use for any free port: the port for
  failure detection is found by its distance."
  [{:keys [port]}]
  (if port
    {"bind_port" port, "port_range" 0}
    {"bind_port" first-caller-port, "port_range" 999}))

(defn- protocols [{:keys [host heartbeat-ms] :as settings}]
  [["TCP"
    (merge {"bind_addr" host
            ;; Connections to others come from it too: what cuts an address off cuts all of them.
            "client_bind_addr" host
            "diag.enabled" false
            "thread_naming_pattern" "pl"
            "send_buf_size" "640k"
            "sock_conn_timeout" "1s"
            ;; One thread accepts all connections, and waits for the first bytes of each. With TLS
            ;; it shakes hands meanwhile, which may take a slow node longer.
            "peer_addr_read_timeout" (if (:tls settings) "2s" "200ms")
            "bundler_type" "transfer-queue"
            ;; A node that reads nothing holds up what is sent to it, and to no other.
            "non_blocking_sends" true
            "max_send_queue" 16384
            "thread_pool.min_threads" 0
            "thread_pool.max_threads" 200
            ;; Heartbeats go on where all carriers compute.
            "use_vthreads" false}
           (ports settings)
           (tls (:tls settings)))]
   ["RED" {}]
   (discovery settings)
   ["MERGE3" {"min_interval" "1s", "max_interval" "4s"}]
   ["FD_ALL3" {"timeout" heartbeat-ms, "interval" (max 100 (quot heartbeat-ms 4))}]
   ["VERIFY_SUSPECT2" {"timeout" "500ms"}]
   ["pbcast.NAKACK2" {"use_mcast_xmit" false, "xmit_interval" "200ms", "resend_last_seqno" true}]
   ["UNICAST3" {"conn_close_timeout" "5s", "xmit_interval" "200ms"}]
   ["pbcast.STABLE" {"desired_avg_gossip" "5s", "max_bytes" "1M"}]
   ["pbcast.GMS" {"print_local_addr" false, "join_timeout" "1s"}]
   ;; No flow control of unicasts: it blocks the sender, and swallows interrupts. A map's window
   ;; bounds what is on its way.
   ["MFC" {"max_credits" "4m", "min_threshold" "0.40"}]
   ["FRAG4" {"frag_size" "60k"}]])

;; FD_SOCK2 is not among them: `channel` puts it above MERGE3.
(defn stack
  "Returns the stack for the settings of a node as XML: TCP, members found by :seeds or :dns, TLS
  with certificates on both sides where there is :tls."
  ^String [settings]
  (str "<config xmlns=\"urn:org:jgroups\">" (apply str (map element (protocols settings)))
       "</config>"))

;; A connection that the other end closes at once may be closed here before the thread that sends
;; has begun. That is not stopped any more: it would run without a pause, and keep the JVM.
(def ^:private ^Field function
  "What a Runner runs; nil in a release of JGroups that has another name for it."
  (try
    (doto (.getDeclaredField Runner "function") (.setAccessible true))
    (catch Exception _)))

(defn- unless-closed
  "Returns the loop; where it sends for a connection, as one that ends if that is closed."
  ^Runnable [^Runnable loop]
  (let [connection (when (and function (instance? Runner loop)) (.get function loop))]
    (if (instance? TcpConnectionNonBlocking connection)
      #(when-not (.isClosed ^Connection connection) (.run loop))
      loop)))

(def ^:private ^:const detection-offset 10000)

(defn- channel [{:keys [host] :as settings}]
  (let [channel (JChannel. (ByteArrayInputStream. (.getBytes (stack settings))))
        stack (.getProtocolStack channel)
        transport (.getTransport stack)
        detection (detection/protocol host detection-offset)]
    (.setThreadFactory transport (loops/threads (.getThreadFactory transport) unless-closed))
    (.insertProtocol stack detection ProtocolStack$Position/ABOVE ^Class MERGE3)
    (.setProtocolStack detection stack)
    channel))

(defn configurator
  "Returns what makes the channel for the settings of a node."
  [settings]
  (reify JGroupsChannelConfigurator
    (getName [_] "thrum")
    (getProtocolStackString [_] (stack settings))
    (getProtocolStack [_] nil)
    (createChannel [_ _] (channel settings))
    (setSocketFactory [_ _])
    (setDataSource [_ _])))
