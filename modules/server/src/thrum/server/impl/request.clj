(ns thrum.server.impl.request
  "From a wire to a request map of the Ring 1.5 specification; a request that two servers could read
  differently is refused."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.server.impl.authority :as authority]
   [thrum.server.impl.fields :as fields]
   [thrum.server.impl.refusal :as refusal]
   [thrum.server.spi :as engine]
   [thrum.server.spi.http :as http])
  (:import
   (clojure.lang PersistentArrayMap)
   (java.net InetSocketAddress)))

(set! *warn-on-reflection* true)

;; What two servers could read differently

(defn- check-size!
  "Refuses a request whose line and headers are longer than most bytes."
  [wire ^objects headers most]
  (let [n (alength headers)
        ;; Each header has a colon, a space and a line's end; the line has two spaces and its end.
        size
        (long
          (loop [i 0
                 size
                 (+ 4 (.length (engine/method wire)) (.length (engine/target wire))
                   (.length (engine/protocol wire)))]
            (if (< i n) (recur (inc i) (+ size 2 (.length ^String (aget headers i)))) size)))]
    (when (< (long most) size) (refusal/refuse! 431 "The headers are too long"))))

(defn- h2? [wire]
  (some? (engine/authority wire)))

(defn- check-protocol!
  [wire]
  (let [protocol (engine/protocol wire)]
    (when-not (if (h2? wire)
                (.equals "HTTP/2.0" protocol)
                (or (.equals "HTTP/1.1" protocol) (.equals "HTTP/1.0" protocol)))
      (refusal/refuse! 505 "Unknown protocol"))))

(defn- check-method!
  "A success of CONNECT would open a tunnel."
  [wire]
  (when (.equalsIgnoreCase "CONNECT" (engine/method wire))
    (refusal/refuse! 400 "There is no tunnel here")))

;; Framing (RFC 9112, 6)

(defn- digits? [^String s]
  (and (pos? (.length s))
       (< (.length s) 19)
       (loop [i 0]
         (or (= i (.length s))
             (and (Character/isDigit (.charAt s i)) (< (int (.charAt s i)) 128) (recur (inc i)))))))

(defn- content-length
  "Returns the length that is announced, or nil."
  [headers]
  (when-some [^String length (fields/only headers "content-length")]
    (when-not (digits? length) (refusal/refuse! 400 "Content-Length is not a number"))
    (Long/parseLong length)))

(defn- check-transfer-encoding!
  [headers protocol length]
  (when-some [coding (fields/only headers "transfer-encoding")]
    (cond length (refusal/refuse! 400 "Content-Length beside Transfer-Encoding")
          (not= "HTTP/1.1" protocol) (refusal/refuse! 400 (str "Transfer-Encoding on " protocol))
          (.equalsIgnoreCase "chunked" ^String coding) nil
          (str/includes? (fields/lower-case coding) "chunked")
          (refusal/refuse! 400 "Transfer-Encoding is not exactly chunked")
          :else (refusal/refuse! 501 "Unknown transfer coding"))))

;; Whom it is for

(defn- authority-of
  "Returns the authority that the request names, nil where HTTP/1.0 has none."
  [wire headers]
  (let [host (fields/only headers "host")
        announced (engine/authority wire)
        authority (if (or (nil? announced) (.isEmpty announced)) host announced)]
    (when (and (nil? authority) (not= "HTTP/1.0" (engine/protocol wire)))
      (refusal/refuse! 400 "No Host"))
    (when (and authority host (not (.equalsIgnoreCase ^String host authority)))
      (refusal/refuse! 400 "Host is not the authority"))
    (when-not (or (nil? authority) (authority/authority? authority))
      (refusal/refuse! 400 "Host is not an authority"))
    authority))

(defn- with-host
  "Returns the headers of a request of HTTP/2 with its authority as host, which most clients send in
  that form alone (RFC 9113, 8.3.1)."
  ^objects [^objects headers host]
  (if (neg? (fields/index-of headers "host" 0))
    (to-array (concat ["host" host] headers))
    headers))

;; Headers that HTTP/2 has no use for: another server could take them for HTTP/1's (RFC 9113, 8.2.2)

(defn- check-no-connection!
  [headers]
  (doseq [name ["connection" "keep-alive" "proxy-connection" "transfer-encoding" "upgrade"]]
    (when-not (neg? (fields/index-of headers name 0))
      (refusal/refuse! 400 (str "HTTP/2 has no " name))))
  (when-not (contains? #{nil "trailers"} (fields/only headers "te"))
    (refusal/refuse! 400 "HTTP/2 has no te but trailers")))

(defn- without-upgrade
  "Returns the headers without those by which a request of HTTP/1.1 has become the first of HTTP/2
  (RFC 7540, 3.2)."
  ^objects [^objects headers]
  (if (and (= "h2c"
              (some-> (fields/only headers "upgrade")
                      fields/lower-case))
           (fields/only headers "http2-settings"))
    (to-array (mapcat (fn [[name value]]
                        (when-not (#{"connection" "upgrade" "http2-settings"} name) [name value]))
                (partition 2 headers)))
    headers))

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
  [wire host]
  (let [target (engine/target wire)]
    (check-target! target)
    (cond (.startsWith target "/") target
          (h2? wire) (if (and (= "*" target) (= "OPTIONS" (engine/method wire)))
                       target
                       (refusal/refuse! 400 "The target is not a path"))
          (and (= "*" target) (= "OPTIONS" (engine/method wire))) target
          :else (absolute target host))))

;; The map

(def ^:private known-methods
  {"GET" :get
   "HEAD" :head
   "POST" :post
   "PUT" :put
   "DELETE" :delete
   "OPTIONS" :options
   "PATCH" :patch
   "TRACE" :trace})

(defn- method-keyword [^String method]
  (or (known-methods method)
      (if (http/token? method)
        (keyword (fields/lower-case method))
        (refusal/refuse! 400 "The method is not a token"))))

(defn- charset [content-type]
  (second (re-find #"(?i);\s*charset=\"?([^\s;\"]+)" content-type)))

(defn- with-content
  "Returns the request with what it says of its content."
  [request headers length]
  (let [content-type (get headers "content-type")]
    (cond-> request
      content-type (assoc :content-type content-type)
      length (assoc :content-length length)
      (some-> content-type charset) (assoc :character-encoding (charset content-type)))))

(defn- address [^InetSocketAddress remote]
  (.getHostAddress (.getAddress remote)))

(defmacro ^:private map-of
  "Returns a map of the keys and values, which is searched one by one, as is quickest for so few."
  [& pairs]
  (let [all (gensym "all")]
    `(let [~all (object-array ~(count pairs))]
       ~@(map-indexed (fn [i x] `(aset ~all ~i ~x)) pairs)
       (PersistentArrayMap. ~all))))

(defn ->request
  "Returns the request map of the wire, with this :body. Throws :thrum/refused with the :status to
  answer for what two servers could read differently, what is no HTTP, and headers of more than
  most-header bytes."
  [wire body most-header]
  (let [raw (engine/headers wire)
        _ (check-protocol! wire)
        _ (check-method! wire)
        _ (check-size! wire raw most-header)
        headers (cond-> (fields/lower-cased raw) (h2? wire) without-upgrade)
        _ (when (h2? wire) (check-no-connection! headers))
        length (content-length headers)
        host (authority-of wire headers)
        headers (if (h2? wire) (with-host headers host) headers)
        _ (check-transfer-encoding! headers (engine/protocol wire) length)
        ^String target (origin-form wire host)
        query (.indexOf target "?")
        fields (fields/header-map headers)
        ^InetSocketAddress local (engine/local wire)]
    (-> (map-of :server-port (Long/valueOf (.getPort local))
          :server-name (if host (authority/host-name host) (address local))
          :remote-addr (address (engine/remote wire))
          :uri (if (neg? query) target (subs target 0 query))
          :query-string (when-not (neg? query) (subs target (inc query)))
          :scheme (if (= "https" (engine/scheme wire)) :https :http)
          :request-method (method-keyword (engine/method wire))
          :protocol (engine/protocol wire)
          :headers fields
          :ssl-client-cert (engine/certificate wire)
          :body body)
        (with-content fields length))))

(defn unchecked
  "Returns the facts of a request that is refused, as they came, for a log:
  :remote-addr, :uri, :protocol, and :request-method, nil for what is no method."
  [wire]
  (let [method (engine/method wire)]
    {:remote-addr (address (engine/remote wire))
     :request-method (when (http/token? method) (keyword (fields/lower-case method)))
     :uri (first (str/split (engine/target wire) #"\?" 2))
     :protocol (engine/protocol wire)}))
