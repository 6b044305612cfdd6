(ns thrum.cluster.infinispan-test
  "Infinispan under the contract of engines."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.cluster.engine-contract :as contract]
   [thrum.cluster.engine.infinispan :as infinispan]
   [thrum.cluster.engine.jgroups :as jgroups]
   [thrum.cluster.processes :as processes]
   [thrum.cluster.spi :as engine]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.io ByteArrayOutputStream DataOutputStream)
   (java.net Socket)
   (org.jgroups Version)))

(set! *warn-on-reflection* true)

(contract/deftests {:start infinispan/start, :gaps #{}})

(deftest seeds-are-addresses-of-both-protocols
  (is (str/includes? (jgroups/stack {:seeds ["h:7800" "[::1]:7801"], :heartbeat-ms 3000})
                     "\"h[7800],::1[7801]\"")))

;; A stranger's connections

(defn- start! [node port]
  (infinispan/start {:cluster "strangers", :node node, :handler identity, :host "127.0.0.1"
                     :port (when (engine/worker? node) port)
                     :seeds [(str "127.0.0.1:" port)], :heartbeat-ms 3000}))

(defn- connect ^Socket [port]
  (doto (Socket. "127.0.0.1" (int port)) (.setSoTimeout 20000)))

(defn- announcement
  "Returns what a node sends first, its address, and the length of a message that does not follow."
  [length]
  (let [bytes (ByteArrayOutputStream.)]
    (doto (DataOutputStream. bytes)
      (.write (.getBytes "bela"))
      (.writeShort Version/version)
      (.writeShort 7)
      (.write (byte-array [4 127 0 0 1]))
      (.writeShort 8013)
      (.writeInt length))
    (.toByteArray bytes)))

(defn- closed-by-the-other-end? [^Socket socket]
  (neg? (.read (.getInputStream socket))))

;; With a limit the connection is closed at once; else the memory is taken and the message awaited.
(deftest a-length-from-a-stranger-takes-no-memory-at-the-port-for-failures
  (let [[port] (processes/free-ports 1), m (start! "m0" port)]
    (try
      (with-open [socket (connect (+ 10000 (long port)))]
        (.write (.getOutputStream socket) ^bytes (announcement 100000000))
        (is (true? (closed-by-the-other-end? socket))))
      (finally (engine/close! m)))))

;; Twenty of them held up a join by 2 s each.
(deftest silent-connections-hold-up-no-join
  (let [[port] (processes/free-ports 1), m (start! "m0" port)
        silent (mapv (fn [_] (connect port)) (range 20))]
    (try
      (let [c (gate/in-time 20000 #(start! "~c1" port))]
        (try
          (is (gate/eventually 15000 #(not (engine/lost? c "m0"))))
          (finally (engine/close! c))))
      (finally
        (run! #(.close ^Socket %) silent)
        (engine/close! m)))))
