(ns thrum.server.tck.connections
  "Chapter: how many connections there may be."
  (:require
   [thrum.server.tck.clients :as clients]
   [thrum.server.tck.scene :as scene :refer [defcase expect]]
   [thrum.server.tck.wire :as wire]))

(set! *warn-on-reflection* true)

(defcase connections-are-bounded "4.4"
  "Beyond :max-connections no further connection is served; when one closes, there is room again."
  [env]
  (let [server (scene/serve env scene/ok {:max-connections 3})
        served (vec (repeatedly 3 #(scene/client env server)))]
    (expect (every? clients/served? served) "three served connections" :fewer)
    (let [fourth (scene/client env server)]
      (wire/try-send! fourth (wire/get "/"))
      (expect (not= :data (wire/after fourth wire/quiet-ms)) "that the fourth is not served"
        :served)
      (run! wire/close! (conj served fourth))
      (expect (scene/eventually #(clients/served? (scene/client env server)))
              "room for another"
              :none))))

(defcase lost-connections-give-their-places-back "4.4"
  "Connections that are reset at once, before a head, within it, within a body, or behind what is no
  HTTP, give their places of :max-connections back. So do those whose client goes within a body,
  behind a response without one."
  [env]
  (let [bodiless-for-post #(if (= :post (:request-method %)) {:status 204} (scene/ok %))
        server (scene/serve env bodiless-for-post {:max-connections 3})
        port (scene/port-of env server)
        answered (vec (repeatedly 3 #(scene/client env server)))]
    (doseq [client answered]
      (wire/send! client (wire/head-of "POST" "/" "Content-Length: 9"))
      (let [{:keys [status] :as head} (wire/head client)]
        (scene/expect= 204 status head)))
    (run! wire/reset!! answered)
    (clients/hit-often! port
      ["" "GET" "GET / HTTP/1.1\r\nHost: local"
       (wire/head-of "POST" "/" "Content-Length: 9") "\u0016\u0003\u0001" (wire/get "/")])
    (expect (scene/eventually (fn [] (clients/all-served? 3 #(wire/connect port))))
            "room for three"
            :less)))
