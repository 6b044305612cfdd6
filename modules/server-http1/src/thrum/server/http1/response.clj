(ns thrum.server.http1.response
  "A response as bytes: its head, and a body in pieces, of a stated length, in chunks, or up to the
  connection's end (RFC 9112, 4, 6 and 7)."
  (:require
   [thrum.server.http1.connection :as connection]
   [thrum.server.http1.head :as head]
   [thrum.server.spi.byte-stream :as byte-stream])
  (:import
   (java.io ByteArrayOutputStream OutputStream)
   (java.nio.charset StandardCharsets)
   (java.time Instant ZoneOffset)
   (java.time.format DateTimeFormatter)
   (java.util Arrays HashMap Locale Map)))

(set! *warn-on-reflection* true)

(def ^:private phrases
  {200 "OK", 201 "Created", 202 "Accepted", 203 "Non-Authoritative Information", 204 "No Content"
   205 "Reset Content", 206 "Partial Content", 300 "Multiple Choices", 301 "Moved Permanently"
   302 "Found", 303 "See Other", 304 "Not Modified", 307 "Temporary Redirect"
   308 "Permanent Redirect", 400 "Bad Request", 401 "Unauthorized", 402 "Payment Required"
   403 "Forbidden", 404 "Not Found", 405 "Method Not Allowed", 406 "Not Acceptable"
   408 "Request Timeout", 409 "Conflict", 410 "Gone", 411 "Length Required"
   412 "Precondition Failed", 413 "Content Too Large", 414 "URI Too Long"
   415 "Unsupported Media Type", 416 "Range Not Satisfiable", 417 "Expectation Failed"
   421 "Misdirected Request", 422 "Unprocessable Content", 426 "Upgrade Required"
   428 "Precondition Required", 429 "Too Many Requests", 431 "Request Header Fields Too Large"
   500 "Internal Server Error", 501 "Not Implemented", 502 "Bad Gateway"
   503 "Service Unavailable", 504 "Gateway Timeout", 505 "HTTP Version Not Supported"
   101 "Switching Protocols"})

;; Heads

;; RFC_1123_DATE_TIME of Java's writes the first to the ninth of a month with one digit.
(def ^:private ^DateTimeFormatter http-date
  (-> (DateTimeFormatter/ofPattern "EEE, dd MMM yyyy HH:mm:ss 'GMT'" Locale/ENGLISH)
      (.withZone ZoneOffset/UTC)))

(deftype Second [^long second ^String line])

(def ^:private this-second (volatile! (Second. 0 "")))

(defn- date-line
  "Returns the line of Date, made once a second."
  ^String []
  (let [now (quot (System/currentTimeMillis) 1000)
        ^Second last @this-second]
    (if (= now (.-second last))
      (.-line last)
      (let [line (str "Date: " (.format http-date (Instant/ofEpochSecond now)) "\r\n")]
        (vreset! this-second (Second. now line))
        line))))

(defn- status-line ^String [status]
  (str "HTTP/1.1 " status " " (phrases status "") "\r\n"))

(def ^:private ^Map status-lines
  (HashMap. ^Map (into {} (map (juxt identity status-line)) (keys phrases))))

(defn- add-line! [^StringBuilder to ^String name ^String value]
  (doto to (.append name) (.append ": ") (.append value) (.append "\r\n")))

(defn- add-headers! [^StringBuilder to ^objects headers]
  (loop [i 0]
    (when (< i (alength headers))
      (add-line! to (aget headers i) (aget headers (inc i)))
      (recur (+ i 2)))))

(defn- add-pair! [to pair]
  (when pair (add-line! to (nth pair 0) (str (nth pair 1))))
  to)

(defn head
  "Returns the bytes of a head: the headers, Date where they have none, and more, pairs of name and
  value, or nil. ? stands for what is not Latin-1."
  ^bytes [status ^objects headers more]
  (let [text (StringBuilder. 256)]
    (.append text ^String (or (.get status-lines status) (status-line status)))
    (when-not (head/value-of headers "date") (.append text (date-line)))
    (add-headers! text headers)
    (reduce add-pair! text more)
    (.append text "\r\n")
    (.getBytes (.toString text) StandardCharsets/ISO_8859_1)))

(defn refusal
  "Returns the bytes of a refusal with this status, behind which the connection is closed."
  ^bytes [status]
  (head status (object-array 0) [["Content-Length" 0] ["Connection" "close"]]))

;; Bodies

(defn- joined ^bytes [^bytes a ^bytes b]
  (let [both (Arrays/copyOf a (+ (alength a) (alength b)))]
    (System/arraycopy b 0 both (alength a) (alength b))
    both))

(defn write-whole!
  "Writes the head and the body, which may be nil, at once."
  [connection head body]
  (connection/write! connection (if body (joined head body) head)))

(def ^:private ^{:tag 'bytes} line-end (.getBytes "\r\n"))
(def ^:private ^{:tag 'bytes} last-chunk (.getBytes "0\r\n\r\n"))

;; out: what is written next, at first the head. held: of the body, what has not been framed yet.
(deftype Begun [connection chunked ^ByteArrayOutputStream out ^ByteArrayOutputStream held])

(defn begun
  "Returns the body that is to follow the head, in chunks or not; nothing is written yet."
  ^Begun [connection ^bytes head chunked?]
  (let [out (doto (ByteArrayOutputStream. 1024) (.writeBytes head))]
    (Begun. connection chunked? out (ByteArrayOutputStream. 512))))

(defn- frame! [^Begun begun ^ByteArrayOutputStream to bytes offset n]
  (when (.-chunked begun)
    (.writeBytes to (.getBytes (Integer/toHexString n)))
    (.writeBytes to line-end))
  (.write to ^bytes bytes (int offset) (int n))
  (when (.-chunked begun) (.writeBytes to line-end)))

(defn- frame-held! [^Begun begun]
  (let [^ByteArrayOutputStream held (.-held begun)]
    (when (pos? (.size held))
      (frame! begun (.-out begun) (.toByteArray held) 0 (.size held))
      (.reset held))))

(defn- write-out! [^Begun begun]
  (let [^ByteArrayOutputStream out (.-out begun)]
    (when (pos? (.size out))
      (let [bytes (.toByteArray out)]
        (.reset out)
        (connection/write! (.-connection begun) bytes)))))

(defn- flush! [begun]
  (frame-held! begun)
  (write-out! begun))

(def ^:private ^:const most-held
  "How many bytes of a body are held before they are written."
  8192)

(def ^:private ^:const most-framing
  "How many bytes a chunk has beside its content, at most."
  12)

(defn- write-through!
  "Writes what there is, and n bytes behind it. What is held for a stream has room for its largest
  piece as long as the stream is open: a large one is not held."
  [^Begun begun bytes offset n]
  (frame-held! begun)
  (let [^ByteArrayOutputStream out (.-out begun)
        all (ByteArrayOutputStream. (+ (.size out) (long n) most-framing))]
    (.writeTo out all)
    (.reset out)
    (frame! begun all bytes offset n)
    (connection/write! (.-connection begun) (.toByteArray all))))

(defn- take! [^Begun begun ^bytes bytes offset n]
  (let [^ByteArrayOutputStream held (.-held begun)]
    (if (<= most-held (long n))
      (write-through! begun bytes offset n)
      (do
        (.write held bytes (int offset) (int n))
        (when (<= most-held (.size held)) (flush! begun))))))

(defn finish!
  "Writes what is left of the body, and its end."
  [^Begun begun]
  (frame-held! begun)
  (when (.-chunked begun) (.writeBytes ^ByteArrayOutputStream (.-out begun) last-chunk))
  (write-out! begun))

(defn stream
  "Returns the stream that the body is written to. Closing it does nothing."
  ^OutputStream [begun]
  (byte-stream/output #(take! begun %1 %2 %3) #(flush! begun)))
