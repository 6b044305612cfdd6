(ns thrum.server.engine.jdk
  "The engine that needs nothing: com.sun.net.httpserver on virtual threads. HTTP/1.1 and 1.0,
  neither TLS nor websockets.

  Some of its bounds are properties of the JVM, read once: the first server of the JVM sets them,
  and a later one that asks for other values is refused."
  (:require
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (com.sun.net.httpserver Headers HttpExchange HttpHandler HttpServer)
   (com.sun.net.httpserver.spi HttpServerProvider)
   (java.io ByteArrayOutputStream IOException InputStream OutputStream)
   (java.lang System$Logger$Level)
   (java.net InetSocketAddress)
   (java.util ArrayList List Map$Entry Objects)
   (java.util.concurrent CountDownLatch Executor ThreadFactory)
   (java.util.concurrent.atomic AtomicReference)))

(set! *warn-on-reflection* true)

;; What is fixed for the JVM

(def ^:private ^AtomicReference fixed
  "The options that the JVM's first server has fixed."
  (AtomicReference.))

(defn- properties
  "Returns the system properties that this server needs, by name."
  [{:keys [idle-timeout-ms max-connections]}]
  {"sun.net.httpserver.idleInterval" (str (max 1 (quot (+ (long idle-timeout-ms) 999) 1000)))
   "jdk.httpserver.maxConnections" (str max-connections)
   ;; 200 by default: a connection beyond them is closed when its request has been answered.
   "sun.net.httpserver.maxIdleConnections" (str max-connections)
   ;; Ours is the bound: this one would answer in its own words.
   "sun.net.httpserver.maxReqHeaders" "10000"
   ;; Its clock: every 10 s by default, which would add that to each silence.
   "sun.net.httpserver.clockTick" "1000"
   "sun.net.httpserver.nodelay" "true"})

(defn- set-properties! [options]
  (doseq [[k v] (properties options)]
    (when-not (System/getProperty k) (System/setProperty k v))))

(defn- check-fixed!
  [wanted]
  (doseq [[k v] wanted
          :let [was (get (.get fixed) k)]]
    (when-not (= v was)
      (throw (spi/invalid (str "The JDK's server has one " k
                            " for the whole JVM; it is " was
                            " already, and cannot be " v)
               {:option k, :value v, :fixed was})))))

(defn- fix!
  [options]
  (when (.compareAndSet fixed nil (select-keys options [:idle-timeout-ms :max-connections]))
    (set-properties! options))
  ;; What was not asked for is not missed.
  (check-fixed! (select-keys options
                             (conj (engine/given options [:max-connections]) :idle-timeout-ms))))

;; Silence: a connection that takes too long to send or to take bytes

(definterface Guard
  (^Object enter [^long ms])        ; what blocks from now on may take so long
  (^Object leave [])
  (^boolean watched [])             ; returns whether it has to be looked at again
  (^Object over []))

;; due: when what blocks now must have ended, or nil. One alarm serves the whole exchange; an
;; interrupt closes the JDK's channel.
(deftype Patience [^Thread thread ^:unsynchronized-mutable due ^:unsynchronized-mutable fired
                   ^:unsynchronized-mutable over]
  Guard
  (enter [this ms] (locking this (set! due (spi/deadline-in ms))))
  (leave [this] (locking this (set! due nil) (when fired (Thread/interrupted))))
  (watched [this]
    (locking this
      (when (and due (not over) (spi/passed? (long due)))
        (set! fired true)
        (set! over true)
        (.interrupt thread))
      (not over)))
  (over [this] (locking this (set! over true))))

(defn- watch! [^Patience patience ms]
  (spi/arm! (spi/deadline-in ms) #(when (.watched patience) (watch! patience ms))))

(def ^:private ^ThreadLocal patience-here
  "The patience with the exchange that this thread reads."
  (ThreadLocal.))

(defmacro ^:private in-time
  "Runs the body, which blocks on the connection, for at most so long."
  [[patience ms] & body]
  `(do
     (.enter ~patience (long ~ms))
     (try
       ~@body
       (finally (.leave ~patience)))))

(defn- read-in-time
  "Reads as in does. A chunk's size of more than 31 bits is negative for the JDK, which finds its
  own index out of bounds then."
  [^InputStream in ^Patience patience ms ^bytes b offset n]
  (Objects/checkFromIndexSize (int offset) (int n) (alength b))
  (in-time [patience ms]
    (try
      (.read in b (int offset) (int n))
      (catch IndexOutOfBoundsException e (throw (IOException. "A chunk is too long" e))))))

(defn- timed-input
  ^InputStream [^InputStream in ^Patience patience ms]
  (proxy [InputStream] []
    (read
      ([]
       (let [one (byte-array 1)]
         (if (neg? (long (read-in-time in patience ms one 0 1))) -1 (bit-and 0xff (aget one 0)))))
      ([b] (read-in-time in patience ms b 0 (alength ^bytes b)))
      ([b offset n] (read-in-time in patience ms b offset n)))
    (available [] (.available in))
    (close [])))

(definterface Cut
  (^boolean isCut []))

(defn- check-cut! [^Cut wire]
  (when (.isCut wire) (throw (IOException. "The connection has been cut"))))

(defn- timed-output ^OutputStream [^OutputStream out wire ^Patience patience ms]
  (proxy [OutputStream] []
    (write
      ([x]
       (check-cut! wire)
       (in-time [patience ms] (if (bytes? x) (.write out ^bytes x) (.write out (int x)))))
      ([b offset n]
       (check-cut! wire)
       (in-time [patience ms] (.write out ^bytes b (int offset) (int n)))))
    (flush []
      (check-cut! wire)
      (in-time [patience ms] (.flush out)))
    (close [])))

;; The wire

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

(defn- body-kind
  "Returns how the request's body is framed: :chunked, :length, or nil where there is none."
  [^HttpExchange exchange]
  (let [headers (.getRequestHeaders exchange)]
    (if (.containsKey headers "Transfer-encoding")
      :chunked
      (let [length (.getFirst headers "Content-length")]
        (when-not (or (nil? length) (= "0" length)) :length)))))

(defn- set-headers! [^HttpExchange exchange body headers]
  (let [^objects headers headers
        to (.getResponseHeaders exchange)
        n (alength headers)]
    (loop [i 0]
      (when (< i n)
        (.add to (aget headers i) (latin (aget headers (inc i))))
        (recur (+ i 2))))
    ;; The JDK leaves trailers unread, and would take them for the next request.
    (when (= :chunked body) (.set to "Connection" "close"))))

(defn- http-1-0? [^HttpExchange exchange]
  (.equalsIgnoreCase "HTTP/1.0" (.getProtocol exchange)))

(def ^:private ^:const linger-ms
  "How long is waited, after the response, for the rest of a request's body that nobody has read."
  1000)

(defn- close-out!
  "Ends the response. Closing it reads what is left of the request's body, which may never come:
  where there is one, not for long."
  [body ^OutputStream out]
  (.flush out)
  (if (nil? body)
    (.close out)
    (let [thread (Thread/currentThread)
          alarm (spi/arm! (spi/deadline-in linger-ms) #(.interrupt thread))]
      (try
        (.close out)
        (finally
          (spi/disarm! alarm)
          ;; It may have come after all: what was sent is whole, and nobody else is to hear of it.
          (Thread/interrupted))))))

(defn- send-all! [^HttpExchange exchange request-body status headers ^bytes body]
  (set-headers! exchange request-body headers)
  (if (or (nil? body) (zero? (alength body)))
    (.sendResponseHeaders exchange status -1)
    (let [out (.getResponseBody exchange)]
      (.sendResponseHeaders exchange status (alength body))
      (.write out body)
      (close-out! request-body out))))

(def ^:private ^:const most-held
  "How many bytes of a body are held at most, on HTTP/1.0."
  8388608)

(defn- check-held!
  [^ByteArrayOutputStream held ^long more]
  (when (< most-held (+ (.size held) more))
    (throw
      (ex-info
        (str "On HTTP/1.0 the engine :jdk holds a body without a Content-Length, and no more than "
             most-held
             " bytes of it")
        {:type :thrum/response}))))

(defn- holding
  "Returns a stream into held, which takes no more than may be held."
  ^OutputStream [^ByteArrayOutputStream held]
  (let [hold! (fn [b offset n] (check-held! held n) (.write held ^bytes b (int offset) (int n)))]
    (proxy [OutputStream] []
      (write ([x]
              (if (bytes? x)
                (hold! x 0 (alength ^bytes x))
                (hold! (byte-array [(unchecked-byte (int x))]) 0 1)))
             ([b offset n] (hold! b offset n)))
      (flush [])
      (close []))))

(defn- events?
  "Tells whether the headers are those of a stream of events, whose client comes again wherever it
  ends."
  [^objects headers]
  (loop [i 0]
    (and (< i (alength headers))
         (or (and (.equalsIgnoreCase "content-type" (aget headers i))
                  (.startsWith ^String (aget headers (inc i)) "text/event-stream"))
             (recur (+ i 2))))))

;; kind: of the request's body. held: the body of a response on HTTP/1.0 without a length: its end
;; would be that of the connection, and a cut look like it.
(deftype JdkWire [^HttpExchange exchange kind ^Patience patience ^long idle-ms ^CountDownLatch done
                  ^:unsynchronized-mutable held ^:unsynchronized-mutable ^objects held-headers
                  ^:unsynchronized-mutable ^int held-status ^:volatile-mutable cut]
  Cut
  (isCut [_] (boolean cut))
  engine/Wire
  (method [_] (.getRequestMethod exchange))
  (target [_] (.toString (.getRequestURI exchange)))
  (protocol [_] (.getProtocol exchange))
  (scheme [_] "http")
  (authority [_] nil)
  (headers [_] (header-array (.getRequestHeaders exchange)))
  (remote [_] (.getRemoteAddress exchange))
  (local [_] (.getLocalAddress exchange))
  (certificate [_] nil)
  (body [_] (when kind (timed-input (.getRequestBody exchange) patience idle-ms)))
  (send! [this status headers body]
    (check-cut! this)
    (in-time [patience idle-ms] (send-all! exchange kind status headers body)))
  (begin! [this status headers length]
    (check-cut! this)
    (if (and (neg? length) (http-1-0? exchange) (not (events? headers)))
      (do
        (set! held (ByteArrayOutputStream.))
        (set! held-headers headers)
        (set! held-status (int status))
        (holding held))
      (do
        (set-headers! exchange kind headers)
        ;; For the JDK 0 says that the length is not known, and -1 that it is 0.
        (.sendResponseHeaders exchange
                              status
                              (case (long length)
                                -1 0
                                0 -1
                                length))
        (timed-output (.getResponseBody exchange) this patience idle-ms))))
  (end! [this]
    (check-cut! this)
    (in-time
      [patience idle-ms]
      (if held
        (send-all! exchange kind held-status held-headers (.toByteArray ^ByteArrayOutputStream held))
        (close-out! kind (.getResponseBody exchange)))))
  ;; What is chunked ends properly when the exchange is closed: it is cut by what handle throws.
  (abort! [_]
    (set! cut true)
    (when-not (= "chunked" (.getFirst (.getResponseHeaders exchange) "Transfer-encoding"))
      (.close exchange))
    (.countDown done)
    nil)
  (watch! [_ _gone] false)
  (unwatch! [_] nil)
  (upgrade! [_ _headers _protocol _listener]
    (throw (UnsupportedOperationException. "The JDK's server has no websockets"))))

;; One request

(defn- end-exchange! [^JdkWire wire]
  (when (.isCut wire)
    (throw (IOException. "cut"))))

(defn- serve-here! [serve wire]
  (serve wire)
  (end-exchange! wire))

(defn- serve-apart!
  "Serves on another thread, so that this one can end the connection where the handler does not
  listen to its interrupt."
  [serve ^JdkWire wire ^ThreadFactory threads]
  (let [^CountDownLatch done (.-done wire)]
    (.start (.newThread threads #(try (serve wire) (finally (.countDown done)))))
    (.await done)
    (end-exchange! wire)))

(defn- handler
  ^HttpHandler [serve {:keys [idle-timeout-ms request-timeout-ms]} ^ThreadFactory threads]
  (reify
    HttpHandler
    (handle [_ exchange]
      (let [^Patience patience (.get patience-here)
            wire (fn [p]
                   (JdkWire. exchange
                             (body-kind exchange)
                             p
                             idle-timeout-ms
                             (CountDownLatch. 1)
                             nil
                             nil
                             0
                             false))]
        (.leave patience)
        (if request-timeout-ms
          (serve-apart! serve (wire patience) threads)
          (serve-here! serve (wire patience)))))))

(defn- executor
  "Returns what runs each request on a fresh virtual thread, and ends it when its headers do not
  come in time."
  ^Executor [{:keys [header-timeout-ms idle-timeout-ms]} ^ThreadFactory threads]
  (reify
    Executor
    (execute [_ request]
      (.start (.newThread
                threads
                (fn []
                  (let [patience (Patience. (Thread/currentThread) nil false false)
                        _ (.enter patience header-timeout-ms)
                        alarm (watch! patience (min (long header-timeout-ms) (long idle-timeout-ms)))]
                    (.set patience-here patience)
                    (try
                      (.run ^Runnable request)
                      (finally
                        (.over patience)
                        (spi/disarm! alarm))))))))))

;; The server

(def ^:private ^:const long-s
  "Longer than any drain. JDK 21 multiplies it by 1000, as an int."
  1000000)

(defn- stop-slowly!
  "Closes the listener; connections go on until the server is stopped again. Returns the thread."
  [^HttpServer server]
  (-> (Thread/ofPlatform) (.daemon true) (.name "thrum-jdk-stop")
      (.start (fn [] (.stop server long-s)))))

(deftype JdkServer [^HttpServer server ^AtomicReference stopping]
  engine/Running
  (port [_] (.getPort (.getAddress server)))
  (ssl-port [_] -1)
  (close-listeners! [_]
    (.set stopping (stop-slowly! server)))
  (stop! [_]
    (.stop server 0)
    (some-> ^Thread (.get stopping) (.join)))
  (native [_] server))

(defn- warn-of-pins!
  []
  (when (spi/monitors-pin?)
    (.log
      (System/getLogger "thrum.server")
      System$Logger$Level/WARNING
      (str
        "On this JDK the engine :jdk reads inside synchronized: a client that is slow to send keeps a carrier thread, and a few of "
        "them stop every virtual thread. Use JDK 24 or newer, or :jetty"))))

(defn- check-provider!
  "Refuses another server that a jar or a system property puts in the place of the JDK's own: what
  is said of this engine is not said of it."
  [provider]
  (when-not (= "jdk.httpserver" (.getName (.getModule (class provider))))
    (throw
      (spi/invalid
        (str
          "The engine :jdk is the JDK's own server, and " (.getName (class provider))
          " takes its place, by a jar or by the system"
          " property com.sun.net.httpserver.HttpServerProvider: take that away, or choose another engine")
        {:option :engine, :value :jdk, :provider (.getName (class provider))}))))

(defn- start [{:keys [host port backlog] :as options} serve]
  (check-provider! (HttpServerProvider/provider))
  (fix! options)
  (warn-of-pins!)
  (let [threads (spi/clean-threads "http")
        server (HttpServer/create (InetSocketAddress. ^String host (int port)) (int backlog))]
    (.createContext server "/" (handler serve options threads))
    (.setExecutor server (executor options threads))
    (.start server)
    (JdkServer. server (AtomicReference.))))

(def engine
  "The JDK's own server."
  {:name :jdk
   :capabilities #{:http-1.0 :blocking-send}
   :rows {}
   ;; What the JDK's parser does before we see anything, and keeps to itself.
   :gaps {:own-error-pages-tell-nothing
          "the JDK's own refusals carry a fixed phrase, as URISyntaxException thrown"
          :http-1-0-is-not-asked-to-go-on
          "the JDK answers Expect: 100-continue whatever the version"
          :refused-expectations-are-not-continued
          "the JDK answers Expect: 100-continue before its handler sees the request"
          :garbled-coding-is-refused "the JDK trims control characters around a header's value"
          :chunk-sizes-may-exceed-32-bits
          "the JDK counts a chunk's size in 32 bits, and keeps it to itself"
          :handlers-date-is-sent "the JDK puts its own Date in its place"
          :bare-cr-in-a-value-is-refused "for the JDK a bare CR ends a header's line"
          :bare-lf-does-not-end-a-header "for the JDK LF alone ends a header's line"
          :garbled-request-lines-are-refused "for the JDK all behind the target is the version"}
   :start start})
