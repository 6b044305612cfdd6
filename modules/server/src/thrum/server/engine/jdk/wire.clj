(ns thrum.server.engine.jdk.wire
  "One exchange of the JDK's server as a Wire."
  {:no-doc true}
  (:require
   [thrum.server.engine.jdk.held :as held]
   [thrum.server.engine.jdk.patience :as patience]
   [thrum.server.spi :as engine]
   [thrum.server.spi.lock :as lock]
   [thrum.spi :as spi])
  (:import
   (com.sun.net.httpserver Headers HttpExchange)
   (java.io ByteArrayOutputStream IOException OutputStream)
   (java.util ArrayList List Map$Entry)
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.locks ReentrantLock)))

(set! *warn-on-reflection* true)

(defn- add-fields! [^ArrayList all name ^List values]
  (dotimes [i (.size values)]
    (doto all (.add name) (.add (.get values i)))))

(defn- header-array ^objects [^Headers headers]
  (let [all (ArrayList. 32)
        entries (.iterator (.entrySet headers))]
    (while (.hasNext entries)
      (let [^Map$Entry entry (.next entries)]
        (add-fields! all (.getKey entry) (.getValue entry))))
    (.toArray all)))

(defn- latin
  "Returns the value with ? in place of what is not Latin-1: of a wide character JDK 21 sends the
  lower half, which may be a line's end."
  ^String [^String value]
  (if (loop [i 0]
        (or (= i (.length value))
            (and (< (int (.charAt value i)) 256) (recur (inc i)))))
    value
    (.replaceAll value "[^\\x00-\\xff]" "?")))

(defn- closing?
  "True if close is among the options of a Connection header. The JDK obeys it where it is the only
  one."
  [^String value]
  (boolean (some #(.equalsIgnoreCase "close" (String/.trim %)) (.split value ","))))

(defn- add-field!
  "Adds a header. The only Connection is close, and takes the place of the JDK's keep-alive."
  [^Headers to ^String name value]
  (if (.equalsIgnoreCase "Connection" name)
    (doto to (.set "Connection" "close") (.remove "Keep-alive"))
    (.add to name (latin value))))

(defn- set-headers! [^HttpExchange exchange last? headers]
  (let [^objects headers headers
        to (.getResponseHeaders exchange)
        n (alength headers)]
    (loop [i 0]
      (when (< i n)
        (add-field! to (aget headers i) (aget headers (inc i)))
        (recur (+ i 2))))
    (when last? (add-field! to "Connection" "close"))))

(defn- http-1-0? [^HttpExchange exchange]
  (.equalsIgnoreCase "HTTP/1.0" (.getProtocol exchange)))

(def ^:private ^:const linger-ms
  "How long to wait, after the response, for the rest of a request's body that was not read."
  1000)

(defn- close-out!
  "Ends the response. The JDK reads then what is left of the request's body, which may never come:
  where there is one, not for long. JDK 21 does so without the lock of its own that another thread
  reads under, and the two would take bytes of the next request; afterwards its stream is closed."
  [reading ^OutputStream out]
  ;; The JDK's stream of chunks swallows that its rest cannot be written.
  (.flush out)
  (if reading
    (patience/call-within linger-ms #(lock/alone reading (.close out)))
    (.close out)))

(defn- send-head!
  "Sends a response without a body, and ends it as close-out! does. Where another thread reads the
  request's, the head does not wait for it, and the connection ends."
  [^HttpExchange exchange ^ReentrantLock reading patience status]
  (let [send! #(.sendResponseHeaders exchange status -1)]
    (cond
      (nil? reading) (send!)

      (.tryLock reading)
      (try
        (patience/call-within linger-ms send!)
        (finally (.unlock reading)))

      :else
      (let [alarm (spi/arm! (spi/deadline-in linger-ms) #(patience/fire! patience false))]
        (add-field! (.getResponseHeaders exchange) "Connection" "close")
        (try
          (send!)
          (finally (spi/disarm! alarm))))))
  ;; Where the rest of the request's body did not come, the JDK has closed the connection and still
  ;; counts it. This it does not overlook.
  (when reading (.close (.getResponseBody exchange))))

(defn- send-body!
  [^HttpExchange exchange reading guard idle-ms status ^bytes body]
  (let [out (.getResponseBody exchange)]
    (.sendResponseHeaders exchange status (alength body))
    (patience/write! out guard idle-ms body 0 (alength body))
    (close-out! reading out)))

(defn- send-all!
  [^HttpExchange exchange reading last? patience guard idle-ms status headers ^bytes body]
  (set-headers! exchange last? headers)
  (if (or (nil? body) (zero? (alength body)))
    (send-head! exchange reading patience status)
    (send-body! exchange reading guard idle-ms status body)))

(defn- events?
  "True if the headers are those of a stream of events, whose client comes again wherever it
  ends."
  [^objects headers]
  (loop [i 0]
    (and (< i (alength headers))
         (or (and (.equalsIgnoreCase "content-type" (aget headers i))
                  (.startsWith ^String (aget headers (inc i)) "text/event-stream"))
             (recur (+ i 2))))))

(defprotocol Cut
  "A connection that may have been cut."
  (cut? [wire] "True if abort! has been called."))

(defn- check-cut! [wire]
  (when (cut? wire) (throw (IOException. "The connection has been cut"))))

(defmacro ^:private while-uncut
  "Runs the body, which blocks on the connection, unless that has been cut. A cut that comes later
  ends it."
  [[guard wire patience ms] & body]
  `(patience/in-time [~guard ~patience ~ms]
     (check-cut! ~wire)
     ~@body))

;; request: its headers, as name, value, name, value ... reading: the lock of the threads that read
;; its body, nil where it has none. last?: whether its connection serves no other. held: the body of
;; a response on HTTP/1.0 without a length: its end would be that of the connection, and a cut look
;; like it.
(deftype JdkWire [^HttpExchange exchange request reading last? patience ^long idle-ms
                  ^CountDownLatch done ^:unsynchronized-mutable held
                  ^:unsynchronized-mutable ^objects held-headers
                  ^:unsynchronized-mutable ^int held-status ^:volatile-mutable cut]
  Cut
  (cut? [_] (boolean cut))
  engine/Wire
  (method [_] (.getRequestMethod exchange))
  (target [_] (.toString (.getRequestURI exchange)))
  (protocol [_] (.getProtocol exchange))
  (scheme [_] "http")
  (authority [_] nil)
  (headers [_] request)
  (remote [_] (engine/address (.getRemoteAddress exchange)))
  (local [_] (.getLocalAddress exchange))
  (certificate [_] nil)
  (body [this]
    (when reading
      (patience/input (.getRequestBody exchange) reading #(check-cut! this) patience idle-ms)))
  (send! [this status headers body]
    (while-uncut [guard this patience idle-ms]
      (send-all! exchange reading last? patience guard idle-ms status headers body)))
  (begin! [this status headers length]
    (let [unending? (and (neg? length) (http-1-0? exchange))]
      (if (and unending? (not (events? headers)))
        (do
          (set! held (ByteArrayOutputStream.))
          (set! held-headers headers)
          (set! held-status (int status))
          (held/stream held))
        (do
          (set-headers! exchange (or last? unending?) headers)
          ;; A long head is more than the JDK buffers.
          (while-uncut [_guard this patience idle-ms]
            ;; For the JDK 0 says that the length is not known.
            (case (long length)
              0 (send-head! exchange reading patience status)
              -1 (.sendResponseHeaders exchange status 0)
              (.sendResponseHeaders exchange status length)))
          (patience/output (.getResponseBody exchange) #(check-cut! this) patience idle-ms)))))
  (end! [this]
    (while-uncut [guard this patience idle-ms]
      (if held
        (send-all! exchange reading last? patience guard idle-ms held-status held-headers
          (.toByteArray ^ByteArrayOutputStream held))
        (close-out! reading (.getResponseBody exchange)))))
  ;; What handle throws closes the connection: closing the exchange would end what is chunked
  ;; properly, and read what is left of the request's body first.
  ;; The interrupts first: until JDK 23 (JDK-8322829) one that comes while another thread closes the
  ;; connection of a pinned reader waits for that thread, and it for the one that interrupts.
  (abort! [_]
    (set! cut true)
    (patience/fire! patience false)
    (some-> done .countDown))
  (watch! [_ _gone])
  (unwatch! [_])
  (upgrade! [_ _headers _protocol _listener]
    (throw (UnsupportedOperationException. "The JDK's server has no websockets"))))

(defn- framed ^JdkWire [exchange headers body? last? patience idle-ms done]
  (JdkWire. exchange headers (when body? (ReentrantLock.)) last? patience idle-ms done
            nil nil 0 false))

(defn wire
  "Returns the wire of an exchange of the JDK's. done: counted down when the exchange is cut, or
  nil."
  ^JdkWire [^HttpExchange exchange patience idle-ms done]
  (let [headers (header-array (.getRequestHeaders exchange))]
    ;; The names are spelled as the JDK spells them.
    (loop [i 0, body? false, last? false]
      (if (< i (alength headers))
        (let [name (aget headers i)]
          (cond
            ;; The JDK leaves trailers unread, and would take them for the next request.
            (.equals "Transfer-encoding" name)
            (framed exchange headers true true patience idle-ms done)

            (.equals "Content-length" name)
            (recur (+ i 2) (or body? (not= "0" (aget headers (inc i)))) last?)

            (.equals "Connection" name)
            (recur (+ i 2) body? (or last? (closing? (aget headers (inc i)))))

            :else (recur (+ i 2) body? last?)))
        (framed exchange headers body? last? patience idle-ms done)))))
