(ns thrum.cluster.infinispan-test
  "Infinispan under the contract of engines."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.cluster.engine-contract :as contract]
   [thrum.cluster.engine.infinispan :as infinispan]
   [thrum.cluster.engine.jgroups :as jgroups]
   [thrum.cluster.processes :as processes]
   [thrum.cluster.spi :as engine]
   [thrum.core :as t]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.io ByteArrayOutputStream DataOutputStream IOException)
   (java.net ConnectException InetAddress InetSocketAddress ServerSocket Socket)
   (org.jgroups Version)))

(set! *warn-on-reflection* true)

(contract/deftests {:start infinispan/start, :gaps #{}})

(deftest seeds-are-addresses-of-both-protocols
  (is (str/includes? (jgroups/stack {:seeds ["h:7800" "[::1]:7801"], :heartbeat-ms 3000})
                     "\"h[7800],::1[7801]\"")))

;; A stranger's connections

(defn- start! [node port & [seeds]]
  (infinispan/start {:cluster "strangers", :node node, :handler identity, :host "127.0.0.1"
                     :port (when (engine/worker? node) port)
                     :seeds (mapv #(str "127.0.0.1:" %) (or seeds [port])), :heartbeat-ms 3000}))

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
(defn- refuses-a-length? [port]
  (with-open [socket (connect port)]
    (.write (.getOutputStream socket) ^bytes (announcement 100000000))
    (closed-by-the-other-end? socket)))

(defn- listens? [port]
  (try (.close (connect port)) true (catch ConnectException _ false)))

;; While it joins it waits for the silent seed.
(deftest a-length-from-a-stranger-takes-no-memory-at-the-port-for-failures
  (let [[port seed] (processes/free-ports 2), detection (+ 10000 (long port))]
    (with-open [_ (ServerSocket. seed 50 (InetAddress/getByName "127.0.0.1"))]
      (let [joining (t/future (start! "m0" port [port seed]))]
        (try
          (is (gate/eventually 20000 #(listens? detection)))
          (is (true? (refuses-a-length? detection)))
          (is (true? (do @joining (refuses-a-length? detection))))
          (finally (engine/close! @joining)))))))

(defn- descriptors [process]
  (count (.list (io/file "/proc" (str (processes/pid process)) "fd"))))

(defn- connect-in-time ^Socket [port]
  (let [socket (Socket.)]
    (try
      (.connect socket (InetSocketAddress. "127.0.0.1" (int port)) 3000)
      (catch IOException _))
    socket))

(defn- use-up!
  "Returns connections to the port of the process: ten more than it has descriptors for."
  [process port most]
  (loop [sockets []]
    (if (and (< (descriptors process) (- most 5)) (< (count sockets) 1000))
      (recur (conj sockets (connect-in-time port)))
      (into sockets (repeatedly 15 #(connect-in-time port))))))

(deftest a-node-that-had-no-descriptor-left-accepts-connections-for-failures-again
  (let [[port] (processes/free-ports 1), detection (+ 10000 (long port)), most 300
        limited (str "ulimit -n " most "; exec \"$@\"")
        m (processes/start! ["-m" "thrum.cluster.main" "member" "--allow" "thrum.cluster.jvm-work"
                             "--port" (str port) "--seeds" (str "127.0.0.1:" port)]
                            :prefix ["bash" "-c" limited "limited"])]
    (try
      (processes/await-line! m "joined")
      (let [sockets (use-up! m detection most)]
        (is (< (- most 6) (descriptors m)))
        (run! #(.close ^Socket %) sockets))
      (is (true? (refuses-a-length? detection)))
      (finally (processes/kill! m)))))

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
