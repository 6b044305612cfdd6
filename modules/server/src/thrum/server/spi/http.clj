(ns thrum.server.spi.http
  "What engines that read and write HTTP/1.1 themselves need of it."
  (:require
   [clojure.string :as str])
  (:import
   (java.nio.charset StandardCharsets)
   (java.security MessageDigest)
   (java.util Arrays Base64 HashMap Locale Map)))

(set! *warn-on-reflection* true)

;; Header fields

(defn lower-case
  "Returns s in lower case, alike in every locale."
  ^String [^String s]
  (.toLowerCase s Locale/ROOT))

(def ^:private token-char
  "Which of the first 128 characters a token may have (RFC 9110, 5.6.2)."
  (let [marks (set "!#$%&'*+-.^_`|~")]
    (boolean-array (map #(let [c (char %)]
                           (or (< 47 % 58) (< 64 % 91) (< 96 % 123) (contains? marks c)))
                        (range 128)))))

(defn token?
  "True if s is a token, as a header's name must be."
  [^String s]
  (let [n (.length s)
        ^booleans token-char token-char]
    (and (pos? n)
         (loop [i 0]
           (or (= i n)
               (let [c (int (.charAt s i))]
                 (and (< c 128) (aget token-char c) (recur (inc i)))))))))

(defn clean?
  "True if s has no control character but tabs."
  [^String s]
  (let [n (.length s)]
    (loop [i 0]
      (or (= i n)
          (let [c (int (.charAt s i))]
            ;; Not (< 31 c 127), which is a call with boxed numbers.
            (and (or (and (< 31 c) (not (= 127 c))) (= 9 c)) (recur (inc i))))))))

;; Names that most headers have. A string that was made once keeps its hash.

;; sent: as a client spells it. lower: in lower case. bit: one of 64, the same for all spellings; 0:
;; the name is not known.
(deftype Name [^String sent ^String lower ^long bit])

(defn- spellings
  "Returns how clients spell a name: in lower case, and with capitals."
  [name]
  (distinct [name
             (str/join "-" (map str/capitalize (str/split name #"-")))
             (str/capitalize name)]))

(def ^:private names
  "In the order of their bits; no more than 64."
  ["host" "content-length" "content-type" "transfer-encoding" "connection" "expect" "upgrade" "te"
   "accept" "accept-charset" "accept-encoding" "accept-language" "authorization" "cache-control"
   "cookie" "date" "dnt" "forwarded" "from" "if-match" "if-modified-since" "if-none-match"
   "if-range" "if-unmodified-since" "keep-alive" "origin" "pragma" "priority" "range" "referer"
   "sec-ch-ua" "sec-ch-ua-mobile" "sec-ch-ua-platform" "sec-fetch-dest" "sec-fetch-mode"
   "sec-fetch-site" "sec-fetch-user" "traceparent" "tracestate" "upgrade-insecure-requests"
   "user-agent" "via" "x-forwarded-for" "x-forwarded-host" "x-forwarded-port" "x-forwarded-proto"
   "x-real-ip" "x-request-id" "x-requested-with"])

(def ^:private all-names
  (for [[i lower] (map-indexed vector names), sent (spellings lower)]
    (Name. sent lower (bit-shift-left 1 (long i)))))

(def ^:private ^Map by-spelling
  (HashMap. ^Map (into {} (map (fn [^Name n] [(.-sent n) n])) all-names)))

(defn known-name
  "Returns what is known of a header's name, as sent, or nil."
  ^Name [name]
  (.get by-spelling name))

(defn name-as
  "Returns the Name of a header in any spelling."
  ^Name [^String sent]
  (or (known-name sent)
      (let [lower (lower-case sent), ^Name known (known-name lower)]
        (Name. sent lower (if known (.-bit known) 0)))))

(defn bit
  "Returns the bit of a name in lower case that is known."
  ^long [lower]
  (.-bit (known-name lower)))

;; By what their first and last bytes and their lengths are: in a row of slots, each of which has a
;; few names. To be found there costs less than a string of its own.
(def ^:private ^:const slots 512)

(defn- slot
  ^long [^long n ^long a ^long b]
  (bit-and (bit-xor (* 37 n) (* 11 a) (bit-shift-left b 3)) (dec slots)))

(defn- sent-bytes ^bytes [^Name n]
  (.getBytes ^String (.-sent n) StandardCharsets/ISO_8859_1))

(defn- slot-of [n]
  (let [sent (sent-bytes n)]
    (slot (alength sent) (aget sent 0) (aget sent (dec (alength sent))))))

(def ^{:private true, :tag 'objects} by-bytes
  (let [by-slot (group-by slot-of all-names)]
    (object-array (for [i (range slots)]
                    (some->> (by-slot i) (mapcat (juxt identity sent-bytes)) to-array)))))

(defn name-at
  "Returns the Name that stands among the bytes from one index to another, nil where none is known."
  ^Name [^bytes bytes ^long from ^long to]
  (let [^objects by-bytes by-bytes
        i (slot (- to from) (aget bytes from) (aget bytes (dec to)))]
    (when-some [^objects candidates (aget by-bytes i)]
      (loop [i 0]
        (when (< i (alength candidates))
          (let [^"[B" name (aget candidates (inc i))]
            (if (Arrays/equals bytes (int from) (int to) name 0 (alength name))
              (aget candidates i)
              (recur (+ i 2)))))))))

;; Websockets (RFC 6455, 4.2.2)

(defn- accept-key [key]
  (->> (.getBytes (str key "258EAFA5-E914-47DA-95CA-C5AB0DC85B11") StandardCharsets/US_ASCII)
       (.digest (MessageDigest/getInstance "SHA-1"))
       (.encodeToString (Base64/getEncoder))))

(defn websocket-headers
  "Returns the headers that accept a websocket, as pairs; key: the client's; protocol: the
  subprotocol, or nil."
  [key protocol]
  (cond-> [["Upgrade" "websocket"] ["Connection" "Upgrade"]
           ["Sec-WebSocket-Accept" (accept-key key)]]
    protocol (conj ["Sec-WebSocket-Protocol" protocol])))
