(ns thrum.server.engine.jetty.wire
  "One request of Jetty's as a Wire."
  (:require
   [thrum.server.engine.jetty.events :as events]
   [thrum.server.engine.jetty.incoming :as incoming]
   [thrum.server.engine.jetty.outgoing :as outgoing]
   [thrum.server.engine.jetty.watch :as watch]
   [thrum.server.engine.jetty.websocket :as websocket]
   [thrum.server.spi :as engine]
   [thrum.server.spi.byte-stream :as byte-stream])
  (:import
   (java.io EOFException IOException InputStream)
   (java.net StandardSocketOptions)
   (java.nio ByteBuffer)
   (java.nio.channels NetworkChannel)
   (java.nio.charset StandardCharsets)
   (java.util Iterator)
   (java.util.concurrent.atomic AtomicBoolean)
   (java.util.function Predicate)
   (org.eclipse.jetty.http HttpField HttpFields HttpFields$Mutable HttpHeader HttpURI HttpVersion)
   (org.eclipse.jetty.io Content$Source EndPoint EndPoint$Wrapper EofException)
   (org.eclipse.jetty.server ConnectionMetaData Request Request$Handler$AbortException Response)
   (org.eclipse.jetty.util BufferUtil Callback)))

(set! *warn-on-reflection* true)

;; The request

(defn- fields->array ^objects [^HttpFields fields]
  (let [all (object-array (* 2 (.size fields)))
        ^Iterator each (.iterator fields)]
    (loop [i 0]
      (when (.hasNext each)
        (let [^HttpField field (.next each)]
          (aset all i (.getName field))
          (aset all (inc i) (or (.getValue field) "")))
        (recur (+ i 2))))
    all))

(defn- ascii? [^String s]
  (let [n (.length s)]
    (loop [i 0]
      (or (= i n)
          (and (< (int (.charAt s i)) 128) (recur (inc i)))))))

(defn- as-sent
  "Returns the target byte for byte: Jetty decodes what is beyond ASCII. Bytes that are no UTF-8 are
  lost on that way: \"\" then, for the target to be refused."
  [^String target]
  (cond
    (ascii? target) target
    (neg? (.indexOf target 0xfffd))
    (String. (.getBytes target StandardCharsets/UTF_8) StandardCharsets/ISO_8859_1)
    :else ""))

(defn- meta-data ^ConnectionMetaData [^Request request]
  (.getConnectionMetaData request))

(defn- end-point ^EndPoint [^Request request]
  (.getEndPoint (.getConnection (meta-data request))))

(defn- certificate-of [^Request request]
  (some-> (.getSslSessionData (end-point request)) .peerCertificates first))

(defn remote-of
  "Returns the client's address as text."
  [request]
  (engine/address (.getRemoteSocketAddress (meta-data request))))

(defn- shared?
  "True if other requests are on the same connection at the same time."
  [^Request request]
  (identical? HttpVersion/HTTP_2 (.getHttpVersion (meta-data request))))

(defn- body?
  "True if the request may have a body. HTTP/2 need not announce one."
  [^Request request shared?]
  (let [length (.getLength request)]
    (or (pos? length)
        (and (neg? length)
             (or shared? (.contains (.getHeaders request) HttpHeader/TRANSFER_ENCODING))))))

(defn- target-of
  "Returns path and query. What Jetty would overlook, another scheme, a user, a fragment, is shown,
  for the target to be refused."
  [^HttpURI uri]
  (if (and (contains? #{"http" "https" nil} (.getScheme uri))
           (nil? (.getUser uri))
           (nil? (.getFragment uri)))
    ;; CONNECT may have neither.
    (or (.getPathQuery uri) "")
    (.asString uri)))

;; The response

(defn- add-headers!
  "Adds the headers; a Date takes the place of Jetty's."
  [^HttpFields$Mutable fields ^objects headers]
  (loop [i 0]
    (when (< i (alength headers))
      (let [^String field (aget headers i), ^String value (aget headers (inc i))]
        (if (.equalsIgnoreCase "date" field)
          (.put fields field value)
          (.add fields field value)))
      (recur (+ i 2)))))

(defn- set-head! [^Response response status headers]
  (.setStatus response status)
  (add-headers! (.getHeaders response) headers))

(defn- frame!
  "States how the body is framed. Of an unknown length it is sent in chunks, also where the
  connection closes after it: the end of a connection would look like the end of the body."
  [^Request request ^Response response length]
  (cond (not (neg? (long length)))
        (.put (.getHeaders response) HttpHeader/CONTENT_LENGTH (long length))
        (= HttpVersion/HTTP_1_1 (.getHttpVersion (meta-data request)))
        (.put (.getHeaders response) HttpHeader/TRANSFER_ENCODING "chunked")))

(defn- length-open?
  "True if neither the headers nor the status say how long the body is: Jetty would say 0."
  [^Response response]
  (not (or (.contains (.getHeaders response) HttpHeader/CONTENT_LENGTH)
           (= 204 (.getStatus response)))))

(defn- delimited-by-end?
  "True if the client takes the end of the connection for the end of the body."
  [^Request request ^Response response]
  (and (= HttpVersion/HTTP_1_0 (.getHttpVersion (meta-data request)))
       (.isCommitted response)
       (not (.contains (.getHeaders response) HttpHeader/CONTENT_LENGTH))))

;; Abort

(defn- socket-end-point
  "Returns the end point of the socket, beneath TLS."
  ^EndPoint [^EndPoint end-point]
  (if (instance? EndPoint$Wrapper end-point)
    (recur (.unwrap ^EndPoint$Wrapper end-point))
    end-point))

(defn- reset-at-close! [^EndPoint end-point]
  (try
    (.setOption ^NetworkChannel (.getTransport end-point) StandardSocketOptions/SO_LINGER (int 0))
    ;; It is closed already.
    (catch IOException _)))

(defn- close-connection!
  "Closes the connection of HTTP/1, with a RST where a FIN would look like the end of the body."
  [^Request request response]
  (let [outer (end-point request)
        socket (socket-end-point outer)]
    (when (delimited-by-end? request response) (reset-at-close! socket))
    (.close socket)
    (.close outer)))

(defn- fail!
  "Fails the exchange in Jetty, which then sends no answer, and resets a stream of HTTP/2."
  [^Request request ^Callback callback]
  (try
    (.fail request (EofException. "aborted"))
    ;; Jetty's, where the exchange has ended meanwhile.
    (catch NullPointerException _))
  (.failed callback (Request$Handler$AbortException.)))

;; The wire

(defprotocol ^:private Completion
  "How an exchange ends."
  (write! [wire last? bytes] "Writes a ByteBuffer; where that fails, aborts and throws.")
  (complete! [wire] "Ends the exchange well. Throws IOException where it was aborted."))

(def ^:private ^Predicate patient
  "A handler may take longer than the connection may be idle; what it reads or writes may not."
  (reify Predicate (test [_ _] false)))

(defn- body-of
  "Returns the request's body; (done) is called at its end. Throws where it ends before the length
  in its head: on HTTP/2 Jetty does not where the end is that of the head, or of trailers."
  ^InputStream [^Request request incoming done]
  (let [in (Content$Source/asInputStream ^Content$Source incoming)
        left (volatile! (.getLongField (.getHeaders request) HttpHeader/CONTENT_LENGTH))]
    (byte-stream/input #(let [n (.read in ^bytes %1 (int %2) (int %3))]
                          (if (neg? n)
                            (do
                              (when (pos? (long @left))
                                (throw (EOFException. "The body was cut off")))
                              (done))
                            (vreset! left (- (long @left) n)))
                          n)
                       #(.available in))))

;; incoming: the request's body, or nil. lookout: nil where the client is not watched. over: whether
;; the exchange has been completed, or aborted.
(deftype JettyWire [^Request request ^Response response ^Callback callback container shared incoming
                    lookout ^AtomicBoolean over ^:unsynchronized-mutable finish]
  Completion
  (write! [this last? bytes]
    (try
      (outgoing/write! response (boolean last?) bytes)
      (catch Throwable t (engine/abort! this) (throw t))))
  (complete! [_]
    (when-not (.compareAndSet over false true) (throw (IOException. "The exchange was aborted")))
    (some-> incoming incoming/end!)
    (when shared (events/stop-body! (end-point request) request))
    (.succeeded callback))
  engine/Wire
  (method [_] (.getMethod request))
  (target [_] (as-sent (target-of (.getHttpURI request))))
  (protocol [_] (.asString (.getHttpVersion (meta-data request))))
  (scheme [_] (if (.isSecure (end-point request)) "https" "http"))
  (authority [_] (when shared (or (.getAuthority (.getHttpURI request)) "")))
  (headers [_] (fields->array (.getHeaders request)))
  (remote [_] (remote-of request))
  (local [_] (.getLocalSocketAddress (meta-data request)))
  (certificate [_] (certificate-of request))
  (body [_] (when incoming (body-of request incoming #(some-> lookout watch/body-read!))))
  (send! [this status headers body]
    (set-head! response status headers)
    ;; Jetty closes the connection where the request's body has not come, and does not say so.
    (when incoming
      (incoming/end! incoming)
      (when-not (or shared (.consumeAvailable request))
        (.put (.getHeaders response) HttpHeader/CONNECTION "close")))
    (if body
      (write! this true (ByteBuffer/wrap body))
      (do
        (when (length-open? response) (write! this false BufferUtil/EMPTY_BUFFER))
        (write! this true BufferUtil/EMPTY_BUFFER)))
    (complete! this))
  (begin! [this status headers length]
    (set-head! response status headers)
    (frame! request response length)
    (let [[stream finish!] (outgoing/stream #(write! this %1 %2))]
      (set! finish finish!)
      stream))
  (end! [this] (finish) (complete! this))
  (abort! [this]
    (when (.compareAndSet over false true)
      (engine/unwatch! this)
      (some-> incoming incoming/end!)
      (if shared
        (events/uncounted (end-point request) request #(fail! request callback))
        (do
          (close-connection! request response)
          (fail! request callback)))))
  (watch! [_ gone] (watch/begin! lookout gone))
  (unwatch! [_] (some-> lookout watch/cease!))
  (upgrade! [_ headers protocol listener]
    (add-headers! (.getHeaders response) headers)
    (websocket/upgrade! container request response callback protocol listener)
    (when-not (.compareAndSet over false true) (throw (IOException. "The exchange was aborted")))))

(defn wire
  "Returns the wire of a request of Jetty's; container: that of the websockets; watched?: whether
  watch! may be called."
  ^JettyWire [^Request request response callback container watched?]
  (.addIdleTimeoutListener request patient)
  (let [shared (shared? request)
        incoming (when (body? request shared) (incoming/body request))]
    (JettyWire. request response callback container shared incoming
                (when watched? (watch/lookout request)) (AtomicBoolean.) nil)))

(defn serve!
  "Calls serve with the wire. When that returns, the exchange is over, or another thread is about to
  answer: that of a deadline."
  [^JettyWire wire serve]
  (try
    (serve wire)
    (catch Throwable t
      (engine/abort! wire)
      (throw t))))
