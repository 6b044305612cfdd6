(ns thrum.watch.impl.access
  "Who may read: a token, as Bearer or as the cookie that the page sets, and the Host that a browser
  was sent to."
  {:no-doc true}
  (:require
   [clojure.string :as str])
  (:import
   (java.net InetAddress UnknownHostException)
   (java.nio.charset StandardCharsets)
   (java.security MessageDigest SecureRandom)
   (java.util HexFormat Locale)))

(set! *warn-on-reflection* true)

(defn random-token
  "Returns a token of 128 bits."
  []
  (let [bytes (byte-array 16)]
    (.nextBytes (SecureRandom.) bytes)
    (.formatHex (HexFormat/of) bytes)))

(defn- bytes-of ^bytes [^String s]
  (.getBytes s StandardCharsets/UTF_8))

(defn same?
  "Compares in a time that does not depend on where the two differ."
  [a b]
  (and (some? a) (MessageDigest/isEqual (bytes-of a) (bytes-of b))))

;; A browser sends the cookies of a host to all its ports.
(defn- cookie-name [port]
  (str "thrum-watch-" port))

(defn cookie
  "Returns the Set-Cookie of a session with the server on this port."
  [{:keys [session port]}]
  (str (cookie-name port) "=" session "; HttpOnly; SameSite=Strict; Path=/"))

(defn- cookie-value [header port]
  (some (fn [pair]
          (let [[k v] (str/split (str/trim pair) #"=" 2)]
            (when (= (cookie-name port) k) v)))
        (str/split (str header) #";")))

(defn- bearer [header]
  (second (re-matches #"(?i)bearer +(\S+)" (str header))))

(defn allowed?
  "True if the headers, a function from name to value, carry the token or the session."
  [{:keys [token session port]} header]
  (or (same? (bearer (header "Authorization")) token)
      (same? (cookie-value (header "Cookie") port) session)))

(defn- lower-case [^String host]
  (.toLowerCase host Locale/ROOT))

(defn- without-port [host]
  (lower-case (str/replace (str host) #":\d*$" "")))

(defn- is-address?
  "True if a host, as a Host header has it, is that address. No name is looked up."
  [host ^InetAddress address]
  (or (= host (.getHostAddress address))
      (and (re-matches #"\[[\da-f:.%]+\]" host)
           (= address (try (InetAddress/getByName host) (catch UnknownHostException _))))))

(defn known-host?
  "True if the Host header names this server, or is the address that it was reached at: a page of
  another site, whose name was made to resolve here, does neither."
  [hosts reached-at header]
  (let [host (without-port (header "Host"))]
    (or (contains? hosts host) (is-address? host reached-at))))

(defn hosts
  "Returns the names that a server bound to this host answers to, and those that the user adds."
  [host more]
  (into #{} (map lower-case) (list* "localhost" "127.0.0.1" "[::1]" host more)))
