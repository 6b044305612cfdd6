(ns thrum.server.tck.clients
  "Clients that come and go in number, and whether new ones are served."
  (:require
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io IOException)))

(set! *warn-on-reflection* true)

(defn served?
  "Whether the client is answered with 200."
  [c]
  (= 200 (:status (try (wire/ask! c (wire/get "/")) (catch IOException _ nil)))))

(defn hit-often!
  "Has clients come to the port from one port of theirs and reset their connections, with each text
  10 times."
  [port texts]
  (reduce (fn [from text] (wire/hit! port from text))
          0
          (for [text texts, _ (range 10)] text)))

(defn all-served?
  "Whether so many new clients, (connect) each, are served while all of them are connected; closes
  them."
  [n connect]
  (let [clients (atom [])]
    (try
      (every? (fn [_] (let [c (connect)] (swap! clients conj c) (served? c))) (range n))
      (catch IOException _ false)
      (finally (run! wire/close! @clients)))))
