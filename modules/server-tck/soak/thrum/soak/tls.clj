(ns thrum.soak.tls
  "What is no TLS on the port of TLS, and handshakes that never end."
  (:require
   [thrum.server :as server]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.tls :as tls]
   [thrum.server.tck.wire :as wire]
   [thrum.soak.stage :as stage :refer [expect]])
  (:import
   (java.net Socket)
   (javax.net.ssl SSLSocket)))

(set! *warn-on-reflection* true)

(defn- secure
  "Returns the client's connection wrapped in TLS."
  [{:keys [socket]}]
  (let [factory (.getSocketFactory (tls/context nil))
        ^SSLSocket over (.createSocket factory ^Socket socket "localhost" 1 true)]
    (.startHandshake over)
    (wire/client over)))

(defn- visit! [port]
  (stage/with-client [c port]
    (expect (stage/whole-200? (wire/ask! (secure c) (wire/get "/"))) "an answer over TLS" :none)))

;; Garbage

(defn- record-head
  "Returns the head of a TLS record of a handshake, of this length."
  [n]
  (byte-array [22 3 1 (bit-shift-right n 8) (unchecked-byte (bit-and n 255))]))

(def ^:private garbage
  [#(stage/random-bytes (inc (stage/chance 3000)))
   #(wire/bytes-of (wire/get "/"))
   #(byte-array (concat (record-head 300) (stage/random-bytes 300)))
   #(byte-array (concat (record-head 65535) (stage/random-bytes 2000)))
   #(byte-array (concat (record-head 5) [1 0 0 1]))
   #(record-head 400)])

(defn- spoil!
  "Sends garbage and waits for the end of the connection; returns how that was, and after how many
  ms."
  [port i]
  (stage/with-client [c port]
    (wire/try-send! c ((nth garbage (mod (long i) (count garbage)))))
    (stage/timed #(loop []
                    (let [next (wire/after c 9000)]
                      (if (= :data next)
                        (do (.skip ^java.io.InputStream (:in c) 10000) (recur))
                        next))))))

(defn- expect-ended [ends]
  (let [slow (remove (fn [[how ms]] (and (#{:eof :reset} how) (< (long ms) 5000))) ends)]
    (expect (empty? slow) "that each connection ends within 5 s" (frequencies (map first slow)))
    {:clients (count ends), :slowest-end-ms (reduce max (map second ends))}))

(def ^:private tls-garbage
  {:name "tls-garbage"
   :sentence
   (str "What is no TLS, and a handshake that stops, end with their connection in time; others "
        "are served.")
   :needs #{:tls}
   :controls [["header-timeout-ms is a minute"
               #(-> %
                    (assoc-in [:options :header-timeout-ms] 60000)
                    (assoc-in [:options :idle-timeout-ms] 60000))]]
   :run (fn [stage]
          (tls/make-keys!)
          (let [server (stage/serve stage
                                    scene/ok
                                    (assoc (tls/keystore) :port nil :header-timeout-ms 1000))
                port (server/ssl-port server)
                spoil-all! #(stage/bounded 100 600 (fn [i] (spoil! port i)))]
            (expect-ended (stage/beside #(visit! port) spoil-all!))))})

(def ordeals
  "The ordeals of this namespace."
  [tls-garbage])
