(ns thrum.server.engine.jdk
  "The engine that needs nothing: com.sun.net.httpserver on virtual threads. HTTP/1.1 and 1.0,
  neither TLS nor websockets."
  (:require
   [thrum.server.engine.jdk.fixed :as fixed]
   [thrum.server.engine.jdk.patience :as patience]
   [thrum.server.engine.jdk.wire :as wire]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (com.sun.net.httpserver HttpHandler HttpServer)
   (com.sun.net.httpserver.spi HttpServerProvider)
   (java.io IOException)
   (java.lang System$Logger$Level)
   (java.net InetAddress InetSocketAddress)
   (java.util.concurrent CountDownLatch Executor ThreadFactory)
   (java.util.concurrent.atomic AtomicReference)))

(set! *warn-on-reflection* true)

;; One request

(defn- serve-apart!
  "Serves on another thread, so that this one can end the connection where the handler does not
  listen to its interrupt."
  [serve wire ^CountDownLatch done ^ThreadFactory threads]
  (.start (.newThread threads #(try (serve wire) (finally (.countDown done)))))
  (.await done))

(defn- handler
  ^HttpHandler [serve {:keys [idle-timeout-ms request-timeout-ms]} keeper threads]
  (reify HttpHandler
    (handle [_ exchange]
      (let [patience (doto (patience/here keeper) patience/leave!)
            done (when request-timeout-ms (CountDownLatch. 1))
            wire (wire/wire exchange patience idle-timeout-ms done)]
        (if done
          (serve-apart! serve wire done threads)
          (serve wire))
        (when (wire/cut? wire) (throw (IOException. "cut")))))))

(defn- executor
  "Returns what runs each request on a fresh virtual thread, and ends it when its headers do not
  come in time."
  ^Executor [{:keys [header-timeout-ms]} keeper ^ThreadFactory threads]
  (reify Executor
    (execute [_ task]
      (.start (.newThread threads #(patience/run! keeper task header-timeout-ms))))))

;; The server

(def ^:private ^:const long-s
  "Longer than any drain. JDK 21 multiplies it by 1000, as an int."
  1000000)

(defn- stop-slowly!
  "Closes the listener; connections go on until the server is stopped again. Returns the thread."
  [^HttpServer server]
  (-> (Thread/ofPlatform) (.daemon true) (.name "thrum-jdk-stop")
      (.start (fn [] (.stop server long-s)))))

(deftype JdkServer [^HttpServer server ^AtomicReference stopping keeper]
  engine/Running
  (port [_] (.getPort (.getAddress server)))
  (ssl-port [_] -1)
  (close-listeners! [_]
    (.set stopping (stop-slowly! server)))
  ;; The keeper first: until JDK 23 (JDK-8322829) its interrupt of a pinned reader, and the close of
  ;; that reader's connection, wait for each other.
  (stop! [_]
    (patience/close! keeper)
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
        "On this JDK the engine :jdk reads and writes inside synchronized: a client that is slow "
        "to send or to take keeps a carrier thread, and a few of them stop every virtual thread. "
        "Use JDK 24 or newer, or :jetty"))))

(defn- check-provider!
  "Refuses another server that a jar or a system property puts in the place of the JDK's own: what
  is said of this engine is not said of it."
  [provider]
  (when-not (= "jdk.httpserver" (.getName (.getModule (class provider))))
    (throw
      (spi/invalid
        (str
          "The engine :jdk is the JDK's own server, and " (.getName (class provider))
          " takes its place, by a jar or by the system property "
          "com.sun.net.httpserver.HttpServerProvider: take that away, or choose another engine")
        {:option :engine, :value :jdk, :provider (.getName (class provider))}))))

(defn- let-go!
  "Closes what a server holds that could not be bound: the JDK does so where a server ends that was
  started, and starts only one that is bound."
  [^HttpServer server]
  (.bind server (InetSocketAddress. (InetAddress/getLoopbackAddress) 0) 1)
  (.start server)
  (.stop server 0))

(defn- bound
  "Returns a server that listens. Made with its address it would keep a channel open where that is
  in use."
  ^HttpServer [{:keys [host port backlog]}]
  (let [server (HttpServer/create)]
    (try
      (.bind server (InetSocketAddress. ^String host (int port)) (int backlog))
      server
      (catch Throwable t
        (try
          (let-go! server)
          (catch Throwable other (.addSuppressed t other)))
        (throw t)))))

(defn- start [options serve]
  (check-provider! (HttpServerProvider/provider))
  (fixed/fix! options)
  (warn-of-pins!)
  (let [threads (spi/clean-threads "http")
        keeper (patience/keeper [(:header-timeout-ms options) (:idle-timeout-ms options)])]
    (try
      (let [server (bound options)]
        (.createContext server "/" (handler serve options keeper threads))
        (.setExecutor server (executor options keeper threads))
        (.start server)
        (JdkServer. server (AtomicReference.) keeper))
      (catch Throwable t
        (patience/close! keeper)
        (throw t)))))

(def engine
  "The JDK's own server."
  {:name :jdk
   :capabilities #{:http-1.0 :blocking-send}
   :rows {}
   ;; What the JDK's parser does before we see anything, and keeps to itself.
   :gaps {:absolute-form-without-a-path "the JDK has no context for a target without a path"
          :uri-keeps-double-slashes
          "since 2026 the JDK answers 400 to a target that begins with two slashes"
          :refused-requests-are-logged
          "since October 2026 the JDK refuses a missing or repeated Host, and keeps it to itself"
          :own-error-pages-tell-nothing
          "the JDK's own refusals carry a fixed phrase, as URISyntaxException thrown"
          :http-1-0-is-not-asked-to-go-on
          "the JDK answers Expect: 100-continue in every version"
          :refused-expectations-are-not-continued
          "the JDK answers Expect: 100-continue before its handler sees the request"
          :garbled-coding-is-refused
          "before October 2026 the JDK trims control characters around a header's value"
          :control-chars-around-a-value-are-refused
          "before October 2026 the JDK trims control characters around a header's value"
          :chunk-sizes-may-exceed-32-bits
          "before October 2026 the JDK counts a chunk's size in 32 bits, and keeps it to itself"
          :handlers-date-is-sent "the JDK puts its own Date in its place"
          :bare-cr-in-a-value-is-refused
          "before October 2026 a bare CR ends a header's line for the JDK"
          :bare-lf-does-not-end-a-header "for the JDK LF alone ends a header's line"
          :garbled-request-lines-are-refused "for the JDK all behind the target is the version"}
   ;; By the updates of JDK 21, 25 and 27 of October 2026; 26 has the first alone.
   :may-pass #{:uri-keeps-double-slashes :refused-requests-are-logged :garbled-coding-is-refused
               :control-chars-around-a-value-are-refused :chunk-sizes-may-exceed-32-bits
               :bare-cr-in-a-value-is-refused}
   :start start})
