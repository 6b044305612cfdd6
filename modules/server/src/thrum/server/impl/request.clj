(ns thrum.server.impl.request
  "From a wire to a request map of the Ring 1.5 specification; a request that two servers could read
  differently is refused."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.server.impl.authority :as authority]
   [thrum.server.impl.fields :as fields]
   [thrum.server.impl.refusal :as refusal]
   [thrum.server.impl.traffic]
   [thrum.server.spi :as engine]
   [thrum.server.spi.http :as http])
  (:import
   (clojure.lang PersistentArrayMap)
   (java.net InetSocketAddress)
   (java.util HashMap Map)
   (thrum.server.impl.fields Fields)
   (thrum.server.impl.traffic Settings)))

(set! *warn-on-reflection* true)

;; What two servers could read differently

(defn- check-size!
  "Refuses a request whose line and headers are longer than most bytes. The line has two blanks and
  its end."
  [^Fields fields ^String method ^String target ^String protocol most]
  (when (< (long most)
           (+ 4 (.-size fields) (.length method) (.length target) (.length protocol)))
    (refusal/refuse! 431 "The headers are too long")))

(defn- check-protocol!
  [^String protocol h2?]
  (when-not (if h2?
              (.equals "HTTP/2.0" protocol)
              (or (.equals "HTTP/1.1" protocol) (.equals "HTTP/1.0" protocol)))
    (refusal/refuse! 505 "Unknown protocol")))

(defn- check-method!
  "A success of CONNECT would open a tunnel."
  [^String method]
  (when (.equalsIgnoreCase "CONNECT" method)
    (refusal/refuse! 400 "There is no tunnel here")))

;; Framing (RFC 9112, 6)

(defn- digits? [^String s]
  (and (pos? (.length s))
       (< (.length s) 19)
       (loop [i 0]
         (or (= i (.length s))
             (and (Character/isDigit (.charAt s i)) (< (int (.charAt s i)) 128) (recur (inc i)))))))

(def ^:private length-bit (http/bit "content-length"))
(def ^:private coding-bit (http/bit "transfer-encoding"))
(def ^:private type-bit (http/bit "content-type"))
(def ^:private host-bit (http/bit "host"))

(defn- content-length
  "Returns the length that is announced, or nil."
  [fields]
  (when-some [^String length (fields/value fields "content-length" length-bit)]
    (when-not (digits? length) (refusal/refuse! 400 "Content-Length is not a number"))
    (Long/parseLong length)))

(defn- check-transfer-encoding!
  [fields protocol length]
  (when-some [coding (fields/value fields "transfer-encoding" coding-bit)]
    (cond length (refusal/refuse! 400 "Content-Length beside Transfer-Encoding")
          (not= "HTTP/1.1" protocol) (refusal/refuse! 400 (str "Transfer-Encoding on " protocol))
          (.equalsIgnoreCase "chunked" ^String coding) nil
          (str/includes? (http/lower-case coding) "chunked")
          (refusal/refuse! 400 "Transfer-Encoding is not exactly chunked")
          :else (refusal/refuse! 501 "Unknown transfer coding"))))

;; Whom it is for

(defn- authority-of
  "Returns the authority that the request names, nil where HTTP/1.0 has none. announced: that of
  HTTP/2, nil on HTTP/1."
  [fields ^String announced protocol]
  (let [host (fields/value fields "host" host-bit)
        authority (if (or (nil? announced) (.isEmpty announced)) host announced)]
    (when (and (nil? authority) (not= "HTTP/1.0" protocol))
      (refusal/refuse! 400 "No Host"))
    (when (and authority announced host (not (.equalsIgnoreCase ^String host authority)))
      (refusal/refuse! 400 "Host is not the authority"))
    (when-not (or (nil? authority) (authority/authority? authority))
      (refusal/refuse! 400 "Host is not an authority"))
    authority))

;; Headers that HTTP/2 has no use for: another server could take them for HTTP/1's (RFC 9113, 8.2.2)

(defn- check-no-connection!
  [headers]
  (doseq [name ["connection" "keep-alive" "proxy-connection" "transfer-encoding" "upgrade"]]
    (when (contains? headers name)
      (refusal/refuse! 400 (str "HTTP/2 has no " name))))
  (when-not (contains? #{nil "trailers"} (get headers "te"))
    (refusal/refuse! 400 "HTTP/2 has no te but trailers")))

(defn- without-upgrade
  "Returns the headers without those by which a request of HTTP/1.1 has become the first of HTTP/2
  (RFC 7540, 3.2)."
  [headers]
  (if (and (= "h2c" (some-> (get headers "upgrade") http/lower-case))
           (get headers "http2-settings"))
    (dissoc headers "connection" "upgrade" "http2-settings")
    headers))

(defn- of-http-2
  "Returns the headers of a request of HTTP/2, checked, with its authority as host, which most
  clients send in that form alone (RFC 9113, 8.3.1)."
  [headers authority]
  (let [headers (without-upgrade headers)]
    (check-no-connection! headers)
    (assoc headers "host" authority)))

(defn- absolute
  "Returns the origin form, path and query, of a target in absolute form, whose authority must be
  the Host (RFC 9112, 3.2.2)."
  [^String target host]
  (let [[_ authority path] (re-matches #"(?i)https?://([^/?#]*)([^#]*)" target)]
    (when-not authority (refusal/refuse! 400 "The target is not a path"))
    (when-not (and host (.equalsIgnoreCase ^String authority host))
      (refusal/refuse! 400 "The target's authority is not the Host"))
    (if (str/starts-with? path "/") path (str "/" path))))

(defn- check-target!
  "Refuses a target with blanks, control characters or a fragment."
  [^String target]
  (let [n (.length target)]
    (loop [i 0]
      (when (< i n)
        (let [c (int (.charAt target i))]
          (when (or (<= c 32) (= 127 c) (= 35 c))
            (refusal/refuse! 400 "The target has a blank, a control character or a fragment")))
        (recur (inc i))))))

(defn- origin-form
  ^String [^String target method h2? host]
  (check-target! target)
  (cond (.startsWith target "/") target
        (and (= "*" target) (= "OPTIONS" method)) target
        h2? (refusal/refuse! 400 "The target is not a path")
        :else (absolute target host)))

;; The map

(def ^:private ^Map known-methods
  (HashMap. {"GET" :get
             "HEAD" :head
             "POST" :post
             "PUT" :put
             "DELETE" :delete
             "OPTIONS" :options
             "PATCH" :patch
             "TRACE" :trace}))

(defn- method-keyword [^String method]
  (or (.get known-methods method)
      (if (http/token? method)
        (keyword (http/lower-case method))
        (refusal/refuse! 400 "The method is not a token"))))

(defn- charset [content-type]
  (second (re-find #"(?i);\s*charset=\"?([^\s;\"]+)" content-type)))

(defn- with-content
  "Returns the request with what it says of its content."
  [request fields length]
  (let [content-type (fields/value fields "content-type" type-bit)
        charset (some-> content-type charset)]
    (cond-> request
      content-type (assoc :content-type content-type)
      length (assoc :content-length length)
      charset (assoc :character-encoding charset))))

(defmacro ^:private map-of
  "Returns a map of the keys and values, which is searched one by one, as is quickest for so few."
  [& pairs]
  (let [all (gensym "all")]
    `(let [~all (object-array ~(count pairs))]
       ~@(map-indexed (fn [i x] `(aset ~all ~i ~x)) pairs)
       (PersistentArrayMap. ~all))))

(defn ->request
  "Returns the request map of the wire, with this :body. Throws :thrum/refused with the :status to
  answer for what two servers could read differently, what is no HTTP, and headers of more bytes
  than the settings allow."
  [wire body ^Settings settings]
  (let [method (engine/method wire)
        target (engine/target wire)
        protocol (engine/protocol wire)
        announced (engine/authority wire)
        h2? (some? announced)
        _ (check-protocol! protocol h2?)
        _ (check-method! method)
        fields (fields/fields (engine/headers wire) (and (.-checked? settings) (not h2?)))
        _ (check-size! fields method target protocol (.-max-header-bytes settings))
        host (authority-of fields announced protocol)
        headers (cond-> (.-headers fields) h2? (of-http-2 host))
        length (content-length fields)
        _ (check-transfer-encoding! fields protocol length)
        target (origin-form target method h2? host)
        query (.indexOf target "?")
        ^InetSocketAddress local (engine/local wire)]
    (-> (map-of :server-port (Long/valueOf (.getPort local))
          :server-name (if host (authority/host-name host) (engine/address local))
          :remote-addr (engine/remote wire)
          :uri (if (neg? query) target (subs target 0 query))
          :query-string (when-not (neg? query) (subs target (inc query)))
          :scheme (if (.equals "https" (engine/scheme wire)) :https :http)
          :request-method (method-keyword method)
          :protocol protocol
          :headers headers
          :ssl-client-cert (engine/certificate wire)
          :body body)
        (with-content fields length))))

(defn unchecked
  "Returns the facts of a request that is refused, as they came, for a log:
  :remote-addr, :uri, :protocol, and :request-method, nil for what is no method."
  [wire]
  (let [method (engine/method wire)]
    {:remote-addr (engine/remote wire)
     :request-method (when (http/token? method) (keyword (http/lower-case method)))
     :uri (first (str/split (engine/target wire) #"\?" 2))
     :protocol (engine/protocol wire)}))
