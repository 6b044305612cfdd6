(ns thrum.server.engine.http-kit.wire
  "One request whose head http-kit has read, and its answer, which is written to the socket past
  http-kit."
  (:require
   [thrum.server.engine.http-kit.body :as body]
   [thrum.server.engine.http-kit.connection :as connection]
   [thrum.server.engine.http-kit.fields :as fields]
   [thrum.server.engine.http-kit.head :as head]
   [thrum.server.engine.http-kit.library :as library]
   [thrum.server.engine.http-kit.websocket :as websocket]
   [thrum.server.spi :as engine]
   [thrum.server.spi.http :as http]
   [thrum.spi :as spi])
  (:import
   (java.io ByteArrayOutputStream IOException OutputStream)
   (java.nio.channels SelectionKey SocketChannel)
   (java.util.concurrent CountDownLatch TimeUnit)
   (java.util.concurrent.atomic AtomicReference)
   (thrum.server.engine.http_kit.body Body)
   (thrum.server.engine.http_kit.connection Connection Tenant)))

(set! *warn-on-reflection* true)

;; The request

(defn- headers-of ^objects [lib request]
  (fields/all (library/value lib :request->headers request)))

(defn- target [lib request]
  (let [query (library/value lib :request->query request)]
    (cond-> (library/value lib :request->uri request)
      query (str "?" query))))

(defn header-bytes
  "Returns how long the line and the headers of the request were, about."
  ^long [wire]
  (transduce (map #(+ 2 (count %))) + (+ 16 (count (engine/target wire))) (engine/headers wire)))

(defn- announced
  "Returns the length of the body that is announced, :chunked, or nil where there is none. Whether
  the headers make sense is asked by those who get them, before they read."
  [headers]
  (if (head/value headers "transfer-encoding")
    :chunked
    (when-some [length (some-> (head/value headers "content-length") parse-long)]
      (when (pos? (long length)) length))))

(defn- waits?
  "Tells whether the client wants to be asked for the body."
  [protocol headers]
  (and (= "HTTP/1.1" protocol)
       (.equalsIgnoreCase "100-continue" (head/value headers "expect"))))

(def ^:private ^{:tag 'bytes} go-on (head/bytes-of "HTTP/1.1 100 Continue\r\n\r\n"))

;; The body of the answer

(def ^:private ^{:tag 'bytes} line-end (head/bytes-of "\r\n"))
(def ^:private ^{:tag 'bytes} last-chunk (head/bytes-of "0\r\n\r\n"))
(def ^:private ^{:tag 'bytes} nothing (byte-array 0))

(definterface IAnswer
  (^Object invite [])                                   ; asks for the body, unless the answer has begun: it would be taken for a part of that
  (^Object open [framing status headers extra])         ; decides on the head
  (^Object emit [^bytes part])                          ; writes the head, if it has not been, and this much of the body
  (^Object complete [])
  (^Object bodyRead [])                                 ; the request's body has been read
  (^Object over [])) ; serve has returned

(defn- framed
  "Returns what a part of the body is on the socket: arrays of bytes."
  [framing ^bytes part]
  (cond (zero? (alength part)) []
        (= :chunked framing) [(head/bytes-of (str (Integer/toHexString (alength part)) "\r\n")) part
                              line-end]
        :else [part]))

(defn- buffered
  "Returns a stream that emits on flush, and every 8 KiB. Closing it does nothing."
  ^OutputStream [^thrum.server.engine.http_kit.wire.IAnswer answer ^ByteArrayOutputStream held]
  (let [emit! (fn []
                (let [part (.toByteArray held)]
                  (.reset held)
                  (.emit answer part)))
        take! (fn [bytes offset n]
                (.write held ^bytes bytes (int offset) (int n))
                (when (<= 8192 (.size held)) (emit!)))]
    (proxy [OutputStream] []
      (write ([x]
              (if (bytes? x)
                (take! x 0 (alength ^bytes x))
                (take! (byte-array [(unchecked-byte (int x))]) 0 1)))
             ([b offset n] (take! b offset n)))
      (flush [] (emit!))
      (close []))))

(def ^:private ^:const answer-ms
  "How long an answer may take that was not complete when its request was served."
  2000)

(defn- connection-lines [keep? protocol headers]
  (cond
    (and (not keep?) (not (head/closes? headers))) [["Connection" "close"]]
    (and keep? (= "HTTP/1.0" protocol)) [["Connection" "keep-alive"]]
    :else []))

;; keep: whether the connection may serve another request. framing: how the end of the body is told,
;; :length, :chunked or :close. head: the answer's first bytes until they are written. gone: what to
;; run when the client goes. ended: open until the answer is complete, or cut.
(deftype HttpKitWire [lib ^Connection connection request callback ^String protocol
                      ^AtomicReference gone ^ByteArrayOutputStream held ^CountDownLatch ended
                      ^:volatile-mutable keep ^:volatile-mutable framing ^:volatile-mutable head
                      ^:volatile-mutable ^Body body ^:volatile-mutable complete]
  IAnswer
  (invite [this]
    (when (and (not framing) (waits? protocol (engine/headers this)))
      (connection/write! connection [go-on])))
  (open [this how status headers extra]
    (set! framing how)
    (set! keep
          (and keep
               (not= :close how)
               (not (head/closes? headers))
               ;; The body that the client waits to be asked for may come or not.
               (not (and body (not (.begun body)) (waits? protocol (engine/headers this))))))
    (set! head (head/head lib status headers (into extra (connection-lines keep protocol headers)))))
  (emit [_ part]
    (when-let [arrays (seq (cond->> (framed framing part) head (cons head)))]
      (set! head nil)
      (connection/write! connection arrays)))
  (complete [_] (set! complete true) (when-not keep (connection/end! connection)) (.countDown ended))
  (bodyRead [_] (when (.get gone) (connection/read-on! connection true)))
  (over [this]
    (Thread/interrupted)
    ;; Whoever answers in the place of a late handler may still be at it.
    (when-not complete (.await ended answer-ms TimeUnit/MILLISECONDS))
    (cond (= :upgraded complete) nil
          (not complete) (engine/abort! this)
          (not keep) nil
          (and body (not (body/skip-rest! body))) (connection/end! connection)
          ;; http-kit goes on with the connection's next request.
          :else (do
                  (.setTenant connection nil)
                  (library/call lib :respond callback (make-array java.nio.ByteBuffer 1)))))
  Tenant
  (gone [_ _code _reason]
    (when-some [f (.getAndSet gone nil)] (.start (spi/clean-thread "http-kit-gone" f))))
  (frame [_ _frame])
  (flawed [_ _code])
  (look [_ _now])
  engine/Wire
  (method [_] (str (library/value lib :request->method request)))
  (target [_] (target lib request))
  (protocol [_] protocol)
  (scheme [_] "http")
  (authority [_] nil)
  (headers [_] (headers-of lib request))
  (remote [_] (.getRemoteAddress ^SocketChannel (.-socket connection)))
  (local [_] (.getLocalAddress ^SocketChannel (.-socket connection)))
  (certificate [_] nil)
  (body [this]
    (when-some [length (announced (engine/headers this))]
      (let [key (.-key connection)
            input (library/take-input! lib key)
            finish (fn [rest] (library/return-input! lib key rest) (.bodyRead this))]
        (set! body
              (body/body connection
                         input
                         length
                         {:invite #(.invite this)
                          :finish finish
                          :most-trailers (connection/option connection :max-header-bytes)}))
        (body/stream body))))
  (send! [this status headers body]
    (.open this :length status headers (if body [["Content-Length" (alength ^bytes body)]] []))
    (.emit this (or body nothing))
    (.complete this))
  (begin! [this status headers length]
    (let [framing (cond (<= 0 length) :length
                        (= "HTTP/1.0" protocol) :close
                        :else :chunked)]
      (.open this
             framing
             status
             headers
             (case framing
               :length [["Content-Length" length]]
               :chunked [["Transfer-Encoding" "chunked"]]
               :close []))
      (buffered this held)))
  (end! [this]
    (.emit this (.toByteArray held))
    (when (= :chunked framing) (connection/write! connection [last-chunk]))
    (.complete this))
  (abort! [_]
    (when-not complete
      ;; The end of the connection would look like that of the body.
      (if (= :close framing) (connection/break! connection) (connection/close! connection)))
    (.countDown ended))
  ;; While http-kit reads on, it would take the bytes of a body: a client that goes then is noticed
  ;; by whoever reads it.
  (watch! [_ f]
    (.set gone f)
    (when (or (nil? body) (.ended body)) (connection/read-on! connection true))
    (when-not (.isValid ^SelectionKey (.-key connection))
      (some-> ^Runnable (.getAndSet gone nil)
              .run))
    true)
  (unwatch! [_] (when (.getAndSet gone nil) (connection/read-on! connection false)))
  (upgrade! [this headers protocol listener]
    (when-not (library/value lib :request->websocket request)
      (throw (IOException. "No websocket was asked for")))
    (let [key (head/value (engine/headers this) "sec-websocket-key")]
      (connection/write! connection [(head/head lib 101 headers (http/websocket-headers key protocol))]))
    (set! complete :upgraded)
    (websocket/open! lib connection listener)
    (library/call lib :open-websocket (library/value lib :request->channel request) {})))

(defn wire
  "Returns the wire of a request on this connection; callback: http-kit's, which is told when the
  next one may come."
  ^HttpKitWire [lib connection request callback]
  (let [keep? (and (library/value lib :request->keep-alive request)
                   ;; Where an upgrade was asked for, http-kit has turned its decoder to frames.
                   (not (library/value lib :request->websocket request)))]
    (HttpKitWire. lib
                  connection
                  request
                  callback
                  (library/call lib :request->protocol request)
                  (AtomicReference.)
                  (ByteArrayOutputStream. 512)
                  (CountDownLatch. 1)
                  keep?
                  nil
                  nil
                  nil
                  false)))
