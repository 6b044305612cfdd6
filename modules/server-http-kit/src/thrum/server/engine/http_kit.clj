(ns thrum.server.engine.http-kit
  "The engine http-kit (2.9 or newer), which is not on Maven Central: it is used where it is on the
  classpath, and asked for by one sentence where it is not. HTTP/1.1 and 1.0, and websockets; no
  TLS, no HTTP/2.

  http-kit's loop accepts nothing and writes nothing here: it reads, decodes the heads of requests,
  and frames, and closes. So a request's body is read while its handler asks for it, and an answer
  is written while it is made."
  (:require
   [thrum.server.engine.http-kit.connection :as connection]
   [thrum.server.engine.http-kit.keeper :as keeper]
   [thrum.server.engine.http-kit.library :as library]
   [thrum.server.engine.http-kit.refusal :as refusal]
   [thrum.server.engine.http-kit.wire :as wire]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.net InetSocketAddress StandardSocketOptions)
   (java.nio.channels ClosedChannelException ClosedSelectorException ServerSocketChannel SocketChannel)
   (java.util.concurrent ConcurrentHashMap Semaphore)
   (java.util.concurrent.atomic AtomicLong)
   (thrum.server.engine.http_kit.connection Connection Server Tenant)
   (thrum.server.engine.http_kit.wire HttpKitWire)))

(set! *warn-on-reflection* true)

;; What http-kit's loop tells

(deftype Connections [^ConcurrentHashMap by-key ^Semaphore room])

(defn- connection-of ^Connection [^Connections all key]
  (.get ^ConcurrentHashMap (.-by-key all) key))

(defn- serve-here! [{:keys [max-header-bytes]} serve ^HttpKitWire wire]
  (try
    (if (< (long max-header-bytes) (wire/header-bytes wire))
      (engine/send! wire 431 (object-array ["Connection" "close"]) (byte-array 0))
      (serve wire))
    (finally (.over wire))))

(def ^:private ^AtomicLong numbers (AtomicLong.))

(defn- handle!
  [lib options serve ^Connection c request callback]
  (let [wire (wire/wire lib c request callback)]
    (.setTenant c wire)
    (library/expect-head! lib (.-key c))
    ;; Read on, and http-kit would close the connection of a client that has closed its side and
    ;; waits for the answer.
    (connection/read-on! c false)
    (.start (spi/clean-thread (str "http-" (.incrementAndGet numbers))
                              #(serve-here! options serve wire)))))

(defn- lost! [^Connections all ^Connection c code reason]
  (when-not (.isOpen ^SocketChannel (.-socket c))
    (when (.remove ^ConcurrentHashMap (.-by-key all) (.-key c))
      (.release ^Semaphore (.-room all))))
  (when (instance? Tenant (.tenant c))
    (.gone ^Tenant (.tenant c) code reason)))

(defn- written!
  "Takes what http-kit wants to write. On a virtual thread that is the mark of an answer which has
  been written already."
  [^Connection c ^"[Ljava.nio.ByteBuffer;" buffers]
  (let [tenant (.tenant c)]
    (cond (.isVirtual (Thread/currentThread)) nil
          (nil? tenant) (refusal/answer! c buffers)
          (instance? Tenant tenant) (some->> (refusal/close-code (aget buffers 0))
                                             (.flawed ^Tenant tenant)))))

(defn- hooks
  [lib ^Connections all serve {:keys [max-header-bytes ws-max-message-bytes], :as options}]
  (let [known #(connection-of all (library/key-of lib %))]
    {:max-line (+ 2 (long max-header-bytes))
     :max-message ws-max-message-bytes
     :on-request (fn [request callback]
                   (handle! lib
                            options
                            serve
                            (known (library/value lib :request->channel request))
                            request
                            callback))
     :on-frame (fn [channel frame]
                 (some-> ^Tenant (.tenant ^Connection (known channel))
                         (.frame frame)))
     :on-close (fn [channel code reason] (when-some [c (known channel)] (lost! all c code reason)))
     :on-write (fn [key buffers]
                 (some-> (connection-of all key)
                         (written! buffers)))}))

;; Connections: our listener takes them, http-kit reads them

(defn- admit!
  [lib ^Server server hooks ^Connections all ^SocketChannel socket]
  (.configureBlocking socket false)
  (.setOption socket StandardSocketOptions/TCP_NODELAY true)
  (library/adopt!
    lib
    (.-http-kit server)
    socket
    hooks
    (fn [key] (.put ^ConcurrentHashMap (.-by-key all) key (connection/connection server key)))))

(defn- take-connection! [^ServerSocketChannel listener ^Connections all admit]
  (.acquire ^Semaphore (.-room all))
  (let [socket (volatile! nil)]
    (try
      (admit (vreset! socket (.accept listener)))
      (catch Throwable t
        (some-> ^SocketChannel @socket .close)
        (.release ^Semaphore (.-room all))
        (throw t)))))

(def ^:private pause-ms
  "How long nothing is accepted after a failure: there may be no descriptor left."
  20)

(defn- accept-all! [^ServerSocketChannel listener all admit]
  (while (.isOpen listener)
    (try
      (take-connection! listener all admit)
      (catch InterruptedException _)
      (catch ClosedChannelException _)
      (catch ClosedSelectorException _)
      (catch IOException _ (Thread/sleep (long pause-ms))))))

(defn- listener ^ServerSocketChannel [{:keys [host port backlog]}]
  (let [listener (ServerSocketChannel/open)]
    (try
      (.setOption listener StandardSocketOptions/SO_REUSEADDR true)
      (.bind listener (InetSocketAddress. ^String host (int port)) (int backlog))
      (catch Throwable t
        (.close listener)
        (throw t)))))

;; The server

(deftype HttpKitServer [^ServerSocketChannel listener port ^Thread acceptor ^Server server]
  engine/Running
  (port [_] (int port))
  (ssl-port [_] -1)
  (close-listeners! [_]
    (.close listener)
    (.interrupt acceptor))
  (stop! [this]
    (engine/close-listeners! this)
    (library/stop! (.-http-kit server))
    (keeper/stop! @(.-keeper server))
    (.join acceptor))
  (native [_] (.-http-kit server)))

(defn- tick-ms
  "Returns how often silence is looked for."
  [{:keys [header-timeout-ms idle-timeout-ms ws-idle-timeout-ms]}]
  (-> (min header-timeout-ms idle-timeout-ms ws-idle-timeout-ms) (quot 4) (max 5) (min 250)))

(defn- look-at-all! [^Connections all]
  (let [now (System/nanoTime)]
    (run! #(connection/look! % now) (.values ^ConcurrentHashMap (.-by-key all)))))

(defn- start-on!
  [^ServerSocketChannel listener lib {:keys [max-connections], :as options} serve]
  (let [all (Connections. (ConcurrentHashMap.) (Semaphore. (int max-connections)))
        hooks (hooks lib all serve options)
        keeper (delay (keeper/start (tick-ms options) #(look-at-all! all)))
        server (Server. lib (library/server hooks) options keeper)
        acceptor (spi/clean-thread "http-kit-accept"
                                   (fn []
                                     (accept-all! listener all #(admit! lib server hooks all %))))]
    @keeper
    (library/start! lib (.-http-kit server))
    (.start acceptor)
    (HttpKitServer. listener
                    (.getPort ^InetSocketAddress (.getLocalAddress listener))
                    acceptor
                    server)))

(defn- start [options serve]
  (library/check-address! (:port options))
  (let [lib (library/library)
        listener (listener options)]
    (try
      (start-on! listener lib options serve)
      (catch Throwable t
        (.close listener)
        (throw t)))))

(def engine
  "http-kit."
  {:name :http-kit
   :capabilities #{:http-1.0 :websockets :disconnect :blocking-send}
   :rows {}
   :start start})
