(ns thrum.server.impl.request
  "From a wire to a request map of the Ring 1.5 specification; a request that two servers could read
  differently is refused."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.server.spi :as engine]
   [thrum.server.spi.http :as http])
  (:import
   (clojure.lang PersistentArrayMap)
   (java.net InetSocketAddress)
   (java.util HashMap Locale Map)))

(set! *warn-on-reflection* true)

(defn refusal
  "Returns what is thrown for a request that is answered with this status before any handler sees
  it."
  [status message]
  (ex-info message {:type :thrum/refused, :status status}))

(defn- refuse! [status message]
  (throw (refusal status message)))

;; Headers, as an array of name, value, name, value ...

(defn- lower-case ^String [^String s]
  (.toLowerCase s Locale/ROOT))

(defn- spellings
  "Returns how clients spell a header's name: in lower case, and with capitals."
  [name]
  [name (str/join "-" (map str/capitalize (str/split name #"-")))])

(def ^:private ^Map usual-names
  "The names that most headers have, as sent, and in lower case: looking there costs a third of
  checking and lowering each anew."
  (let [names ["accept" "accept-charset" "accept-encoding" "accept-language" "authorization"
               "cache-control" "connection" "content-length" "content-type" "cookie" "date" "dnt"
               "expect" "forwarded" "from" "host" "if-match" "if-modified-since" "if-none-match"
               "if-range" "if-unmodified-since" "keep-alive" "origin" "pragma" "priority" "range"
               "referer" "sec-ch-ua" "sec-ch-ua-mobile" "sec-ch-ua-platform" "sec-fetch-dest"
               "sec-fetch-mode" "sec-fetch-site" "sec-fetch-user" "te" "traceparent" "tracestate"
               "transfer-encoding" "upgrade" "upgrade-insecure-requests" "user-agent" "via"
               "x-forwarded-for" "x-forwarded-host" "x-forwarded-port" "x-forwarded-proto"
               "x-real-ip" "x-request-id" "x-requested-with"]]
    (HashMap. ^Map (into {} (for [name names spelling (spellings name)] [spelling name])))))

(defn- lower-cased-name
  "Returns the name in lower case, checked."
  [name]
  (or (.get usual-names name)
      (if (http/token? name)
        (lower-case name)
        (refuse! 400 "A header's name is not a token"))))

(defn- check-size!
  "Refuses a request whose line and headers are longer than most bytes."
  [wire ^objects headers most]
  (let [n (alength headers)
        ;; Each header has a colon, a space and a line's end; the line has two spaces and its end.
        size
        (long
          (loop [i 0
                 size
                 (+ 4 (.length (engine/method wire)) (.length (engine/target wire)) (.length (engine/protocol wire)))]
            (if (< i n) (recur (inc i) (+ size 2 (.length ^String (aget headers i)))) size)))]
    (when (< (long most) size) (refuse! 431 "The headers are too long"))))

(defn- h2? [wire]
  (some? (engine/authority wire)))

(defn- check-protocol!
  [wire]
  (let [protocol (engine/protocol wire)]
    (when-not (if (h2? wire)
                (.equals "HTTP/2.0" protocol)
                (or (.equals "HTTP/1.1" protocol) (.equals "HTTP/1.0" protocol)))
      (refuse! 505 "Unknown protocol"))))

(defn- check-method!
  "A success of CONNECT would open a tunnel."
  [wire]
  (when (.equalsIgnoreCase "CONNECT" (engine/method wire))
    (refuse! 400 "There is no tunnel here")))

(defn- lower-cased
  "Returns the headers with names in lower case, all checked."
  ^objects [^objects headers]
  (let [n (alength headers)
        lower (object-array n)]
    (loop [i 0]
      (when (< i n)
        (let [name (aget headers i), value (aget headers (inc i))]
          (when-not (http/clean? value) (refuse! 400 "A header's value has control characters"))
          (aset lower i (lower-cased-name name))
          (aset lower (inc i) value)
          (recur (+ i 2)))))
    lower))

(defn- index-of
  "Returns where the name stands among the headers from i on, -1 when it does not."
  ^long [^objects headers ^String name ^long from]
  (let [n (alength headers)]
    (loop [i from]
      (cond
        (<= n i) -1
        (.equals name (aget headers i)) i
        :else (recur (+ i 2))))))

(defn- only
  "Returns the value of a header that may stand there once; nil when it does not."
  [headers name]
  (let [i (index-of headers name 0)]
    (when-not (neg? i)
      (when-not (neg? (index-of headers name (+ i 2)))
        (refuse! 400 (str "More than one " name)))
      (aget ^objects headers (inc i)))))

(defn- joined [^String name before value]
  (str before (if (= "cookie" name) ";" ",") value))

(defn- place-of
  "Returns where the name stands among the first n elements, -1 when it does not."
  ^long [^objects fields ^long n ^String name]
  (loop [i 0]
    (cond
      (= i n) -1
      (.equals name (aget fields i)) i
      :else (recur (+ i 2)))))

(defn- joined-one-by-one
  "Returns the headers with each name once, its values joined."
  ^objects [^objects headers]
  (let [n (alength headers)
        fields (object-array n)]
    (loop [i 0, used 0]
      (if (= i n)
        (if (= used n) fields (java.util.Arrays/copyOf fields used))
        (let [name (aget headers i), value (aget headers (inc i))
              place (place-of fields used name)]
          (if (neg? place)
            (do (aset fields used name)
                (aset fields (inc used) value)
                (recur (+ i 2) (+ used 2)))
            (do (aset fields (inc place) (joined name (aget fields (inc place)) value))
                (recur (+ i 2) used))))))))

(def ^:private ^:const most-in-an-array
  "How many elements a map has at most that is searched one by one."
  48)

(defn- hashed
  "Returns the map of many headers, whose names are looked up: among thousands a search one by one
  would take the square of their number."
  [^objects headers]
  (loop [i 0, fields (transient {})]
    (if (= i (alength headers))
      (persistent! fields)
      (let [name (aget headers i), value (aget headers (inc i)), before (get fields name)]
        (recur (+ i 2) (assoc! fields name (if before (joined name before value) value)))))))

(defn- header-map [^objects headers]
  (if (<= (alength headers) most-in-an-array)
    (PersistentArrayMap. (joined-one-by-one headers))
    (hashed headers)))

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
  (when-some [^String length (only headers "content-length")]
    (when-not (digits? length) (refuse! 400 "Content-Length is not a number"))
    (Long/parseLong length)))

(defn- check-transfer-encoding!
  [headers protocol length]
  (when-some [coding (only headers "transfer-encoding")]
    (cond length (refuse! 400 "Content-Length beside Transfer-Encoding")
          (not= "HTTP/1.1" protocol) (refuse! 400 (str "Transfer-Encoding on " protocol))
          (.equalsIgnoreCase "chunked" ^String coding) nil
          (str/includes? (lower-case coding) "chunked")
          (refuse! 400 "Transfer-Encoding is not exactly chunked")
          :else (refuse! 501 "Unknown transfer coding"))))

;; Whom it is for

(defn- host-name
  "Returns the host of an authority, without its port."
  [^String authority]
  (let [end (if (str/starts-with? authority "[") (str/index-of authority "]") nil)
        colon (str/index-of authority ":" (or end 0))]
    (if colon (subs authority 0 colon) authority)))

(def ^:private host-form
  "A name, or an address in brackets (RFC 3986, 3.2.2; no comma)."
  #"\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]|(?:[-A-Za-z0-9._~!$&'()*+;=]|%[0-9A-Fa-f]{2})++")

(def ^:private ^:const longest-authority
  "How many characters an authority may have: a name in DNS has 253."
  300)

(def ^:private name-char
  "Which of the first 128 characters the names of most hosts are made of."
  (boolean-array (map #(let [c (char %)]
                         (or (<= 48 % 57) (<= 65 % 90) (<= 97 % 122) (= \- c) (= \. c)))
                      (range 128))))

(defn- plain-name?
  "Tells whether s is made of letters, digits, dots and hyphens up to end: such a name needs no
  second look."
  [^String s ^long end]
  (let [^booleans name-char name-char]
    (loop [i 0]
      (or (= i end)
          (let [c (int (.charAt s i))]
            (and (< c 128) (aget name-char c) (recur (inc i))))))))

(defn- port?
  "Tells whether s is a port from i on: nothing, or at most five digits of no more than 65535."
  [^String s ^long i]
  (let [n (.length s)]
    (and (<= (- n i) 5)
         (loop [i i, port 0]
           (if (= i n)
             (<= port 65535)
             (let [digit (- (int (.charAt s i)) 48)]
               (and (<= 0 digit) (<= digit 9) (recur (inc i) (+ (* 10 port) digit)))))))))

(defn- authority? [^String s]
  (let [bracket (.indexOf s "]")
        colon (.indexOf s ":" (max 0 bracket))
        end (if (neg? colon) (.length s) colon)]
    (and (pos? end)
         (<= (.length s) longest-authority)
         (or (neg? colon) (port? s (inc colon)))
         (or (plain-name? s end) (some? (re-matches host-form (subs s 0 end)))))))

(defn- authority-of
  "Returns the authority that the request names, nil where HTTP/1.0 has none."
  [wire headers]
  (let [host (only headers "host")
        announced (engine/authority wire)
        authority (if (or (nil? announced) (.isEmpty announced)) host announced)]
    (when (and (nil? authority) (not= "HTTP/1.0" (engine/protocol wire))) (refuse! 400 "No Host"))
    (when (and authority host (not (.equalsIgnoreCase ^String host authority)))
      (refuse! 400 "Host is not the authority"))
    (when-not (or (nil? authority) (authority? authority)) (refuse! 400 "Host is not an authority"))
    authority))

(defn- with-host
  "Returns the headers of a request of HTTP/2 with its authority as host, which most clients send in
  that form alone (RFC 9113, 8.3.1)."
  ^objects [^objects headers host]
  (if (neg? (index-of headers "host" 0))
    (to-array (concat ["host" host] headers))
    headers))

;; Headers that HTTP/2 has no use for: another server could take them for HTTP/1's (RFC 9113, 8.2.2)

(defn- check-no-connection!
  [headers]
  (doseq [name ["connection" "keep-alive" "proxy-connection" "transfer-encoding" "upgrade"]]
    (when-not (neg? (index-of headers name 0)) (refuse! 400 (str "HTTP/2 has no " name))))
  (when-not (contains? #{nil "trailers"} (only headers "te"))
    (refuse! 400 "HTTP/2 has no te but trailers")))

(defn- without-upgrade
  "Returns the headers without those by which a request of HTTP/1.1 has become the first of HTTP/2
  (RFC 7540, 3.2)."
  ^objects [^objects headers]
  (if (and (= "h2c"
              (some-> (only headers "upgrade")
                      lower-case))
           (only headers "http2-settings"))
    (to-array (mapcat (fn [[name value]]
                        (when-not (#{"connection" "upgrade" "http2-settings"} name) [name value]))
                (partition 2 headers)))
    headers))

(defn- absolute
  "Returns the origin form, path and query, of a target in absolute form, whose authority must be
  the Host (RFC 9112, 3.2.2)."
  [^String target host]
  (let [[_ authority path] (re-matches #"(?i)https?://([^/?#]*)([^#]*)" target)]
    (when-not authority (refuse! 400 "The target is not a path"))
    (when-not (and host (.equalsIgnoreCase ^String authority host))
      (refuse! 400 "The target's authority is not the Host"))
    (if (str/starts-with? path "/") path (str "/" path))))

(defn- check-target!
  "Refuses a target with blanks or control characters."
  [^String target]
  (let [n (.length target)]
    (loop [i 0]
      (when (< i n)
        (let [c (int (.charAt target i))]
          (when (or (<= c 32) (= 127 c))
            (refuse! 400 "The target has a blank or a control character")))
        (recur (inc i))))))

(defn- origin-form
  [wire host]
  (let [target (engine/target wire)]
    (check-target! target)
    (cond (.startsWith target "/") target
          (h2? wire) (if (and (= "*" target) (= "OPTIONS" (engine/method wire)))
                       target
                       (refuse! 400 "The target is not a path"))
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
        (keyword (lower-case method))
        (refuse! 400 "The method is not a token"))))

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
        headers (cond-> (lower-cased raw) (h2? wire) without-upgrade)
        _ (when (h2? wire) (check-no-connection! headers))
        length (content-length headers)
        host (authority-of wire headers)
        headers (if (h2? wire) (with-host headers host) headers)
        _ (check-transfer-encoding! headers (engine/protocol wire) length)
        ^String target (origin-form wire host)
        query (.indexOf target "?")
        fields (header-map headers)
        ^InetSocketAddress local (engine/local wire)]
    (-> (map-of :server-port (Long/valueOf (.getPort local))
          :server-name (if host (host-name host) (address local))
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

(defn told
  "Returns what a request that is refused says of itself, unchecked, for who keeps a log:
  :remote-addr, :uri, :protocol, and :request-method, nil for what is no method."
  [wire]
  (let [method (engine/method wire)]
    {:remote-addr (address (engine/remote wire))
     :request-method (when (http/token? method) (keyword (lower-case method)))
     :uri (first (str/split (engine/target wire) #"\?" 2))
     :protocol (engine/protocol wire)}))
