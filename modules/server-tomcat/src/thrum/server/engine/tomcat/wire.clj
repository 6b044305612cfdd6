(ns thrum.server.engine.tomcat.wire
  "One request of Tomcat's connector as a Wire.

  Tomcat reads a connection on a fresh virtual thread whenever something has arrived, and the
  exchange runs there; what the same thread reads after it, what becomes a websocket and a stream of
  HTTP/2 get a thread of their own. Tomcat's objects of a request are used again for the next one as
  soon as the connection's thread returns: it waits until the exchange is over and nobody is inside
  of them any more.

  On HTTP/1 Tomcat's waits for a client swallow interrupts. On HTTP/2 an interrupt of a thread
  inside Tomcat ends the connection, with all other streams. What may wait, and on HTTP/2 whatever
  writes, is therefore done by a thread of its own, which the exchange's waits for. An abort closes
  the socket under it, and wakes it; of HTTP/2 it resets the stream, and interrupts nobody."
  (:require
   [thrum.server.engine.tomcat.connections :as connections]
   [thrum.server.engine.tomcat.stream :as stream]
   [thrum.server.engine.tomcat.websocket :as websocket]
   [thrum.server.spi :as engine]
   [thrum.server.spi.flow :as flow]
   [thrum.spi :as spi])
  (:import
   (jakarta.servlet RequestDispatcher)
   (java.io BufferedOutputStream EOFException IOException InputStream InterruptedIOException OutputStream)
   (java.net InetAddress InetSocketAddress)
   (java.nio ByteBuffer)
   (java.nio.charset StandardCharsets)
   (java.util ArrayList List)
   (java.util.concurrent ThreadFactory)
   (java.util.concurrent.atomic AtomicBoolean)
   (java.util.concurrent.locks Lock LockSupport ReentrantLock)
   (java.util.function Supplier)
   (org.apache.coyote ActionCode CloseNowException Request Response)
   (org.apache.tomcat.util.buf MessageBytes)
   (org.apache.tomcat.util.http MimeHeaders)
   (org.apache.tomcat.util.net ApplicationBufferHandler)))

(set! *warn-on-reflection* true)

;; The request

(defn- text
  "Returns the text as it arrived. Tomcat's own way, over a cache and a decoder, took a tenth of the
  whole time."
  ^String [^MessageBytes field]
  (if (= MessageBytes/T_BYTES (.getType field))
    (let [bytes (.getByteChunk field)]
      (String. (.getBytes bytes) (.getStart bytes) (.getLength bytes) StandardCharsets/ISO_8859_1))
    (or (.toString field) "")))

(defn- before
  "Returns what stands before the path in an absolute target, which Tomcat takes off: scheme and
  authority; \"\" where there is nothing."
  ^String [^MessageBytes path]
  (let [bytes (.getByteChunk path)
        ^bytes buffer (.getBytes bytes)
        end (if (= MessageBytes/T_BYTES (.getType path)) (.getStart bytes) 0)]
    (loop [start end]
      (if (and (pos? start) (< 32 (aget buffer (dec start))))
        (recur (dec start))
        (String. buffer (int start) (int (- end start)) StandardCharsets/ISO_8859_1)))))

(defn- target-of [^Request request]
  (let [path (.requestURI request), query (.queryString request)]
    (cond-> (str (before path) (text path))
      (not (.isNull query)) (str "?" (text query)))))

(defn- fields->array ^objects [^MimeHeaders fields]
  (let [n (.size fields)
        all (object-array (* 2 n))]
    (dotimes [i n]
      (aset all (* 2 i) (text (.getName fields i)))
      (aset all (inc (* 2 i)) (text (.getValue fields i))))
    all))

(defn- shared?
  "Tells whether other requests are on the same connection at the same time."
  [^Request request]
  (.equals (.protocol request) "HTTP/2.0"))

(defn- body-read? [^Request request]
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

(defn- body?
  "Tells whether the request may have a body. HTTP/2 need not announce one."
  [^Request request]
  (and (not (zero? (length-of request)))
       (not (body-read? request))))

(defn- reset?
  "Tells whether the client has reset its stream of HTTP/2: to who reads the body Tomcat says that
  it has ended, and to who asks whether more can be read, that it has not."
  [^Request request]
  (.action request ActionCode/NB_READ_INTEREST (AtomicBoolean.))
  (some? (.getAttribute request RequestDispatcher/ERROR_EXCEPTION)))

(defn- cut-off?
  "Tells whether the body has ended after n bytes, and should not have."
  [^Request request shared n]
  (or (< (long n) (length-of request))
      (and shared (reset? request))))

(defn- address
  "Returns the address, nil where the socket has been closed already."
  ^InetSocketAddress [^MessageBytes host port]
  (when-not (or (.isNull host) (neg? (long port)))
    (InetSocketAddress. (InetAddress/getByName (text host)) (int port))))

(defn remote-of
  "Returns the client's address, nil where the socket has been closed already."
  [^Request request]
  (.action request ActionCode/REQ_HOST_ADDR_ATTRIBUTE request)
  (.action request ActionCode/REQ_REMOTEPORT_ATTRIBUTE request)
  (address (.remoteAddr request) (.getRemotePort request)))

(defn- local-of [^Request request]
  (.action request ActionCode/REQ_LOCAL_ADDR_ATTRIBUTE request)
  (.action request ActionCode/REQ_LOCALPORT_ATTRIBUTE request)
  (address (.localAddr request) (.getLocalPort request)))

(defn- authority-of [^Request request]
  (let [port (.getServerPort request)]
    (cond-> (text (.serverName request)) (pos? port) (str ":" port))))

(def ^:private ^String certificates "jakarta.servlet.request.X509Certificate")

(defn- certificate-of [^Request request]
  (.action request ActionCode/REQ_SSL_ATTRIBUTE request)
  (first (.getAttribute request certificates)))

;; The response

(defn- connections-own?
  "Tells whether a header is about the connection, of which HTTP/2 has its own ideas."
  [^String field]
  (or (.equalsIgnoreCase field "connection") (.equalsIgnoreCase field "upgrade")))

(defn- set-value!
  "Sets the value, what is beyond Latin-1 as a question mark: Tomcat would drop the header."
  [^MessageBytes field ^String value]
  (let [bytes (.getBytes value StandardCharsets/ISO_8859_1)]
    (.setBytes field bytes 0 (alength bytes))))

(defn- set-head!
  "Sets status and headers, past Tomcat's own ideas about some of them."
  [^Response response shared status ^objects headers]
  (.setStatus response status)
  (let [fields (.getMimeHeaders response)]
    (loop [i 0]
      (when (< i (alength headers))
        (let [field ^String (aget headers i)]
          (when-not (and shared (connections-own? field))
            (set-value! (.addValue fields field) (aget headers (inc i)))))
        (recur (+ i 2))))))

(def ^:private no-trailers
  "With trailers, which may be none, a body is sent in chunks also where the connection closes after
  it: the end of a connection would look like the end of the body."
  (reify Supplier (get [_] nil)))

(def ^:private cut
  "Trailers that cannot be had: a stream of HTTP/2 is reset then, where Tomcat would end it."
  (reify Supplier (get [_] (throw (CloseNowException. "aborted")))))

(defn- frame!
  "States how the body is framed."
  [^Request request ^Response response length]
  (cond
    (not (neg? (long length))) (.setContentLength response (long length))
    (.equals (.protocol request) "HTTP/1.1") (.setTrailerFields response no-trailers)))

(defn- delimited-by-end?
  "Tells whether the client takes the end of the connection for the end of the body."
  [^Request request ^Response response]
  (and (.equals (.protocol request) "HTTP/1.0")
       (.isCommitted response)
       (neg? (.getContentLengthLong response))))

(def ^:private ^:const last-status
  "What is answered at a deadline, by another thread than the handler's, which may go on; Tomcat
  closes the connection after it, when that has ended. Nothing more is sent until then, and the
  client is told so."
  503)

(defn- finish!
  "Sends what is left, and the end."
  [^Response response]
  (.action response ActionCode/CLOSE nil))

(defn- send-all! [^Response response shared status headers ^bytes body]
  (set-head! response shared status headers)
  (when body
    (.setContentLength response (alength body))
    (when (pos? (alength body)) (.doWrite response (ByteBuffer/wrap body))))
  (finish! response))

;; The wire

(definterface Turns
  (^Object enter [])                ; before Tomcat's objects are used; throws IOException when the exchange is over
  (^Object leave [])
  (^Object become [state])          ; the exchange is over, as state says; throws IOException when it was before
  (^boolean isOver [])
  (^Object cut [])                  ; ends a stream of HTTP/2 under those who are inside
  (^Object state [])) ; how the exchange ended, once nobody is inside; nil before

(defmacro ^:private inside
  "Evaluates the forms while Tomcat's objects belong to this exchange; aborts it when they throw."
  [[wire] & forms]
  `(do
     (.enter ~wire)
     (try
       (try
         ~@forms
         (finally (.leave ~wire)))
       (catch Throwable t#
         (engine/abort! ~wire)
         (throw (flow/io-exception t#))))))

(defmacro ^:private waiting
  "Evaluates the forms like inside, on another thread: an interrupt of this one ends its wait, and
  the exchange."
  [[wire] & forms]
  `(try
     (flow/await! (flow/elsewhere (fn [] (inside [~wire] ~@forms))))
     (catch InterruptedIOException e#
       (engine/abort! ~wire)
       (throw e#))))

(declare input output)

(def ^:private ^ThreadFactory cutting-threads
  (spi/clean-threads "tomcat-reset"))

;; owner: the connection's thread. over: nil, :complete, :aborted or :upgraded. threads: those
;; inside. woken: those inside that the abort has interrupted.
(deftype TomcatWire [^Request request ^Response response endpoint options shared remote local
                     ^Thread owner ^Lock lock ^:unsynchronized-mutable over ^List threads
                     ^:unsynchronized-mutable ^List woken
                     ^:unsynchronized-mutable ^OutputStream begun]
  Turns
  (enter [_]
    (.lock lock)
    (try
      (when over (throw (IOException. "The exchange is over")))
      (.add threads (Thread/currentThread))
      (finally
        (.unlock lock))))
  (leave [_]
    (.lock lock)
    (try
      (let [me (Thread/currentThread)]
        (.remove threads me)
        ;; It was for the wait that is over.
        (when (and woken (.contains woken me)) (Thread/interrupted))
        (when (and over (.isEmpty threads) (not (identical? me owner))) (LockSupport/unpark owner)))
      (finally
        (.unlock lock))))
  (become [_ state]
    (.lock lock)
    (try
      (when over (throw (IOException. "The exchange was aborted")))
      (set! over state)
      (finally
        (.unlock lock))))
  (state [_]
    (.lock lock)
    (try
      (when (.isEmpty threads) over)
      (finally
        (.unlock lock))))
  (isOver [_]
    (.lock lock)
    (try
      (some? over)
      (finally
        (.unlock lock))))
  (cut [this]
    (let [cutting (.newThread cutting-threads
                              #(try
                                 (stream/cut! request)
                                 (finally
                                   (.leave this))))]
      (.add threads cutting)
      (.start cutting)))
  engine/Wire
  (method [_] (.getMethod request))
  (target [_] (target-of request))
  (protocol [_] (text (.protocol request)))
  (scheme [_] (if (.equals (.scheme request) "https") "https" "http"))
  (authority [_] (when shared (authority-of request)))
  (headers [_] (fields->array (.getMimeHeaders request)))
  (remote [_] remote)
  (local [_] local)
  (certificate [_] (certificate-of request))
  (body [this] (when (body? request) (input this request)))
  (send! [this status headers body]
    (if shared
      (waiting [this] (send-all! response true status headers body) (.become this :complete))
      (inside [this]
              (send-all! response false status headers body)
              (when (and (= last-status status) (not (identical? owner (Thread/currentThread))))
                (connections/finish! request))
              (.become this :complete))))
  (begin! [this status headers length]
    (inside [this] (set-head! response shared status headers) (frame! request response length))
    (set! begun (output this response))
    begun)
  (end! [this] (.flush begun) (waiting [this] (finish! response) (.become this :complete)))
  (abort! [this]
    (.lock lock)
    (try
      (when-not over
        (set! over :aborted)
        (cond (not shared) (do
                             (connections/close! request (delimited-by-end? request response))
                             (set! woken (ArrayList. threads))
                             (run! #(.interrupt ^Thread %) threads))
              ;; Otherwise the connection's thread resets the stream.
              (not (.isEmpty threads)) (.cut this))
        (LockSupport/unpark owner))
      (finally
        (.unlock lock))))
  (watch! [_ _] false)
  (unwatch! [_])
  (upgrade! [this headers protocol listener]
    (let [opened (inside
                   [this]
                   (set-head! response shared 101 headers)
                   (let [opened
                         (websocket/accept! request response endpoint protocol listener options)]
                     (.become this :upgraded)
                     opened))]
      (websocket/await-open! opened))))

;; Bodies

(defn- chunk-reader
  "Returns what Tomcat gives a piece of the body to."
  ^ApplicationBufferHandler [piece]
  (reify ApplicationBufferHandler
    (setByteBuffer [_ buffer] (vreset! piece buffer))
    (getByteBuffer [_] @piece)
    (expand [_ _])))

(defn- taken
  "Moves what there is of the piece, at most n bytes, to bytes; returns how many."
  [^ByteBuffer piece bytes offset n]
  (let [n (min (long n) (.remaining piece))]
    (.get piece ^bytes bytes (int offset) (int n))
    n))

(defn- input
  "Returns the stream of the request's body."
  ^InputStream [^TomcatWire wire ^Request request]
  (let [piece (volatile! (ByteBuffer/allocate 0))
        read (volatile! 0)
        handler (chunk-reader piece)
        there? #(do
                  (.action request ActionCode/AVAILABLE false)
                  (pos? (.getAvailable request)))
        fill #(let [n (.doRead request handler)]
                (if (neg? n)
                  (when (or (.isOver wire) (cut-off? request (.-shared wire) @read))
                    (throw (EOFException. "The body was cut off")))
                  (vswap! read + n))
                n)
        read!
        (fn [bytes offset n]
          (cond (zero? (long n)) 0
                (.hasRemaining ^ByteBuffer @piece) (inside [wire] (taken @piece bytes offset n))
                :else (let [got (if (and (not (.-shared wire)) (inside [wire] (there?)))
                                  (inside [wire] (fill))
                                  (waiting [wire] (fill)))]
                        (if (neg? (long got)) -1 (recur bytes offset n)))))]
    (proxy [InputStream] []
      (read ([]
             (let [one (byte-array 1)]
               (if (neg? (long (read! one 0 1))) -1 (bit-and 0xff (aget one 0)))))
            ([bytes] (read! bytes 0 (alength ^bytes bytes)))
            ([bytes offset n] (read! bytes offset n)))
      (available [] (.remaining ^ByteBuffer @piece)))))

(def ^:private ^:const buffered
  "How many bytes are held before they are written."
  16384)

(defn- flush!
  "Sends what is held. Throws IOException where the client has gone, which Tomcat keeps to itself."
  [^Response response]
  (.action response ActionCode/CLIENT_FLUSH nil)
  (when-some [e (.getErrorException response)]
    (throw (IOException. "The client has gone" e))))

(defn- pieces
  "Returns a stream that writes each piece that it gets."
  ^OutputStream [^TomcatWire wire ^Response response]
  (proxy [OutputStream] []
    (write [bytes offset n]
      (waiting [wire] (.doWrite response (ByteBuffer/wrap bytes offset n))))
    (flush []
      (waiting [wire] (flush! response)))))

(defn- output ^OutputStream [wire response]
  (BufferedOutputStream. (pieces wire response) buffered))

;; The connection's side

(defn wire
  "Returns the wire of a request of Tomcat's, nil where the client has gone already; endpoint: where
  its connection is; options: the server's, and :container, that of its websockets."
  ^TomcatWire [^Request request response endpoint options]
  (let [lock (ReentrantLock.)
        remote (remote-of request)
        local (local-of request)]
    (when (and remote local)
      (TomcatWire. request
                   response
                   endpoint
                   options
                   (shared? request)
                   remote
                   local
                   (Thread/currentThread)
                   lock
                   nil
                   (ArrayList. 2)
                   nil
                   nil))))

(defn- serve! [^TomcatWire wire serve]
  (try
    (serve wire)
    (catch Throwable t
      (engine/abort! wire)
      (throw t))))

(def ^:private ^ThreadFactory request-threads
  (spi/clean-threads "http-request"))

(def ^:private ^:const note
  "Where a request of Tomcat's, which is used again and again, keeps the thread that it was last
  handled on."
  31)

(defn- apart?
  "Tells whether the exchange needs a thread of its own: the connection's has handled a request
  already, or must go on before the exchange is over, for it becomes a websocket, or its stream is
  reset."
  [^Request request]
  (or (shared? request)
      (identical? (Thread/currentThread) (.getNote request note))
      (some? (.getHeader request "upgrade"))))

(defn- await-end!
  "Waits until the exchange is over and nobody is inside of its objects; returns how it ended. An
  interrupt is not meant for this wait."
  [^TomcatWire wire]
  (loop []
    (or (.state wire)
        (do (LockSupport/park wire)
            (Thread/interrupted)
            (recur)))))

(defn- conclude!
  "Waits, on the connection's thread, until the exchange is over and its objects are free; tells
  Tomcat how it ended. After serve has returned another thread may still be about to answer: that of
  a deadline."
  [^TomcatWire wire ^Response response]
  (when (= :aborted (await-end! wire))
    (when (.-shared wire)
      (.setTrailerFields response cut)
      (stream/absolve! (.-request wire)))
    (.action response ActionCode/CLOSE_NOW nil)))

(defn handle!
  "Has the request served on a fresh virtual thread, and waits until it is: on this one, the
  connection's, where that is fresh."
  [^Request request response endpoint options serve]
  (if-some [wire (wire request response endpoint options)]
    (try
      (if (apart? request)
        (.start (.newThread request-threads #(serve! wire serve)))
        (do (.setNote request note (Thread/currentThread))
            (serve! wire serve)))
      (catch Throwable t
        (engine/abort! wire)
        (throw t))
      (finally
        ;; Whoever interrupted this thread meant the exchange.
        (Thread/interrupted)
        (conclude! wire response)))
    (.action ^Response response ActionCode/CLOSE_NOW nil)))
