(ns thrum.server.impl.options
  "The options of run-server, as rows, and what each asks of an engine."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.server.impl.address :as address]
   [thrum.server.impl.health :as health]
   [thrum.spi :as spi]
   [thrum.spi.options :as options])
  (:import
   (java.io File)
   (java.security KeyStore)
   (javax.net.ssl SSLContext)))

(set! *warn-on-reflection* true)

(def ^:private positive
  {:check #(and (pos-int? %) (<= (long %) Integer/MAX_VALUE))
   :accepts "an integer from 1 to 2147483647"})
(def ^:private natural {:check nat-int?, :accepts "an integer, not negative"})
(def ^:private flag {:check boolean?, :accepts "true or false"})
(def ^:private secret {:check string?, :accepts "a string", :secret? true})

(defn- port? [x]
  (and (nat-int? x) (<= (long x) 65535)))

(defn- status? [x]
  (and (int? x) (<= 400 (long x) 599)))

(defn- origin?
  "True if x is what a browser's Origin may be (RFC 6454, 6.1): without the scheme's own port, and
  in an app without a host."
  [x]
  (and (string? x)
       (some? (re-matches #"(?i)null|[a-z][a-z0-9+.-]*://[!-~&&[^/?#*@]]*" x))
       (nil? (re-find #"(?i)^https?://(?::.*)?$|^http:.*:80$|^https:.*:443$|:$" x))))

(def ^:private observed #{:start :end :shed :timeout :disconnect :stop :dropped})

(defn- observer? [x]
  (and (map? x) (every? observed (keys x)) (every? ifn? (vals x))))

(defn- store? [x]
  (or (string? x) (instance? File x) (instance? KeyStore x)))

(def ^:private store {:check store?, :accepts "a path, a java.io.File or a java.security.KeyStore"})

(defn- row [kind k default doc & {:as more}]
  [k (merge kind {:doc doc} (when (some? default) {:default default}) more)])

(def ^:private port {:check port?, :accepts "an integer from 0 to 65535"})
(def ^:private text {:check string?, :accepts "a string"})
(def ^:private engine-name {:check keyword?, :accepts "a keyword"})

(defn- one-of [accepts & ks]
  {:check (set ks), :accepts accepts})

(def ^:private general
  [(row engine-name :engine :jdk
        "the server underneath: :jdk, :jetty, :tomcat, :http-kit or :helidon")
   (row text :host "127.0.0.1" "the name or address to listen on")
   (row {:check #(or (nil? %) (port? %)), :accepts "an integer from 0 to 65535, or nil"} :port 3000
        "where HTTP is served; 0 picks a free port, nil serves none, beside an :ssl-port")
   (row positive :backlog 4096
        "how many connections the operating system may hold before they are accepted")
   (row flag :async? false "whether the handler takes (request respond raise)")])

(def ^:private bounds
  [(row {:check #(or (pos-int? %) (= :adaptive %) (spi/limiter? %))
         :accepts "a positive integer, :adaptive, or a limiter, as thrum.core/limiter returns it"}
        :max-concurrent nil
        (str "how many requests may be handled at once; none: no bound; :adaptive: from 20 to "
             "10000, as latency allows, by thrum-adaptive's gradient2; a limiter, of several "
             "servers or of another function, has its own queue and wait"))
   (row natural :max-queued 0 "how many requests may wait for their turn")
   (row natural :queue-timeout-ms 1000 "how many ms a request may wait for its turn")
   (row {:check #(or (status? %) (and (ifn? %) (not (number? %))))
         :accepts "a status from 400 to 599, or a function of the request"}
        :on-overload 503
        "the answer beyond the bounds: a status, or the response that a function returns")
   (row positive :max-streams nil
        "how many server-sent event streams and websockets may be open; none: no bound")
   (row positive :max-connections nil
        "how many sockets may be open; none: what the limit of file descriptors allows")
   (row positive :request-timeout-ms nil
        "how many ms a request may take, its time in the queue counted; none: no bound")
   (row natural :max-body-bytes nil
        "how long a request's body may be; none: no bound; beyond it 413 is answered")
   (row positive :max-header-bytes 16384
        "how long a request's line and headers may be; beyond it 431 is answered")
   (row positive :header-timeout-ms 10000
        (str "how many ms a client may take to send the headers, and what is left of a body after "
             "its answer; then 408, or the connection is closed"))
   (row positive :idle-timeout-ms 75000
        (str "how many ms a connection may be silent; then it is closed. Give it more than a proxy "
             "in front has, which for nginx is 60 s: a connection that the server closes first may "
             "cost a request"))])

(def ^:private peers
  [(row {:check address/blocks
         :accepts (str "a collection of addresses, blocks such as \"10.0.0.0/8\", "
                       ":loopback and :private")}
        :trusted-proxies nil
        "the peers whose headers say where a request comes from; none: headers say nothing")
   (row (one-of ":x-forwarded or :forwarded" :x-forwarded :forwarded)
        :forwarded-headers :x-forwarded
        (str "what :trusted-proxies set: X-Forwarded-For, -Proto, -Host and -Port, "
             "or RFC 7239's Forwarded; the other kind is not read"))
   (row flag :request-id? false
        (str "whether requests have a :thrum/request-id: a trusted proxy's X-Request-Id, "
             "or one that is made"))
   (row {:check health/paths?
         :accepts "a map of :live, :ready or both to paths, each of which begins with /"}
        :health nil
        (str "where probes ask, as {:live \"/livez\", :ready \"/readyz\"}; "
             "answered by the server, outside :max-concurrent"))
   (row positive :min-bytes-per-second nil
        (str "how fast a client must send a body, and take a response, while it is waited for; "
             "none: no bound"))
   (row positive :rate-grace-ms 5000
        "how many ms a client may be behind :min-bytes-per-second; then its connection is cut")])

(def ^:private ends
  [(row natural :drain-delay-ms 0
        "how many ms stop! goes on serving, while ready? is false already")
   (row natural :drain-streams-ms 0
        "how many ms longer streams and websockets stay open, within :shutdown-timeout-ms")
   (row natural :shutdown-timeout-ms 10000 "how many ms stop! waits for what is in flight")
   (row flag :stop-on-shutdown? true "whether the end of the JVM stops the server, as stop! does")
   (row flag :interrupt-on-disconnect? false
        "whether a request is cancelled whose client goes away" :needs :disconnect)
   (row {:check ifn?, :accepts "a function of request and throwable"} :error-handler nil
        (str "returns the response for what a handler threw; "
             "none: 500 without details, and the throwable goes to System.Logger"))
   (row {:check observer?, :accepts (str "a map of functions, of " (str/join ", " (sort observed)))}
        :observer nil "functions of one map, called at these events of a request")])

(def ^:private tls
  [(row port :ssl-port nil "where HTTPS is served" :needs :tls)
   (row {:check #(instance? SSLContext %), :accepts "a javax.net.ssl.SSLContext"}
        :ssl-context nil "in place of :keystore" :needs :tls)
   (row store :keystore nil "the server's key and certificate" :needs :tls)
   (row secret :key-password nil "the password of :keystore" :needs :tls)
   (row store :truststore nil
        "the certificates that clients may be signed by" :needs :client-certificates)
   (row secret :trust-password nil "the password of :truststore" :needs :client-certificates)
   (row (one-of ":need, :want or :none" :need :want :none)
        :client-auth nil "whether a client needs a certificate" :needs :client-certificates)
   (row flag :h2? nil
        "whether HTTP/2 is offered on the :ssl-port (default: true where the engine has it)"
        :needs :h2)
   (row flag :h2c? false
        "whether HTTP/2 is served without TLS, by prior knowledge or upgrade" :needs :h2)])

(def ^:private websockets
  [(row {:check #(or (= :any %) (and (coll? %) (every? origin? %)))
         :accepts "a collection of origins, such as \"https://shop.example\", or :any"}
        :ws-origins nil
        "which pages may open a websocket; none: those whose Origin is the Host" :needs :websockets)
   (row positive :ws-max-message-bytes nil
        "how long a websocket's message may be (default 1048576)" :needs :websockets)
   (row positive :ws-idle-timeout-ms nil
        "how many ms a websocket may be silent (default 300000)" :needs :websockets)])

(def table
  "Key and row of each option, in the order of the documentation."
  (into [] cat [general bounds peers ends tls websockets
                [(row {:check map?, :accepts "a map"} :engine-options {}
                      "what only one engine has; see doc/reference/options.md")]]))

(def rows
  "The rows by their keys."
  (into {} table))

(def ^:private order (mapv first table))

(def ^:private defaults
  (into {} (keep (fn [[k row]] (when (contains? row :default) [k (:default row)]))) table))

(def ^:private ^:const most-connections
  "The bound where the operating system reports none."
  65536)

(def ^:private websocket-defaults
  {:ws-max-message-bytes 1048576, :ws-idle-timeout-ms 300000})

(defn- lacking
  [engine k needs]
  (spi/invalid
    (str "The engine " (:name engine) " has no " (name needs) ", which " k " asks for: "
         "doc/guides/servers.md has a table of the engines")
    {:option k, :engine (:name engine), :lacks needs, :capabilities (:capabilities engine)}))

(defn- check-capability [engine k v]
  (let [{:keys [needs]} (rows k)]
    (when (and needs v (not= :none v) (not (contains? (:capabilities engine) needs)))
      (throw (lacking engine k needs)))))

(defn- check-together
  "Throws where options contradict each other."
  [{:keys [port ssl-port ssl-context keystore h2? client-auth truststore max-concurrent]} given]
  (let [secured (or ssl-context keystore)]
    (doseq [[wrong? option message]
            [[(not (or port ssl-port)) :port
              "Nothing would be served: give a :port or an :ssl-port"]
             [(and ssl-port (not secured)) :ssl-port
              "An :ssl-port needs a :keystore or an :ssl-context"]
             [(and secured (not ssl-port)) :ssl-port
              "A :keystore or :ssl-context serves nothing without an :ssl-port"]
             [(and ssl-context keystore) :ssl-context
              "Give a :keystore or an :ssl-context, not both"]
             [(and h2? (not ssl-port)) :h2?
              "HTTP/2 by :h2? is for the :ssl-port; without TLS there is :h2c?"]
             [(and (#{:need :want} client-auth) (not ssl-port)) :client-auth
              "A client's certificate comes over TLS: give an :ssl-port"]
             [(and truststore (not ssl-port)) :truststore
              "A :truststore is for TLS: give an :ssl-port"]
             [(and (spi/limiter? max-concurrent) (some given [:max-queued :queue-timeout-ms]))
              :max-concurrent
              "A limiter has a :queue and :wait-ms: give no :max-queued or :queue-timeout-ms"]]]
      (when wrong? (throw (spi/invalid message {:option option}))))))

(defn- without-nils [options]
  (into {} (remove (fn [[k v]] (and (nil? v) (contains? rows k) (not= :port k)))) options))

(defn checked
  "Returns the options for this engine, defaults filled in; an option that is nil is taken for one
  that is not given, but :port. Throws :thrum/invalid for an unknown one, whose message
  names the known ones, a wrong value, what the engine lacks."
  [{:keys [capabilities] :as engine} options]
  (let [options (options/check rows (if (map? options) (without-nils options) options) order)
        given (set (keys options))
        all (merge defaults
                   (when (contains? capabilities :websockets) websocket-defaults)
                   {:max-connections (spi/spare-descriptors most-connections)}
                   options)]
    (run! (fn [[k v]] (check-capability engine k v)) options)
    (check-together all given)
    (options/check (:rows engine) (:engine-options all) (keys (:rows engine)))
    (with-meta all {:given given, :capabilities capabilities})))
