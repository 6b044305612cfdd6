(ns thrum.server.impl.address
  "IP addresses as text, and blocks of them. Only literals are read: nothing is ever looked up."
  {:no-doc true}
  (:require
   [clojure.string :as str])
  (:import
   (java.net InetAddress UnknownHostException)))

(set! *warn-on-reflection* true)

;; Addresses

(defn- octet
  "Returns the number from 0 to 255 that the digits are, or nil."
  [digits]
  (when (re-matches #"0|[1-9]\d{0,2}" digits)
    (let [n (long (parse-long digits))]
      (when (< n 256) n))))

(defn- v4 [s]
  (let [octets (map octet (str/split s #"\." -1))]
    (when (and (= 4 (count octets)) (every? some? octets))
      (InetAddress/getByAddress (byte-array (map unchecked-byte octets))))))

(defn- v6 [s]
  (when (re-matches #"[0-9a-fA-F:.]{2,45}" s)
    (try
      ;; In brackets it can be nothing but a literal.
      (InetAddress/getByName (str "[" s "]"))
      (catch UnknownHostException _))))

(defn address
  "Returns the InetAddress of a literal, an IPv4 address in the form of IPv6 as that of IPv4; nil
  for what is none."
  ^InetAddress [^String s]
  (if (str/includes? s ":")
    (v6 s)
    (v4 s)))

(defn text
  "Returns the address as text."
  [^InetAddress address]
  (.getHostAddress address))

(defn peer
  "Returns the InetAddress of a socket's peer, whose text may have a zone."
  [remote-addr]
  (some-> remote-addr (str/split #"%") first address))

;; Blocks

(defrecord Block [bytes ^long bits])

(def ^:private named
  {:loopback ["127.0.0.0/8" "::1"]
   :private ["10.0.0.0/8" "172.16.0.0/12" "192.168.0.0/16" "fc00::/7"]})

(defn- bits-of [digits most]
  (if digits
    (when-some [n (octet digits)] (when (<= (long n) (long most)) n))
    most))

(defn- block
  "Returns the block of text as \"10.0.0.0/8\", or of one address; nil for what is neither."
  [s]
  (let [[_ literal digits] (re-matches #"([^/]+)(?:/(\d{1,3}))?" s)]
    (when-some [bytes (some-> literal address InetAddress/.getAddress)]
      (when-some [bits (bits-of digits (* 8 (alength ^bytes bytes)))]
        (->Block bytes bits)))))

(defn blocks
  "Returns the blocks of a collection of addresses, blocks such as \"10.0.0.0/8\", :loopback and
  :private; nil where one is none of these."
  [coll]
  (when (and (coll? coll) (every? #(or (string? %) (named %)) coll))
    (let [all (map block (mapcat #(named % [%]) coll))]
      (when (every? some? all) (vec all)))))

(defn- bit-of [^bytes bytes ^long i]
  (bit-and 1 (bit-shift-right (long (aget bytes (quot i 8))) (- 7 (rem i 8)))))

(defn- in-block? [^bytes bytes {:keys [bits] :as block}]
  (let [^bytes prefix (:bytes block)]
    (and (= (alength bytes) (alength prefix))
         (every? #(= (bit-of bytes %) (bit-of prefix %)) (range bits)))))

(defn within?
  "True if the address is in one of the blocks."
  [blocks ^InetAddress address]
  (let [bytes (.getAddress address)]
    (boolean (some #(in-block? bytes %) blocks))))
