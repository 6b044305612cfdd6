(ns thrum.server.impl.fields
  "A request's headers: from an array of name, value, name, value ... as sent to Ring's map, in one
  pass."
  {:no-doc true}
  (:require
   [thrum.server.impl.refusal :as refusal]
   [thrum.server.spi.http :as http])
  (:import
   (clojure.lang IPersistentMap PersistentArrayMap)
   (java.util Arrays)
   (thrum.server.spi.http Name)))

(set! *warn-on-reflection* true)

(defn- joined [^String name before value]
  (str before (if (= "cookie" name) ";" ",") value))

(defn- index-of
  "Returns where the name stands among the first n elements, -1 when it does not."
  ^long [^objects fields ^long n ^String name]
  (loop [i 0]
    (cond
      (= i n) -1
      (.equals name (aget fields i)) i
      :else (recur (+ i 2)))))

(defn- name-of
  "Returns the Name of a header, checked."
  ^Name [sent]
  (or (http/known-name sent)
      (if (http/token? sent)
        (http/name-as sent)
        (refusal/refuse! 400 "A header's name is not a token"))))

(defn- check-value!
  [^String value]
  (when-not (http/clean? value)
    (refusal/refuse! 400 "A header's value has control characters")))

;; headers: Ring's map. known: the bits of the names in it, see thrum.server.spi.http/bit. size: of
;; the lines, in bytes.
(deftype Fields [headers ^long known ^long size])

(def ^:private ^:const line-bytes
  "What a header's line has beside name and value: a colon, a blank and its end."
  4)

(def ^:private ^:const most-in-an-array
  "How many elements a map has at most that is searched one by one."
  48)

(defn- in-array
  "Returns the Fields of few headers. A name that is known, and was not there before, is not
  searched for."
  [^objects raw checked?]
  (let [n (alength raw), all (object-array n)]
    (loop [i 0, used 0, known 0, size 0]
      (if (= i n)
        (Fields. (PersistentArrayMap. (if (= used n) all (Arrays/copyOf all used))) known size)
        (let [^String sent (aget raw i), ^String value (aget raw (inc i))
              name (name-of sent), lower (.-lower name), bit (.-bit name)
              again? (not (zero? (bit-and bit known)))
              index (if (or (zero? bit) again?) (index-of all used lower) -1)
              size (+ size line-bytes (.length sent) (.length value))]
          (when-not checked? (check-value! value))
          (if (neg? index)
            (do (aset all used lower)
                (aset all (inc used) value)
                (recur (+ i 2) (+ used 2) (bit-or known bit) size))
            (do (aset all (inc index) (joined lower (aget all (inc index)) value))
                (recur (+ i 2) used (bit-or known bit) size))))))))

(defn- in-hash-map
  "Returns the Fields of many headers, whose names are looked up: among thousands a search one by
  one would take the square of their number."
  [^objects raw checked?]
  (let [n (alength raw)]
    (loop [i 0, all (transient {}), known 0, size 0]
      (if (= i n)
        (Fields. (persistent! all) known size)
        (let [^String sent (aget raw i), ^String value (aget raw (inc i))
              name (name-of sent), lower (.-lower name), bit (.-bit name)
              before (get all lower)]
          (when-not checked? (check-value! value))
          (recur (+ i 2)
                 (assoc! all lower (if before (joined lower before value) value))
                 (bit-or known bit)
                 (+ size line-bytes (.length sent) (.length value))))))))

(defn fields
  "Returns the Fields of an array of headers as sent. Throws :thrum/refused for a name that is none,
  and, unless they have been checked, for values with control characters. A second Host,
  Content-Length or Transfer-Encoding is joined too: what has a comma is none of them."
  ^Fields [^objects raw checked?]
  (if (<= (alength raw) most-in-an-array)
    (in-array raw checked?)
    (in-hash-map raw checked?)))

(defn value
  "Returns the value of a header whose name, in lower case, and its bit these are; nil where it is
  not there."
  [^Fields fields ^String name ^long bit]
  (when-not (zero? (bit-and bit (.-known fields)))
    (.valAt ^IPersistentMap (.-headers fields) name)))
