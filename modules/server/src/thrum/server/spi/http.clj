(ns thrum.server.spi.http
  "What engines that read and write HTTP/1.1 themselves need of it."
  (:import
   (java.nio.charset StandardCharsets)
   (java.security MessageDigest)
   (java.util Base64)))

(set! *warn-on-reflection* true)

;; Header fields

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
