(ns thrum.server.impl.fields
  "A request's headers: from an array of name, value, name, value ... as sent to Ring's map."
  {:no-doc true}
  (:require
   [clojure.string :as str]
   [thrum.server.impl.refusal :as refusal]
   [thrum.server.spi.http :as http])
  (:import
   (clojure.lang PersistentArrayMap)
   (java.util HashMap Locale Map)))

(set! *warn-on-reflection* true)

(defn lower-case
  "Returns s in lower case, alike in every locale."
  ^String [^String s]
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
        (refusal/refuse! 400 "A header's name is not a token"))))

(defn lower-cased
  "Returns the headers with names in lower case, all checked."
  ^objects [^objects headers]
  (let [n (alength headers)
        lower (object-array n)]
    (loop [i 0]
      (when (< i n)
        (let [name (aget headers i), value (aget headers (inc i))]
          (when-not (http/clean? value)
            (refusal/refuse! 400 "A header's value has control characters"))
          (aset lower i (lower-cased-name name))
          (aset lower (inc i) value)
          (recur (+ i 2)))))
    lower))

(defn index-of
  "Returns where the name stands among the headers from i on, -1 when it does not."
  ^long [^objects headers ^String name ^long from]
  (let [n (alength headers)]
    (loop [i from]
      (cond
        (<= n i) -1
        (.equals name (aget headers i)) i
        :else (recur (+ i 2))))))

(defn only
  "Returns the value of a header that may stand there once; nil when it does not."
  [headers name]
  (let [i (index-of headers name 0)]
    (when-not (neg? i)
      (when-not (neg? (index-of headers name (+ i 2)))
        (refusal/refuse! 400 (str "More than one " name)))
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

(defn header-map
  "Returns the headers as a map, each name once, its values joined."
  [^objects headers]
  (if (<= (alength headers) most-in-an-array)
    (PersistentArrayMap. (joined-one-by-one headers))
    (hashed headers)))
