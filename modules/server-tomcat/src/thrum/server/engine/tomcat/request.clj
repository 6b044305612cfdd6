(ns thrum.server.engine.tomcat.request
  "What a request of Tomcat's says, as it arrived."
  (:require
   [thrum.server.engine.tomcat.stream :as stream]
   [thrum.server.spi.http :as http])
  (:import
   (java.net InetAddress InetSocketAddress)
   (java.nio.charset StandardCharsets)
   (java.util.concurrent.atomic AtomicBoolean)
   (org.apache.coyote ActionCode Request)
   (org.apache.tomcat.util.buf MessageBytes)
   (org.apache.tomcat.util.http MimeHeaders)
   (thrum.server.spi.http Name)))

(set! *warn-on-reflection* true)

(defn text
  "Returns the text as it arrived. Tomcat's own way, over a cache and a decoder, took a tenth of the
  whole time."
  ^String [^MessageBytes field]
  (if (= MessageBytes/T_BYTES (.getType field))
    (let [bytes (.getByteChunk field)]
      (String. (.getBytes bytes) (.getStart bytes) (.getLength bytes) StandardCharsets/ISO_8859_1))
    (or (.toString field) "")))

(defn- name-of
  "Returns the name of a header as it arrived; of a usual one a string that is there already."
  ^String [^MessageBytes field]
  (let [bytes (.getByteChunk field), from (.getStart bytes), to (.getEnd bytes)]
    (if-some [^Name usual (when (and (= MessageBytes/T_BYTES (.getType field)) (< from to))
                            (http/name-at (.getBytes bytes) from to))]
      (.-sent usual)
      (text field))))

(defn- in-word?
  "True unless a space, or what separates as well, is there."
  [^bytes buffer ^long i]
  (< 32 (bit-and 255 (aget buffer i))))

(defn- absolute
  "Returns the whole target where it is absolute, nil otherwise: Tomcat takes off what is before the
  path, and has a path of its own where there is none."
  ^String [^MessageBytes path]
  (let [bytes (.getByteChunk path), ^bytes buffer (.getBytes bytes), at (.getStart bytes)]
    (when (and (= MessageBytes/T_BYTES (.getType path)) (pos? at) (in-word? buffer (dec at)))
      (let [start (loop [i at] (if (and (pos? i) (in-word? buffer (dec i))) (recur (dec i)) i))
            end (loop [i at] (if (in-word? buffer i) (recur (inc i)) i))]
        (String. buffer (int start) (int (- (long end) (long start)))
                 StandardCharsets/ISO_8859_1)))))

(defn target-of
  "Returns path and query as they arrived."
  [^Request request]
  (let [path (.requestURI request), query (.queryString request)]
    (or (absolute path)
        (cond-> (text path)
          (not (.isNull query)) (str "?" (text query))))))

(defn headers-of
  "Returns the headers as name, value, name, value ..."
  ^objects [^Request request]
  (let [^MimeHeaders fields (.getMimeHeaders request)
        n (.size fields)
        all (object-array (* 2 n))]
    (dotimes [i n]
      (aset all (* 2 i) (name-of (.getName fields i)))
      (aset all (inc (* 2 i)) (text (.getValue fields i))))
    all))

(defn shared?
  "True if other requests are on the same connection at the same time."
  [^Request request]
  (.equals (.protocol request) "HTTP/2.0"))

(defn body-read?
  "True if all of the request's body has been read, also where it has none."
  [^Request request]
  (let [read (AtomicBoolean.)]
    (.action request ActionCode/REQUEST_BODY_FULLY_READ read)
    (.get read)))

(defn- length-of
  "Returns the request's Content-Length, -1 without one, and where there are several: over HTTP/2
  Tomcat leaves it to the exchange to refuse those."
  ^long [^Request request]
  (try
    (.getContentLengthLong request)
    (catch IllegalArgumentException _ -1)))

(defn body?
  "True if the request may have a body. HTTP/2 need not announce one. One whose stream was reset
  counts as cut off, also where it had ended: its client has gone."
  [^Request request shared]
  (and (not (zero? (length-of request)))
       (or (not (body-read? request))
           (and shared (stream/reset? request)))))

(defn announces-body?
  "True unless the head says that there is no body."
  [^Request request]
  (or (some? (.getHeader request "transfer-encoding"))
      (and (some? (.getHeader request "content-length"))
           (not (zero? (length-of request))))))

(defn cut-off?
  "True if the body has ended after n bytes, and should not have."
  [^Request request shared n]
  (or (< (long n) (length-of request))
      (and shared (stream/reset? request))))

(defn body-broken?
  "True if the body could not be read to its end."
  [^Request request]
  (some? (.getErrorException request)))

(defn unasked?
  "True if the client waits to be asked for its body, and nothing has: it may send that next, or
  another request."
  [^Request request]
  (and (.hasExpectation request)
       (zero? (.getBytesRead request))
       (not (body-read? request))))

(defn arrived?
  "True if there is something to read on the connection."
  [^Request request]
  (.action request ActionCode/AVAILABLE true)
  (pos? (.getAvailable request)))

(defn remote-of
  "Returns the client's address as text, nil where the socket has been closed already."
  [^Request request]
  (.action request ActionCode/REQ_HOST_ADDR_ATTRIBUTE request)
  (let [host (.remoteAddr request)]
    (when-not (.isNull host) (text host))))

;; An address, and the text that it was made of.
(deftype Local [^String host ^long port address])

(def ^:private ^:const note
  "Where a request of Tomcat's, which is used again and again, keeps the address that was asked for
  last: it is made of text, and mostly the same again."
  30)

(defn local-of
  "Returns the server's address, nil where the socket has been closed already."
  ^InetSocketAddress [^Request request]
  (.action request ActionCode/REQ_LOCAL_ADDR_ATTRIBUTE request)
  (.action request ActionCode/REQ_LOCALPORT_ATTRIBUTE request)
  (let [host (.localAddr request), port (.getLocalPort request)]
    (when-not (or (.isNull host) (neg? port))
      (let [host (text host), ^Local before (.getNote request note)]
        (if (and before (= port (.-port before)) (.equals host (.-host before)))
          (.-address before)
          (let [address (InetSocketAddress. (InetAddress/getByName host) port)]
            (.setNote request note (Local. host port address))
            address))))))

(defn authority-of
  "Returns the :authority of HTTP/2."
  [^Request request]
  (let [port (.getServerPort request)]
    (cond-> (text (.serverName request)) (pos? port) (str ":" port))))

(def ^:private ^String certificates "jakarta.servlet.request.X509Certificate")

(defn certificate-of
  "Returns the client's certificate, or nil."
  [^Request request]
  (when (.equals (.scheme request) "https")
    (.action request ActionCode/REQ_SSL_ATTRIBUTE request)
    (first (.getAttribute request certificates))))
