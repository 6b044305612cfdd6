(ns thrum.server.http1.head
  "A request's line and headers, read as strictly as RFC 9112 allows: bytes that two servers could
  read in two ways are no head."
  (:require
   [thrum.server.spi.http :as http])
  (:import
   (java.nio ByteBuffer)
   (java.nio.charset StandardCharsets)
   (java.util ArrayList)
   (thrum.server.spi.http Name)))

(set! *warn-on-reflection* true)
(set! *unchecked-math* :warn-on-boxed)

(def ^:private ^:const tab 9)
(def ^:private ^:const lf 10)
(def ^:private ^:const cr 13)
(def ^:private ^:const space 32)
(def ^:private ^:const colon 58)

(def ^:const unfinished -1)
(def ^:const garbled -2)

;; Eight bytes at once: each byte of each head is looked at. One by one a head of twelve lines took
;; twice as long (JDK 25).

(def ^:private ^:const ones 0x0101010101010101)
(def ^:private ^:const highs -0x7f7f7f7f7f7f7f80)
(def ^:private ^:const dels 0x7f7f7f7f7f7f7f7f)
(def ^:private ^:const spaces 0x2020202020202020)

(defn- controls
  "Returns, of eight bytes, the first the lowest, a number whose lowest bit stands in the first of
  them that is a control character; 0 where there is none."
  ^long [^long bytes]
  (let [del? (bit-xor bytes dels)]
    (bit-and (bit-or (bit-and (- bytes spaces) (bit-not bytes))
                     (bit-and (- del? ones) (bit-not del?)))
             highs)))

(defn- control? [^long b]
  (or (and (<= 0 b) (< b space)) (== 127 b)))

(defn- next-control
  "Returns where the next control character stands, from included, to excluded; to where there is
  none."
  ^long [^ByteBuffer buffer ^long from ^long to]
  (loop [i from]
    (if (<= (+ i 8) to)
      (let [found (controls (Long/reverseBytes (.getLong buffer (int i))))]
        (if (zero? found)
          (recur (+ i 8))
          (+ i (bit-shift-right (Long/numberOfTrailingZeros found) 3))))
      (cond
        (<= to i) to
        (control? (long (.get buffer (int i)))) i
        :else (recur (inc i))))))

(defn- at ^long [^ByteBuffer buffer ^long i]
  (long (.get buffer (int i))))

(defn- line-end
  "Returns where the line that begins at from ends, at its CR LF; unfinished when more is to come;
  garbled where a control character stands in it that is no tab."
  ^long [buffer ^long from ^long to]
  (loop [i (next-control buffer from to)]
    (cond
      (<= to i) unfinished
      (== tab (at buffer i)) (recur (next-control buffer (inc i) to))
      (not (== cr (at buffer i))) garbled
      (== to (inc i)) unfinished
      (== lf (at buffer (inc i))) i
      :else garbled)))

(defn end
  "Returns where the head ends that begins at from and has been received up to to; unfinished when
  more is to come, garbled when a CR or LF stands alone, or another control character that is no
  tab."
  ^long [buffer ^long from ^long to]
  (loop [line from]
    (let [end (line-end buffer line to)]
      (cond
        (neg? end) end
        (and (== line end) (< from line)) (+ end 2)
        :else (recur (+ end 2))))))

(defn- text ^String [^bytes bytes ^long from ^long to]
  (String. bytes from (- to from) StandardCharsets/ISO_8859_1))

(defn- index
  "Returns where the byte stands, from included, to excluded; -1 when it does not."
  ^long [^bytes bytes ^long b ^long from ^long to]
  (loop [i from]
    (cond
      (<= to i) -1
      (== b (aget bytes i)) i
      :else (recur (inc i)))))

(defn- blank? [^long b]
  (or (== space b) (== tab b)))

(defn- value
  "Returns the text without the blanks around it."
  ^String [^bytes bytes ^long from ^long to]
  (cond
    (== from to) ""
    (blank? (aget bytes from)) (recur bytes (inc from) to)
    (blank? (aget bytes (dec to))) (recur bytes from (dec to))
    :else (text bytes from to)))

;; headers: an Object[] of name, value, name, value ... known: the bits of their names, see
;; thrum.server.spi.http.
(deftype Head [^String method ^String target ^String protocol ^objects headers ^long known])

(defn- name-at
  "Returns the Name of a header, nil where it begins with a blank: its line would continue the one
  before."
  ^Name [^bytes bytes ^long from ^long to]
  (when-not (or (<= to from) (blank? (aget bytes from)))
    (or (http/name-at bytes from to)
        (http/name-as (text bytes from to)))))

(defn- add-headers!
  "Adds the name and value of each line from there up to the empty one. Returns the bits of the
  names, garbled where a line is no header."
  ^long [^ArrayList to ^ByteBuffer buffer ^long from]
  (let [bytes (.array buffer), limit (.limit buffer)]
    (loop [from from, known 0]
      (let [end (line-end buffer from limit)]
        (if (== from end)
          known
          (let [c (index bytes colon from end)]
            (if-some [^Name name (name-at bytes from c)]
              (do (.add to (.-sent name))
                  (.add to (value bytes (inc c) end))
                  (recur (+ end 2) (bit-or known (.-bit name))))
              garbled)))))))

(defn- visible?
  "True if there is no blank among the bytes, which have no other control character."
  [^bytes bytes ^long from ^long to]
  (or (== from to)
      (let [b (aget bytes from)]
        (and (or (neg? b) (< space b)) (recur bytes (inc from) to)))))

(defn head
  "Returns the head at the buffer's position, which is complete; nil where it is none."
  ^Head [^ByteBuffer buffer]
  (let [bytes (.array buffer)
        from (.position buffer)
        end (line-end buffer from (.limit buffer))
        a (index bytes space from end)
        b (if (neg? a) -1 (index bytes space (inc a) end))]
    (when (and (< from a) (< (inc a) b) (visible? bytes (inc a) b) (visible? bytes (inc b) end))
      (let [all (ArrayList. 32), known (add-headers! all buffer (+ end 2))]
        (when-not (== garbled known)
          (Head. (text bytes from a) (text bytes (inc a) b) (text bytes (inc b) end)
                 (.toArray all) known))))))

;; What headers say

(def ^:private connection-bit (http/bit "connection"))
(def ^:private coding-bit (http/bit "transfer-encoding"))
(def ^:private length-bit (http/bit "content-length"))
(def ^:private expect-bit (http/bit "expect"))

(defn value-of
  "Returns the first value of a header, or nil."
  ^String [^objects headers ^String n]
  (loop [i 0]
    (when (< i (alength headers))
      (if (.equalsIgnoreCase n (aget headers i))
        (aget headers (inc i))
        (recur (+ i 2))))))

(defn- known-value
  "Returns the first value of a header of this name and bit, or nil."
  ^String [^Head head n bit]
  (when-not (zero? (bit-and (long bit) (.-known head)))
    (value-of (.-headers head) n)))

(defn- connection-says?
  "True if a Connection header matches."
  [pattern ^objects headers]
  (loop [i 0]
    (when (< i (alength headers))
      (or (and (.equalsIgnoreCase "connection" (aget headers i))
               (boolean (re-find pattern (aget headers (inc i)))))
          (recur (+ i 2))))))

(defn closes?
  "True if the headers end the connection."
  [headers]
  (connection-says? #"(?i)(?:^|[\s,])close(?:$|[\s,])" headers))

(defn http-1-0?
  "True if the request is of HTTP/1.0: its client knows no chunks, nor 100 Continue."
  [^Head head]
  (.equals "HTTP/1.0" (.-protocol head)))

(defn ends?
  "True if the request ends its connection: one of HTTP/1.0 does, unless it says otherwise
  (RFC 9112, 9.3)."
  [^Head head]
  (if (zero? (bit-and (long connection-bit) (.-known head)))
    (http-1-0? head)
    (let [headers (.-headers head)]
      (or (closes? headers)
          (and (http-1-0? head)
               (not (connection-says? #"(?i)(?:^|[\s,])keep-alive(?:$|[\s,])" headers)))))))

(defn waits?
  "True if the client waits for 100 Continue before it sends the body."
  [^Head head]
  (and (.equalsIgnoreCase "100-continue" (known-value head "expect" expect-bit))
       (not (http-1-0? head))))

(defn body-length
  "Returns the length of the body that is announced, :chunked, or nil where there is none. Does not
  validate: thrum.server.impl.request does, before the body is read."
  [^Head head]
  (if (known-value head "transfer-encoding" coding-bit)
    :chunked
    (when-some [length (some-> (known-value head "content-length" length-bit) parse-long)]
      (when (pos? (long length)) length))))
