(ns thrum.cluster.engine.hazelcast
  "Hazelcast, embedded, as the engine of a cluster, on loopback alone: its edition without a licence
  has no TLS. A caller is a lite member. Use it as {:engine thrum.cluster.engine.hazelcast/start}.

  A request is a message to the member, and its answer another one back, so that no thread of
  Hazelcast's waits for what a virtual thread runs."
  (:require
   [clojure.string :as str]
   [thrum.cluster.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (com.hazelcast.cluster Member MembershipEvent MembershipListener)
   (com.hazelcast.config ClassFilter Config JavaSerializationFilterConfig JoinConfig SerializerConfig ServerSocketEndpointConfig)
   (com.hazelcast.core ExecutionCallback Hazelcast HazelcastInstance HazelcastInstanceNotActiveException)
   (com.hazelcast.internal.util ConcurrencyUtil)
   (com.hazelcast.nio ObjectDataInput ObjectDataOutput)
   (com.hazelcast.nio.serialization StreamSerializer)
   (java.net Inet6Address InetAddress)
   (java.util.concurrent Callable CompletableFuture ConcurrentHashMap ForkJoinPool)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

;; Messages. receive!: what the node that reads one does with it; content: nil where the node could
;; not answer.

(deftype Message [receive! request? from id ^bytes content]
  Callable
  (call [this] (receive! this) nil))

(def ^:private ^:const message-type "Any number of our own." 7001)

(defn- serializer
  "Returns what carries messages, and nothing else: no class is loaded by name."
  [receive!]
  (reify StreamSerializer
    (getTypeId [_] message-type)
    (write [_ out x]
      (let [^Message message x]
        (doto ^ObjectDataOutput out
          (.writeBoolean (.-request? message))
          (.writeString (.-from message))
          (.writeLong (.-id message))
          (.writeByteArray (.-content message)))))
    (read [_ in]
      (let [^ObjectDataInput in in]
        (Message. receive! (.readBoolean in) (.readString in) (.readLong in) (.readByteArray in))))
    (destroy [_])))

;; The configuration

(def ^:private executor-name "thrum")
(def ^:private node-attribute "thrum.node")
(def ^:private first-caller-port 7900)

(def ^:private ^:const least-join-s
  "How long a join may take, beside the time in which a frozen member is lost."
  20)

(defn- seconds ^long [^long ms]
  (quot (+ 999 ms) 1000))

(defn- properties [{:keys [host heartbeat-ms]}]
  {"hazelcast.phone.home.enabled" false
   "hazelcast.prefer.ipv4.stack" (not (instance? Inet6Address (InetAddress/getByName host)))
   "hazelcast.socket.bind.any" false
   "hazelcast.socket.client.bind.any" false
   "hazelcast.shutdownhook.enabled" false
   "hazelcast.wait.seconds.before.join" 0
   "hazelcast.heartbeat.interval.seconds" 1
   "hazelcast.max.no.heartbeat.seconds" (max 2 (seconds heartbeat-ms))
   "hazelcast.max.join.seconds" (+ (long least-join-s) (seconds heartbeat-ms))
   "hazelcast.merge.first.run.delay.seconds" 5
   "hazelcast.merge.next.run.delay.seconds" 5})

(defn- seed
  "Returns an address, host:port or [IPv6 address]:port, as Hazelcast reads it."
  [address]
  (str/replace address #"^([^\[\]]*:[^\[\]]*):(\d+)$" "[$1]:$2"))

(defn- join-by-seeds! [^JoinConfig join seeds]
  (-> join .getAutoDetectionConfig (.setEnabled false))
  (-> join .getMulticastConfig (.setEnabled false))
  (doto (.getTcpIpConfig join)
    (.setEnabled true)
    (.setConnectionTimeoutSeconds 1)
    (.setMembers (java.util.ArrayList. ^java.util.Collection (mapv seed seeds)))))

;; The advanced network has a port for members, and none for clients, for REST or for memcache.
(defn- network! [^Config config {:keys [host port seeds]}]
  (let [members (ServerSocketEndpointConfig.), network (.getAdvancedNetworkConfig config)]
    (.setPort members (or port first-caller-port))
    (.setPortAutoIncrement members (nil? port))
    (.setPortCount members 999)
    (-> members .getInterfaces (.setEnabled true) (.addInterface host))
    (.setEnabled network true)
    (.setMemberEndpointConfig network members)
    (join-by-seeds! (.getJoin network) seeds)))

;; Functions of Clojure are java.io.Serializable, and what an executor is sent it calls: reading one
;; would be running it. These classes are what Hazelcast itself sends so: a change of the cluster's
;; state, without which a part of several nodes never merges again, and why an operation has failed.
(def ^:private serialized-by-java
  ["com.hazelcast.cluster.ClusterState" "java.lang.Enum"
   "com.hazelcast.core.HazelcastException"
   "com.hazelcast.core.HazelcastInstanceNotActiveException"
   "com.hazelcast.core.MemberLeftException"
   "com.hazelcast.core.OperationTimeoutException"
   "com.hazelcast.nio.serialization.HazelcastSerializationException"
   "java.io.IOException"
   "java.lang.Error" "java.lang.Exception" "java.lang.IllegalArgumentException"
   "java.lang.IllegalStateException" "java.lang.NullPointerException" "java.lang.OutOfMemoryError"
   "java.lang.RuntimeException" "java.lang.SecurityException" "java.lang.StackTraceElement"
   "java.lang.Throwable" "java.lang.VirtualMachineError"
   "java.util.ArrayList" "java.util.CollSer" "java.util.Collections$EmptyList"
   "java.util.concurrent.ExecutionException"
   "java.util.concurrent.RejectedExecutionException"
   "java.util.concurrent.TimeoutException"
   "[Ljava.lang.StackTraceElement;" "[Ljava.lang.Throwable;"])

(def ^:private java-serialization
  (doto (JavaSerializationFilterConfig.)
    (.setDefaultsDisabled true)
    (.setWhitelist (doto (ClassFilter.)
                     (.addClasses (into-array String serialized-by-java))
                     (.addPrefixes (into-array ["com.hazelcast.spi.exception."]))))))

(defn- configuration
  ^Config [{:keys [cluster node] :as settings} receive!]
  (let [config (doto (Config.)
                 (.setClusterName cluster)
                 (.setLiteMember (not (engine/worker? node)))
                 (network! (update settings :host #(.getHostAddress (InetAddress/getByName %)))))]
    (doseq [[k v] (properties settings)] (.setProperty config k (str v)))
    (-> config .getMemberAttributeConfig (.setAttribute node-attribute node))
    (-> config .getMetricsConfig (.setEnabled false))
    (doto (.getSerializationConfig config)
      (.setJavaSerializationFilterConfig java-serialization)
      (.addSerializerConfig (doto (SerializerConfig.)
                              (.setTypeClass Message)
                              (.setImplementation (serializer receive!)))))
    config))

;; The members

(defn- nodes
  "Returns the member by node. A member of Hazelcast that has no name of ours is none."
  [^HazelcastInstance instance]
  (into {} (keep #(when-some [node (.getAttribute ^Member % node-attribute)] [node %]))
        (.getMembers (.getCluster instance))))

(defn- view [nodes]
  {:nodes nodes, :workers (filterv engine/worker? (keys nodes))})

(defn- lost [node]
  (ex-info (str "The node " node " is not in the cluster") {:type :thrum/lost, :member node}))

(defn- unanswered [node]
  (ex-info (str "The node " node " could not answer") {:type :thrum/lost, :member node}))

;; waiting: id -> [node, CompletableFuture of its answer]
(defn- fail!
  "Fails the waits for the nodes for which pred holds."
  [^ConcurrentHashMap waiting pred]
  (doseq [[id [to ^CompletableFuture answer]] waiting :when (pred to)]
    (.remove waiting id)
    (.completeExceptionally answer (lost to))))

(defn- follow!
  "Keeps the view as the members come and go, and fails the waits for those that have gone."
  [^HazelcastInstance instance current waiting]
  ;; One look at a time: else the first, on this thread, could put an older view over a newer.
  (let [look! #(locking current (reset! current (view (nodes instance))))]
    (-> instance
        .getCluster
        (.addMembershipListener
          (reify MembershipListener
            (memberAdded [_ _] (look!))
            (memberRemoved [_ event]
              (look!)
              (fail! waiting #{(.getAttribute (.getMember ^MembershipEvent event)
                                              node-attribute)})))))
    (look!)))

;; The engine

(defn- send! [^HazelcastInstance instance member message on-failure]
  (.submitToMember (.getExecutorService instance executor-name)
                   ^Callable message
                   ^Member member
                   (reify ExecutionCallback
                     (onResponse [_ _])
                     (onFailure [_ t] (on-failure t)))))

(deftype Hz [^HazelcastInstance instance node current ^ConcurrentHashMap waiting ^AtomicLong ids]
  engine/Engine
  (workers [_] (:workers @current))
  (invoke [_ to request]
    (let [answer (CompletableFuture.), id (.incrementAndGet ids)]
      (if-some [member (get-in @current [:nodes to])]
        (do
          (.put waiting id [to answer])
          (.whenComplete answer (fn [_ _] (.remove waiting id)))
          (send! instance
                 member
                 (Message. nil true node id request)
                 #(.completeExceptionally answer %)))
        (.completeExceptionally answer (lost to)))
      answer))
  (lost? [_ other] (not (contains? (:nodes @current) other)))
  (close! [_]
    (.terminate (.getLifecycleService instance))
    (fail! waiting any?)))

(defn- member-of
  "Returns the node's member, or nil where it is not in the cluster; the view may be behind it."
  [instance current node]
  (or (get-in @current [:nodes node]) (get (nodes instance) node)))

;; There is none for a node that has left. Where it cannot be sent, as without memory for it, the
;; node is sent that there is none: it would wait for good.
(defn- send-answer! [instance current ^Message request node answer]
  (let [send-back! (fn [content on-failure]
                     (when-some [member (member-of instance current (.-from request))]
                       (send! instance
                              member
                              (Message. nil false node (.-id request) content)
                              on-failure)))
        send-none! (fn [_] (send-back! nil identity))]
    (try
      (send-back! answer send-none!)
      (catch HazelcastInstanceNotActiveException _)
      (catch Throwable t (send-none! t)))))

;; A request may come while this node's instance still starts: its answer waits for that. There is
;; none where the start has failed.
(defn- answer!
  "Serves the request on a virtual thread of its own, and sends the answer."
  [instance current handler ^Message message node]
  (Thread/startVirtualThread
    (fn []
      (let [answer (try (handler (.-content message)) (catch Throwable _))]
        (when-some [instance @instance]
          (send-answer! instance current message node answer))))))

(defn- receiver [{:keys [node handler]} instance current ^ConcurrentHashMap waiting]
  (fn [^Message message]
    (if (.-request? message)
      (answer! instance current handler message node)
      (when-some [[_ ^CompletableFuture answer] (.remove waiting (.-id message))]
        (if-some [content (.-content message)]
          (.complete answer content)
          (.completeExceptionally answer (unanswered (.-from message))))))))

;; Joining

(defn- check! [{:keys [host tls dns]}]
  (when (or tls (not (.isLoopbackAddress (InetAddress/getByName host))))
    (throw (spi/invalid (str "Hazelcast has TLS in its Enterprise edition alone, so a cluster on it"
                             " stays on loopback, without :tls; off loopback use Infinispan")
             {:option (if tls :tls :host), :value (if tls :tls host)
              :accepts "a loopback address, without :tls"})))
  (when dns
    (throw (spi/invalid "Members of a cluster on Hazelcast are found by :seeds, not by :dns"
             {:option :dns, :value dns, :accepts "nothing, with Hazelcast"}))))

(defn- reason
  "Returns what Hazelcast says of a failed start, as a sentence's end."
  [message]
  (condp #(str/includes? %2 %1) message
    "is already in use" "the port is in use"
    "Node failed to start" (str "no node at the :seeds has taken it in in time, as where a seed"
                                " accepts connections and does not answer")
    message))

(defn- not-joined [{:keys [host port]} ^Throwable t]
  (ex-info (str "The cluster could not be joined at " host (some->> port (str ":")) ": "
                (reason (str (ex-message t))))
           {:type :thrum/not-joined, :host host, :port port}
           t))

;; Where the JVM has one processor or two, Hazelcast starts a platform thread for the end of each
;; message: messages end later than they are sent, and pile up. With more it has a pool, as here.
(def ^:private pool
  (delay (ConcurrencyUtil/setDefaultAsyncExecutor
           (ForkJoinPool. 2 ForkJoinPool/defaultForkJoinWorkerThreadFactory nil true))))

(defn- pool-instead-of-threads! []
  (when (< (ForkJoinPool/getCommonPoolParallelism) 2) @pool))

(defn start
  "Starts the engine; see thrum.cluster.spi. Throws :thrum/invalid off loopback, with :tls or with
  :dns, and :thrum/not-joined."
  [settings]
  (check! settings)
  (pool-instead-of-threads!)
  (let [instance (promise), current (atom (view {})), waiting (ConcurrentHashMap.)
        receive! (receiver settings instance current waiting)]
    (try
      ;; Not waited for in the promise: on an interrupted thread that throws.
      (let [started (Hazelcast/newHazelcastInstance (configuration settings receive!))]
        (deliver instance started)
        (follow! started current waiting)
        (Hz. started (:node settings) current waiting (AtomicLong.)))
      (catch RuntimeException e
        (throw (not-joined settings e)))
      (finally (deliver instance nil)))))
