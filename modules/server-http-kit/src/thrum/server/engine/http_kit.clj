(ns thrum.server.engine.http-kit
  "The engine http-kit (2.9 or newer), which is not on Maven Central: it is used where it is on the
  classpath, and asked for by one sentence where it is not. HTTP/1.1 and 1.0, and websockets; no
  TLS, no HTTP/2.

  http-kit decodes the frames of websockets; HTTP is thrum.server.http1's: doc/decisions says why."
  (:require
   [thrum.server.engine.http-kit.library :as library]
   [thrum.server.engine.http-kit.websocket :as websocket]
   [thrum.server.http1 :as http1]
   [thrum.server.http1.listener :as listener]
   [thrum.spi :as spi]))

(set! *warn-on-reflection* true)

(defn- start
  [{:keys [port ws-max-message-bytes] :as options} serve]
  (when-not port
    (throw (spi/invalid "http-kit serves HTTP alone: give a :port" {:option :port, :value port})))
  (let [library (library/library)]
    (listener/start options serve
                    #(websocket/open! (library/decoder library ws-max-message-bytes) %))))

(def engine
  "http-kit."
  {:name :http-kit
   :capabilities #{:http-1.0 :websockets :disconnect :blocking-send}
   :clean-values? true
   :rows http1/rows
   :start start})
