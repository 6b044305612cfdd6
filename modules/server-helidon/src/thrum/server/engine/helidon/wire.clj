(ns thrum.server.engine.helidon.wire
  "One request as a Wire: what came, from our input; its answer by Helidon's ServerResponse, whose output is corrected."
  (:require
   [thrum.server.engine]
   [thrum.server.engine.helidon.body :as body]
   [thrum.server.engine.helidon.connection :as connection]
   [thrum.server.engine.helidon.head :as head]
   [thrum.server.engine.helidon.output :as output])
  (:import
   (io.helidon.common.buffers BufferData)
   (io.helidon.http HeaderName HeaderNames HeaderValues ServerResponseHeaders Status)
   (io.helidon.webserver ServerConnectionException)
   (io.helidon.webserver.http RoutingResponse)
   (java.io ByteArrayOutputStream IOException OutputStream UncheckedIOException)
   (java.net InetSocketAddress)
   (java.nio.charset StandardCharsets)
   (java.util Locale)
   (java.util.concurrent CountDownLatch)
   (thrum.server.engine Wire)
   (thrum.server.engine.helidon.body Body)
   (thrum.server.engine.helidon.connection Connection)
   (thrum.server.engine.helidon.head Head)
   (thrum.server.engine.helidon.output Output)))

(set! *warn-on-reflection* true)

;; What is the same for every request of a connection. over: open until the connection is to end.
(deftype Ends [^Connection connection input ^Output output ^CountDownLatch over scheme ^InetSocketAddress remote ^InetSocketAddress local
               certificate])

;; The answer's head

(defn- name-of ^HeaderName [^String n]
  (HeaderNames/create (.toLowerCase n Locale/ROOT) n))

(defn- add-headers! [^RoutingResponse response ^objects headers]
  (let [^ServerResponseHeaders to (.headers response)]
    (loop [i 0]
      (when (< i (alength headers))
        (.add to (HeaderValues/create (name-of (aget headers i)) ^String (aget headers (inc i))))
        (recur (+ i 2))))))

(def ^:private without-body
  "Of these Helidon says Content-Length: 0, and refuses to say another."
  #{204 205 304})

(defn- line-of ^String [status]
  (let [known (Status/create (int status))
        phrase (.reasonPhrase known)]
    (str "HTTP/1.1 " status " " (when-not (= phrase (str status)) phrase))))

(defn- set-status!
  "Tells Helidon the status, or 200 where it would not let the rest be as it is; the line is corrected then."
  [^RoutingResponse response ^Output output status correct]
  (if (without-body status)
    (.correct output (comp correct (output/status-line (line-of status))))
    (do (when-not (= 200 status) (.status response (int status)))
        (when-not (identical? identity correct) (.correct output correct)))))

(defmacro ^:private telling
  "Runs the body, which has Helidon write. What that throws is thrown as IOException."
  [& body]
  `(try
     ~@body
     (catch UncheckedIOException e# (throw (connection/io-exception e#)))
     (catch ServerConnectionException e# (throw (connection/io-exception e#)))))

;; The answer's body

(def ^:private ^:const most-held
  "How many bytes of a body are held before they are written."
  8192)

(definterface IBegun
  (^Object take [^bytes bytes ^long offset ^long n])
  (^Object flush []))

;; out: Helidon's. chunked: whether its first piece is written with the head, which it holds back until a second one comes.
(deftype Begun [^Output output ^OutputStream out chunked ^ByteArrayOutputStream held ^:unsynchronized-mutable started]
  IBegun
  (take [this bytes offset n]
    (.write held bytes (int offset) (int n))
    (when (<= most-held (.size held)) (.flush this)))
  (flush [_]
    (let [nothing? (zero? (.size held))]
      ;; Helidon takes an empty piece for the last one.
      (when-not (and nothing? started)
        (when (and nothing? chunked) (.headAlone output))
        (telling
          (.write out (.toByteArray held))
          (when-not started (.flush out)))
        (.reset held)
        (set! started true)))))

(defn- stream ^OutputStream [^Begun begun]
  (proxy [OutputStream] []
    (write
      ([x] (if (bytes? x)
             (.take begun x 0 (alength ^bytes x))
             (.take begun (byte-array [(unchecked-byte (int x))]) 0 1)))
      ([b offset n] (.take begun b offset n)))
    (flush [] (.flush begun))
    (close [])))

;; The wire

(definterface IExchange
  (^Object settle [headers])         ; decides whether the connection goes on
  (^Object complete [])
  (^boolean keep [])                 ; may the connection serve another request?
  (^Object over []))                 ; serve has returned

(def ^:private ^{:tag 'bytes} nothing (byte-array 0))
(def ^:private ^{:tag 'bytes} go-on (.getBytes "HTTP/1.1 100 Continue\r\n\r\n" StandardCharsets/ISO_8859_1))

(defn- ask! [^Connection c]
  (telling (connection/write! c (BufferData/create ^bytes go-on))))

(deftype HelidonWire [^Ends ends ^Head head ^RoutingResponse response
                      ^:volatile-mutable ^Body body
                      ^:volatile-mutable begun
                      ^:volatile-mutable keep
                      ^:volatile-mutable complete]
  IExchange
  (settle [_ headers]
    (when (.isCut ^Connection (.-connection ends)) (throw (IOException. "The connection has been cut")))
    (set! keep (not (or (head/closes? headers)
                        (head/closes? (.-headers head))
                        ;; The body that the client waits to be asked for may come or not.
                        (and body (not (.begun body)) (head/waits? (.-headers head))))))
    (add-headers! response headers)
    (when-not (or keep (head/closes? headers))
      (.add (.headers response) HeaderValues/CONNECTION_CLOSE)))
  (complete [_]
    (set! complete true)
    ;; A handler that is still at it, whatever it was told, does not keep the client waiting for the end.
    (when-not keep (.countDown ^CountDownLatch (.-over ends))))
  (keep [_] (boolean keep))
  (over [this]
    (Thread/interrupted)
    (when-not complete (.abort this))
    (when (and keep body (not (body/skip-rest! body))) (set! keep false)))

  Wire
  (method [_] (.-method head))
  (target [_] (.-target head))
  (protocol [_] (.-protocol head))
  (scheme [_] (.-scheme ends))
  (authority [_] nil)
  (headers [_] (.-headers head))
  (remote [_] (.-remote ends))
  (local [_] (.-local ends))
  (certificate [_] (.-certificate ends))
  (body [_]
    (when-some [length (head/body-length (.-headers head))]
      (let [connection (.-connection ends)
            ask (if (head/waits? (.-headers head)) #(ask! connection) (fn []))]
        (set! body (body/body (.-input ends) length {:ask ask, :most-trailers (connection/option connection :max-header-bytes)}))
        (body/stream body))))

  (send [this status headers bytes]
    (.settle this headers)
    (set-status! response (.-output ends) status
                 (if (or bytes (head/value-of headers "content-length")) identity output/without-length))
    (telling (.send response ^bytes (or bytes nothing)))
    (.complete this))
  (begin [this status headers length]
    (.settle this headers)
    (set-status! response (.-output ends) status identity)
    (let [chunked? (neg? length)]
      (.add (.headers response)
            (if chunked? HeaderValues/TRANSFER_ENCODING_CHUNKED (HeaderValues/create HeaderNames/CONTENT_LENGTH length)))
      (set! begun (Begun. (.-output ends) (telling (.outputStream response)) chunked? (ByteArrayOutputStream. 512) false))
      (stream begun)))
  (end [this]
    (.flush ^Begun begun)
    (telling (.commit response))
    (.complete this))
  (abort [_]
    (when-not complete
      (set! keep false)
      (.cut ^Connection (.-connection ends))
      (.countDown ^CountDownLatch (.-over ends))))
  (watch [_ _gone] false)
  (unwatch [_] nil)
  (upgrade [_ _headers _protocol _listener]
    (throw (UnsupportedOperationException. "This engine has no websockets"))))

(defn wire
  "Returns the wire of a request, which Helidon answers with response."
  ^HelidonWire [ends head response]
  (HelidonWire. ends head response nil nil false false))
