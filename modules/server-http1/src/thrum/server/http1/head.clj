(ns thrum.server.http1.head
  "A request's line and headers, read as strictly as RFC 9112 allows: bytes that two servers could
  read in two ways are no head."
  (:import
   (java.nio.charset StandardCharsets)
   (java.util ArrayList)))

(set! *warn-on-reflection* true)

(def ^:private ^:const tab 9)
(def ^:private ^:const lf 10)
(def ^:private ^:const cr 13)
(def ^:private ^:const space 32)
(def ^:private ^:const colon 58)

(def ^:const unfinished -1)
(def ^:const garbled -2)

;; = and not= of a byte and a long go by way of objects.
(defmacro ^:private is-at? [b bytes i]
  `(== (long ~b) (long (aget ~bytes ~i))))

(defn end
  "Returns where the head ends that begins at from and has been received up to to; the bytes before
  seen were looked at before. Returns unfinished when more is to come, garbled when a CR or LF
  stands alone."
  ^long [^bytes bytes from seen to]
  (let [from (long from), to (long to)]
    (loop [i (long seen)]
      (if (<= to i)
        unfinished
        (let [after-cr? (and (< from i) (is-at? cr bytes (dec i)))]
          (cond
            (not (is-at? lf bytes i)) (if after-cr? garbled (recur (inc i)))
            (not after-cr?) garbled
            (and (<= from (- i 2)) (is-at? lf bytes (- i 2))) (inc i)
            :else (recur (inc i))))))))

(defn- text ^String [^bytes bytes ^long from ^long to]
  (String. bytes from (- to from) StandardCharsets/ISO_8859_1))

(defn- index
  "Returns where the byte stands, from included, to excluded; -1 when it does not."
  ^long [^bytes bytes ^long b ^long from ^long to]
  (loop [i from]
    (cond
      (<= to i) -1
      (is-at? b bytes i) i
      :else (recur (inc i)))))

(defn- blank? [^long b]
  (or (= space b) (= tab b)))

(defn- value
  "Returns the text without the blanks around it."
  ^String [^bytes bytes ^long from ^long to]
  (cond
    (= from to) ""
    (blank? (aget bytes from)) (recur bytes (inc from) to)
    (blank? (aget bytes (dec to))) (recur bytes from (dec to))
    :else (text bytes from to)))

;; headers: an Object[] of name, value, name, value ...
(deftype Head [^String method ^String target ^String protocol ^objects headers])

(defn- add-header!
  "Adds the line's name and value; returns whether it has both. A line that begins with a blank
  would continue the one before."
  [^ArrayList to ^bytes bytes ^long from ^long end]
  (let [c (index bytes colon from end)]
    (when-not (or (<= c from) (blank? (aget bytes from)))
      (.add to (text bytes from c))
      (.add to (value bytes (inc c) end)))))

(defn- headers
  "Returns the lines up to the empty one as an array, nil where one is no header."
  ^objects [bytes from]
  (let [all (ArrayList. 32)]
    (loop [from (long from)]
      (let [end (index bytes cr from Long/MAX_VALUE)]
        (cond
          (= from end) (.toArray all)
          (add-header! all bytes from end) (recur (+ end 2)))))))

(defn- clean? [^bytes bytes ^long from ^long to]
  (or (= from to)
      (let [b (long (aget bytes from))]
        ;; Not (< space b 127), which is a call with boxed numbers.
        (and (or (neg? b) (and (< space b) (< b 127))) (recur bytes (inc from) to)))))

(defn head
  "Returns the head that begins at from and is complete; nil where it is none."
  ^Head [^bytes bytes ^long from]
  (let [end (index bytes cr from (alength bytes))
        a (index bytes space from end)
        b (if (neg? a) -1 (index bytes space (inc a) end))]
    (when (and (< from a) (< (inc a) b) (clean? bytes (inc a) b) (clean? bytes (inc b) end))
      (when-some [headers (headers bytes (+ end 2))]
        (Head. (text bytes from a) (text bytes (inc a) b) (text bytes (inc b) end) headers)))))

;; What headers say

(defn value-of
  "Returns the first value of a header, or nil."
  ^String [^objects headers ^String n]
  (loop [i 0]
    (when (< i (alength headers))
      (if (.equalsIgnoreCase n (aget headers i))
        (aget headers (inc i))
        (recur (+ i 2))))))

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
  (let [headers (.-headers head)]
    (or (closes? headers)
        (and (http-1-0? head)
             (not (connection-says? #"(?i)(?:^|[\s,])keep-alive(?:$|[\s,])" headers))))))

(defn waits?
  "True if the client waits for 100 Continue before it sends the body."
  [^Head head]
  (and (.equalsIgnoreCase "100-continue" (value-of (.-headers head) "expect"))
       (not (http-1-0? head))))

(defn body-length
  "Returns the length of the body that is announced, :chunked, or nil where there is none. Does not
  validate: thrum.server.request does, before the body is read."
  [^Head head]
  (if (value-of (.-headers head) "transfer-encoding")
    :chunked
    (when-some [length (some-> (value-of (.-headers head) "content-length") parse-long)]
      (when (pos? (long length)) length))))
