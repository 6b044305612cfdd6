(ns thrum.cluster.hazelcast-test
  "Hazelcast under the contract of engines. Its edition without a licence has no TLS."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.cluster.engine-contract :as contract]
   [thrum.cluster.engine.hazelcast :as hazelcast]
   [thrum.cluster.processes :as processes]
   [thrum.cluster.spi :as engine]
   [thrum.test-kit.gate :as gate])
  (:import
   (com.hazelcast.client HazelcastClient)
   (com.hazelcast.client.config ClientConfig)
   (com.hazelcast.cluster ClusterState Member)
   (com.hazelcast.config Config)
   (com.hazelcast.core Hazelcast HazelcastInstance)
   (com.hazelcast.nio.serialization HazelcastSerializationException)
   (java.lang.management ManagementFactory)
   (java.net InetAddress ServerSocket)
   (java.util.concurrent Callable CompletableFuture ExecutionException Future TimeUnit)
   (thrum.cluster.engine.hazelcast Hz Message)))

(set! *warn-on-reflection* true)

(contract/deftests {:start hazelcast/start, :gaps #{:tls :dns}})

(defn- start! [cluster node port & {:as options}]
  (hazelcast/start (merge {:cluster cluster, :node node, :handler identity, :host "127.0.0.1"
                           :port (when (engine/worker? node) port)
                           :seeds [(str "127.0.0.1:" port)], :heartbeat-ms 3000}
                          options)))

(defn- answer [^CompletableFuture future]
  (try (vec (.get future 20 TimeUnit/SECONDS)) (catch ExecutionException _ :failed)))

(defn- sees? [node other]
  (gate/eventually 20000 #(not (engine/lost? node other))))

(deftest an-answer-finds-its-node-where-the-view-is-behind
  (let [[port] (processes/free-ports 1)
        start #(start! "behind" % port)
        m (with-redefs [hazelcast/follow! (fn [_ _ _])] (start "m"))
        c (start "~c")]
    (try
      (is (sees? c "m"))
      (is (= [7] (answer (engine/invoke c "m" (byte-array [7])))))
      (finally (run! engine/close! [c m])))))

;; The mend is for one processor or two; with more Hazelcast has a pool by itself.
(deftest a-message-starts-no-platform-thread
  (let [[port] (processes/free-ports 1), m (start! "threads" "m" port)
        c (start! "threads" "~c" port), n 500
        ask #(answer (engine/invoke c "m" (byte-array [1])))
        started #(.getTotalStartedThreadCount (ManagementFactory/getThreadMXBean))]
    (try
      (is (sees? c "m"))
      (let [before (started)]
        (is (= #{[1]} (set (repeatedly n ask))))
        (is (< (- (started) before) (quot n 5))))
      (finally (run! engine/close! [c m])))))

;; As in a merge of two clusters.
(deftest the-state-of-a-cluster-of-two-changes
  (let [[port] (processes/free-ports 1), m (start! "state" "m" port), c (start! "state" "~c" port)
        cluster (.getCluster ^HazelcastInstance (.-instance ^Hz m))]
    (try
      (is (sees? m "~c"))
      (doseq [state [ClusterState/FROZEN ClusterState/ACTIVE]]
        (.changeClusterState cluster state)
        (is (= state (.getClusterState cluster))))
      (finally (run! engine/close! [c m])))))

(def ^:private failures
  [(NullPointerException. "n") (OutOfMemoryError. "o") (HazelcastSerializationException. "h")])

(deftest the-failure-of-a-request-is-that-of-its-wait
  (let [[port] (processes/free-ports 1)]
    (with-redefs [hazelcast/receiver
                  (fn [_ _ _ _]
                    (fn [^Message message]
                      (throw (failures (alength ^bytes (.-content message))))))]
      (let [m (start! "throws" "m" port), c (start! "throws" "~c" port)]
        (try
          (is (sees? c "m"))
          (is (= [:failed :failed :failed]
                 (mapv #(answer (engine/invoke c "m" (byte-array %))) (range 3))))
          (finally (run! engine/close! [c m])))))))

(defn- answer-of? [^Message message n]
  (and (not (.-request? message)) (= n (some-> ^bytes (.-content message) alength))))

(defn- send-but
  "Returns send! for which an answer of one byte throws, and one of two fails on its way."
  [send!]
  (fn [instance member message on-failure]
    (cond
      (answer-of? message 1) (throw (OutOfMemoryError. "of the test"))
      (answer-of? message 2) (on-failure (ex-info "of the test" {}))
      :else (send! instance member message on-failure))))

(deftest where-an-answer-cannot-be-sent-the-wait-fails
  (let [[port] (processes/free-ports 1)]
    (with-redefs [hazelcast/send! (send-but @#'hazelcast/send!)]
      (let [m (start! "unsent" "m" port), c (start! "unsent" "~c" port)]
        (try
          (is (sees? c "m"))
          (is (= [:failed :failed [0 0 0]]
                 (mapv #(answer (engine/invoke c "m" (byte-array %))) [1 2 3])))
          (finally (run! engine/close! [c m])))))))

(defn- held-at-first
  "Returns nodes whose first call returns when released is; again is delivered when the node of that
  call looks once more."
  [nodes held again released]
  (let [first-instance (atom nil)]
    (fn [instance]
      (let [found (nodes instance)]
        (cond
          (compare-and-set! first-instance nil instance)
          (do (deliver held true) (deref released 20000 nil))

          (= instance @first-instance) (deliver again true))
        found))))

(deftest a-node-that-joins-while-another-looks-first-is-seen
  (let [[port other] (processes/free-ports 2), seeds [(str "127.0.0.1:" port)]
        [held again released] (repeatedly promise)]
    (with-redefs [hazelcast/nodes (held-at-first @#'hazelcast/nodes held again released)]
      (let [[_ outcome] (gate/start "m0" #(start! "looks" "m0" port))
            _ (is (deref held 20000 false))
            m1 (start! "looks" "m1" other :seeds seeds)
            ;; It looks once more at once, or when its first look is over.
            _ (deref again 1000 nil)
            _ (deliver released true)
            m0 (:value (deref outcome 20000 nil))]
        (try
          (is (sees? m0 "m1"))
          (finally (run! engine/close! [m1 m0])))))))

(deftest ^{:time-limit-ms 120000} a-join-ends-where-a-seed-accepts-connections-and-does-not-answer
  (let [[port silent] (processes/free-ports 2)]
    (with-open [_ (ServerSocket. (int silent) 50 (InetAddress/getByName "127.0.0.1"))]
      (let [e (try
                (start! "silent" "m" port
                        :heartbeat-ms 200 :seeds (mapv #(str "127.0.0.1:" %) [silent port]))
                (catch clojure.lang.ExceptionInfo e e))]
        (is (= :thrum/not-joined (:type (ex-data e))))
        (is (str/includes? (ex-message e) "a seed accepts connections and does not answer"))))))

;; Strangers: processes with Hazelcast and the cluster's name, and without its secret

(def ^:private code "What a stranger wants to have run."
  (partial load-string "(System/setProperty \"thrum.stranger\" \"has run\")"))

(defn- runs?
  "Returns whether a member runs the stranger's code."
  [^HazelcastInstance stranger ^Member member]
  (System/clearProperty "thrum.stranger")
  (let [executor (.getExecutorService stranger "thrum")
        ^Future answer (.submitToMember executor ^Callable code member)]
    (try (.get answer 20 TimeUnit/SECONDS) (catch ExecutionException _))
    (some? (System/getProperty "thrum.stranger"))))

(defn- stranger ^HazelcastInstance [cluster address]
  (let [config (doto (Config.) (.setClusterName cluster)
                 (.setProperty "hazelcast.phone.home.enabled" "false"))
        network (doto (.getNetworkConfig config) (.setPort 9700))
        join (.getJoin network)]
    (-> network .getInterfaces (.setEnabled true) (.addInterface "127.0.0.1"))
    (-> join .getAutoDetectionConfig (.setEnabled false))
    (-> join .getTcpIpConfig (.setEnabled true) (.addMember address))
    (Hazelcast/newHazelcastInstance config)))

(deftest ^{:time-limit-ms 120000} no-member-runs-the-code-of-a-stranger-that-joins
  (let [[port] (processes/free-ports 1), m (start! "strangers" "m0" port)
        stranger (stranger "strangers" (str "127.0.0.1:" port))
        members (.getMembers (.getCluster stranger))
        c (start! "strangers" "~c1" port)]
    (try
      (is (= 2 (count members)))
      (is (false? (runs? stranger (first (remove #(.localMember ^Member %) members)))))
      (is (= [["m0"] ["m0"]] (mapv engine/workers [m c])))
      (finally (run! engine/close! [c m]) (.terminate (.getLifecycleService stranger))))))

(deftest ^{:time-limit-ms 120000} a-stranger-that-leaves-fails-no-wait
  (let [[port other] (processes/free-ports 2), [started go] (repeatedly promise)
        handler (fn [request] (deliver started true) (deref go 60000 nil) request)
        address (str "127.0.0.1:" port)
        m (start! "leaves" "m0" port :handler handler), c (start! "leaves" "~c1" port)
        stranger (stranger "leaves" address)
        waiting (engine/invoke c "m0" (byte-array [7]))]
    (try
      (is (deref started 20000 false))
      (.terminate (.getLifecycleService stranger))
      ;; A node sees the members in their order: the stranger has left when this one is there.
      (let [m1 (start! "leaves" "m1" other :seeds [address])]
        (try
          (is (sees? c "m1"))
          (deliver go true)
          (is (= [7] (answer waiting)))
          (finally (engine/close! m1))))
      (finally (run! engine/close! [c m])))))

(deftest ^{:time-limit-ms 120000} no-client-connects
  (let [[port] (processes/free-ports 1), m (start! "clients" "m0" port)
        config (doto (ClientConfig.) (.setClusterName "clients"))]
    (-> config .getNetworkConfig (.addAddress (into-array [(str "127.0.0.1:" port)])))
    (-> config
        .getConnectionStrategyConfig
        .getConnectionRetryConfig
        (.setClusterConnectTimeoutMillis 1000))
    (try
      (is (= :no-connection
             (try
               (let [client (HazelcastClient/newHazelcastClient config)]
                 (try
                   (runs? client (first (.getMembers (.getCluster client))))
                   (finally (.shutdown client))))
               (catch IllegalStateException _ :no-connection))))
      (finally (engine/close! m)))))
