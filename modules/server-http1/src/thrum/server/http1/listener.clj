(ns thrum.server.http1.listener
  "A listener for engines that bring none: each socket is served on a virtual thread of its own."
  (:require
   [thrum.server.http1 :as http1]
   [thrum.server.spi :as engine]
   [thrum.server.spi.watchdog :as watchdog]
   [thrum.spi :as spi])
  (:import
   (java.net InetSocketAddress StandardSocketOptions)
   (java.nio.channels ClosedChannelException ServerSocketChannel)))

(set! *warn-on-reflection* true)

(defn- bound ^ServerSocketChannel [{:keys [^String host port backlog]}]
  (let [listener (ServerSocketChannel/open)]
    (try
      (.setOption listener StandardSocketOptions/SO_REUSEADDR true)
      (.bind listener (InetSocketAddress. host (int port)) (int backlog))
      (catch Throwable t
        (.close listener)
        (throw t)))))

(defn- take-connection! [^ServerSocketChannel listener all serve]
  (let [socket (.accept listener)]
    (try
      (let [c (http1/accept! all (.socket socket) nil)]
        (.start (spi/clean-thread "http1-connection" #(serve c))))
      (catch Throwable t
        (.close socket)
        (throw t)))))

(def ^:private ^:const pause-ms
  "How long nothing is accepted after a failure: there may be no descriptor left, or no memory."
  20)

(defn- accept-all! [^ServerSocketChannel listener all serve]
  (while (.isOpen listener)
    (try
      (take-connection! listener all serve)
      (catch ClosedChannelException _)
      (catch Throwable _ (Thread/sleep pause-ms)))))

(deftype Listening [^ServerSocketChannel listener port all ^Thread acceptor watchdog]
  engine/Running
  (port [_] (int port))
  (ssl-port [_] -1)
  (close-listeners! [_]
    (http1/close! all)
    ;; No interrupt of the acceptor: JDK 25 leaves a socket open that was accepted in that moment.
    (.close listener))
  (stop! [this]
    (engine/close-listeners! this)
    (.join acceptor)
    (http1/end-all! all)
    (watchdog/stop! watchdog))
  (native [_] listener))

;; The acceptor last: the port of a listener that is closed while a thread accepts is free only when
;; that thread has returned.
(defn- listening ^Listening [listener all serve upgrade]
  (let [serve-one #(http1/serve! all % serve upgrade)
        ;; No virtual one: stop! waits for it, also where every carrier is held.
        acceptor (spi/platform-thread "http1-accept" #(accept-all! listener all serve-one))
        port (.getPort ^InetSocketAddress (.getLocalAddress ^ServerSocketChannel listener))
        watchdog (http1/watch all)]
    (watchdog/starting watchdog #(.start acceptor))
    (Listening. listener port all acceptor watchdog)))

(defn start
  "Listens on the options' :port, and calls (serve wire) for each request; upgrade: see
  thrum.server.http1/serve!. Returns a Running, whose native is a ServerSocketChannel."
  [options serve upgrade]
  (let [all (http1/connections options)
        listener (bound options)]
    (try
      (listening listener all serve upgrade)
      (catch Throwable t
        (.close listener)
        (throw t)))))
