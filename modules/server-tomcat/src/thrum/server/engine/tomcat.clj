(ns thrum.server.engine.tomcat
  "The engine of Tomcat 11's connector, without its servlets: HTTP/1.1, 1.0 and 2, TLS and
  websockets.

  Tomcat's own threads accept and poll, two platform threads for each port. What has arrived on a
  connection is read on a fresh virtual thread, and handled there."
  (:require
   [thrum.server.engine.tomcat.connections :as connections]
   [thrum.server.engine.tomcat.connector :as connector]
   [thrum.server.engine.tomcat.head :as head]
   [thrum.server.engine.tomcat.request :as request]
   [thrum.server.engine.tomcat.rests :as rests]
   [thrum.server.engine.tomcat.serving :as serving]
   [thrum.server.engine.tomcat.websocket :as websocket]
   [thrum.server.spi :as engine]
   [thrum.server.spi.watchdog :as watchdog]
   [thrum.spi :as spi])
  (:import
   (java.lang System$Logger$Level)
   (org.apache.coyote Adapter)))

(set! *warn-on-reflection* true)

(def ^:private positive {:check pos-int?, :accepts "a positive integer"})

(def ^:private rows
  {:reuse-threads? engine/reuse-threads
   :h2-max-streams
   (assoc positive :default "256" :doc "how many requests an HTTP/2 connection may have at once")
   :configurator {:check ifn?
                  :accepts "a function of an org.apache.coyote.http11.Http11NioProtocol"
                  :doc "called with the protocol of each port, before it starts"}})

(defn- adapter
  "Returns what Tomcat hands its requests to."
  ^Adapter [endpoint {:keys [rests] :as options} serve]
  (reify Adapter
    (service [_ request response]
      (rests/end! rests)
      (if-some [status (head/refused request response)]
        (do (rests/begin! rests request endpoint)
            (head/refuse! request response status)
            (engine/refused! options status (request/remote-of request)))
        (serving/handle! request response endpoint options serve)))
    (prepare [_ _ _] true)
    (asyncDispatch [_ _ _ _] false)
    (log [_ _ _ _])
    (checkRecycled [_ _ _])
    (getDomain [_] nil)))

;; The server

(deftype TomcatRunning [connectors ports rests threads ^Thread watchdog]
  engine/Running
  (port [_] (:port ports -1))
  (ssl-port [_] (:ssl-port ports -1))
  (close-listeners! [_] (run! connector/close-listener! connectors))
  (stop! [_]
    (try
      (connector/stop! connectors rests threads)
      (finally (watchdog/stop! watchdog))))
  (native [_] (mapv :protocol connectors)))

(defn- warn-of-pins!
  []
  (when (spi/monitors-pin?)
    (.log
      (System/getLogger "thrum.server")
      System$Logger$Level/WARNING
      (str
        "On this JDK Tomcat waits inside synchronized: a client that is slow to send its body, or "
        "to take the answer, keeps a carrier "
        "thread, and a few of them stop every virtual thread. Use JDK 24 or newer, or :jetty"))))

(defn- look-after!
  "Closes, from time to time, the connections of clients that are too slow with a handshake, with a
  head, with the rest of a body before it, or with a frame. Returns the thread, which ends when it
  is interrupted."
  ^Thread [endpoints rests {:keys [header-timeout-ms idle-timeout-ms]}]
  (let [close-slow! (connections/slow-closer {:head-ms header-timeout-ms
                                              :frame-ms idle-timeout-ms})]
    (watchdog/start "tomcat-slow" (watchdog/period-ms [header-timeout-ms idle-timeout-ms])
      (fn []
        (run! close-slow! endpoints)
        (rests/close-slow! rests header-timeout-ms)))))

(defn- start
  "Starts Tomcat's connectors; returns them as Running."
  [options serve]
  (warn-of-pins!)
  (let [threads (connector/threads)
        rests (rests/rests)
        options (assoc options :container (websocket/container), :rests rests)
        ports (connector/ports options threads #(adapter % options serve))
        connectors (vals ports)
        ;; Before the connectors: what fails behind them would leave their listeners open.
        watchdog (look-after! (map :endpoint connectors) rests options)]
    (watchdog/starting watchdog #(connector/start! connectors rests threads))
    (TomcatRunning. connectors (update-vals ports connector/port-of) rests threads watchdog)))

(def engine
  "What thrum.server.spi says an engine is."
  {:name :tomcat
   :capabilities #{:websockets :h2 :tls :client-certificates :http-1.0 :blocking-send}
   :clean-values? true
   :rows rows
   :start start})
