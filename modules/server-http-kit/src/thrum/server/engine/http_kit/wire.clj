(ns thrum.server.engine.http-kit.wire
  "One request that http-kit has read, and its answer, which is written to the socket past http-kit."
  (:require
   [clojure.string :as str]
   [thrum.jdk :as jdk]
   [thrum.server.engine.http-kit.connection :as connection]
   [thrum.server.engine.http-kit.library :as library]
   [thrum.server.engine.http-kit.websocket :as websocket])
  (:import
   (java.io ByteArrayOutputStream IOException OutputStream)
   (java.nio.channels SelectionKey SocketChannel)
   (java.nio.charset StandardCharsets)
   (java.time Instant ZoneOffset)
   (java.time.format DateTimeFormatter)
   (java.util ArrayList Locale)
   (java.util.concurrent.atomic AtomicReference)
   (thrum.server.engine Wire)
   (thrum.server.engine.http_kit.connection Connection Tenant)))

(set! *warn-on-reflection* true)

(defn- bytes-of ^bytes [^String s]
  (.getBytes s StandardCharsets/ISO_8859_1))

;; The request

(defn- header-array
  "Returns name, value, ... of http-kit's headers, which has joined with line feeds what was repeated."
  ^objects [headers]
  (let [all (ArrayList. 32)]
    (doseq [[n value] headers, part (str/split value #"\n" -1)]
      (doto all (.add n) (.add part)))
    (.toArray all)))

(defn- target [lib request]
  (let [query (library/value lib :request->query request)]
    (cond-> (library/value lib :request->uri request)
      query (str "?" query))))

(defn header-bytes
  "Returns how long the line and the headers of the request were, about."
  ^long [^Wire wire]
  (transduce (map #(+ 2 (count %))) + (+ 16 (count (.target wire))) (.headers wire)))

;; The head of the answer

(def ^:private ^DateTimeFormatter imf-fixdate
  (-> (DateTimeFormatter/ofPattern "EEE, dd MMM yyyy HH:mm:ss 'GMT'" Locale/US) (.withZone ZoneOffset/UTC)))

(def ^:private ^AtomicReference clock
  "[second date]"
  (AtomicReference. [0 ""]))

(defn- date
  "Returns the moment as a Date header has it (RFC 9110, 5.6.7)."
  []
  (let [now (quot (System/currentTimeMillis) 1000)
        [second text] (.get clock)]
    (if (= now second)
      text
      (let [text (.format imf-fixdate (Instant/ofEpochSecond now))]
        (.set clock [now text])
        text))))

(defn- value-of
  "Returns the value of a header of the answer, or nil."
  [^objects headers ^String n]
  (loop [i 0]
    (when (< i (alength headers))
      (if (.equalsIgnoreCase n (aget headers i))
        (aget headers (inc i))
        (recur (+ i 2))))))

(defn- closes? [headers]
  (some->> (value-of headers "connection") (re-find #"(?i)\bclose\b")))

(defn- add-line! [^StringBuilder to n value]
  (doto to (.append (str n)) (.append ": ") (.append (str value)) (.append "\r\n")))

(defn- head-bytes
  "Returns the first bytes of an answer; extra: further headers, as pairs."
  ^bytes [lib status ^objects headers extra]
  (let [lines (StringBuilder. 256)]
    (.append lines (String. (library/status-line lib status) StandardCharsets/ISO_8859_1))
    (loop [i 0]
      (when (< i (alength headers))
        (add-line! lines (aget headers i) (aget headers (inc i)))
        (recur (+ i 2))))
    (when-not (value-of headers "date") (add-line! lines "Date" (date)))
    (doseq [[n value] extra] (add-line! lines n value))
    (bytes-of (str (.append lines "\r\n")))))

;; The body

(def ^:private ^{:tag 'bytes} line-end (bytes-of "\r\n"))
(def ^:private ^{:tag 'bytes} last-chunk (bytes-of "0\r\n\r\n"))
(def ^:private ^{:tag 'bytes} nothing (byte-array 0))

(definterface IAnswer
  (^Object emit [^bytes body])              ; writes the head, if it has not been, and this much of the body
  (^Object over []))                        ; serve has returned

(defn- framed
  "Returns what a part of the body is on the socket: arrays of bytes."
  [framing ^bytes part]
  (cond
    (zero? (alength part)) []
    (= :chunked framing) [(bytes-of (str (Integer/toHexString (alength part)) "\r\n")) part line-end]
    :else [part]))

(defn- buffered
  "Returns a stream that emits on flush, and every 8 KiB. Closing it does nothing."
  ^OutputStream [^thrum.server.engine.http_kit.wire.IAnswer answer ^ByteArrayOutputStream held]
  (let [emit! (fn [] (let [part (.toByteArray held)] (.reset held) (.emit answer part)))
        take! (fn [bytes offset n]
                (.write held ^bytes bytes (int offset) (int n))
                (when (<= 8192 (.size held)) (emit!)))]
    (proxy [OutputStream] []
      (write
        ([x] (if (bytes? x) (take! x 0 (alength ^bytes x)) (take! (byte-array [(unchecked-byte (int x))]) 0 1)))
        ([b offset n] (take! b offset n)))
      (flush [] (emit!))
      (close []))))

(defn- connection-lines [keep? protocol headers]
  (cond
    (and (not keep?) (not (closes? headers))) [["Connection" "close"]]
    (and keep? (= "HTTP/1.0" protocol)) [["Connection" "keep-alive"]]
    :else []))

;; framing: how the end of the body is told: :length, :chunked, :close. gone: what to run when the client goes.
(deftype HttpKitWire [lib ^Connection connection request callback ^String protocol
                      ^AtomicReference gone
                      ^ByteArrayOutputStream held
                      ^:volatile-mutable framing
                      ^:volatile-mutable keep
                      ^:volatile-mutable head
                      ^:volatile-mutable complete
                      ^:volatile-mutable upgraded]
  IAnswer
  (emit [_ part]
    (let [first-part (when-some [h head] [h])]
      (when-let [arrays (seq (concat first-part (framed framing part)))]
        (set! head nil)
        (connection/write! connection arrays))))
  (over [this]
    (cond
      upgraded nil
      (not complete) (.abort this)
      ;; http-kit goes on with the connection's next request.
      keep (do (.setTenant connection nil)
               (library/call lib :respond callback (make-array java.nio.ByteBuffer 1)))))

  Tenant
  (gone [_ _code _reason]
    (when-some [f (.getAndSet gone nil)]
      (.start (jdk/virtual-thread "http-kit-gone" f))))
  (frame [_ _frame])
  (flawed [_ _code])
  (look [_ _now])

  Wire
  (method [_] (str (library/value lib :request->method request)))
  (target [_] (target lib request))
  (protocol [_] protocol)
  (scheme [_] "http")
  (authority [_] nil)
  (headers [_] (header-array (library/value lib :request->headers request)))
  (remote [_] (.getRemoteAddress ^SocketChannel (.-socket connection)))
  (local [_] (.getLocalAddress ^SocketChannel (.-socket connection)))
  (certificate [_] nil)
  (body [_] (library/call lib :request->body request))

  (send [this status headers body]
    (set! framing :length)
    (set! keep (boolean (and keep (not (closes? headers)))))
    (set! head (head-bytes lib status headers
                           (cond-> (connection-lines keep protocol headers)
                             body (conj ["Content-Length" (alength ^bytes body)]))))
    (.emit this (or body nothing))
    (set! complete true)
    (when-not keep (connection/end! connection)))
  (begin [this status headers length]
    (set! framing (cond (<= 0 length) :length, (= "HTTP/1.0" protocol) :close, :else :chunked))
    (set! keep (boolean (and keep (not= :close framing) (not (closes? headers)))))
    (set! head (head-bytes lib status headers
                           (cond-> (connection-lines keep protocol headers)
                             (= :length framing) (conj ["Content-Length" length])
                             (= :chunked framing) (conj ["Transfer-Encoding" "chunked"]))))
    (buffered this held))
  (end [this]
    (.emit this (.toByteArray held))
    (when (= :chunked framing) (connection/write! connection [last-chunk]))
    (set! complete true)
    (when-not keep (connection/end! connection)))
  (abort [_]
    (when-not complete
      ;; The end of the connection would look like that of the body.
      (if (= :close framing)
        (connection/break! connection)
        (connection/close! connection))))
  (watch [_ f]
    (.set gone f)
    (connection/read-on! connection true)
    (if (.isValid ^SelectionKey (.-key connection))
      true
      (do (some-> ^Runnable (.getAndSet gone nil) .run)
          true)))
  (unwatch [_]
    (when (.getAndSet gone nil)
      (connection/read-on! connection false)))
  (upgrade [_ headers protocol listener]
    (let [key (value-of (header-array (library/value lib :request->headers request)) "sec-websocket-key")]
      (when-not (library/value lib :request->websocket request) (throw (IOException. "No websocket was asked for")))
      (connection/write! connection [(head-bytes lib 101 headers (websocket/handshake key protocol))])
      (set! upgraded true)
      (set! complete true)
      (websocket/open! lib connection listener)
      (library/call lib :open-websocket (library/value lib :request->channel request) {}))))

(defn wire
  "Returns the wire of a request on this connection; callback: http-kit's, which is told when the next one may come."
  ^HttpKitWire [lib connection request callback]
  (HttpKitWire. lib connection request callback (library/call lib :request->protocol request)
                (AtomicReference.) (ByteArrayOutputStream. 512) nil
                ;; Where an upgrade was asked for, http-kit has turned its decoder to frames.
                (and (library/value lib :request->keep-alive request) (not (library/value lib :request->websocket request)))
                nil false false))
