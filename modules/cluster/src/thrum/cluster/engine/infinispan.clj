(ns thrum.cluster.engine.infinispan
  "Infinispan, embedded, as the engine of a cluster: JGroups over TCP for membership and failure
  detection, its ClusterExecutor, which runs on virtual threads, for requests."
  (:require
   [thrum.cluster.engine.jgroups :as jgroups]
   [thrum.cluster.spi :as engine])
  (:import
   (java.net BindException)
   (java.util Collections)
   (java.util.concurrent CompletableFuture TimeUnit)
   (java.util.function Function)
   (org.infinispan.commons.dataconversion MediaType)
   (org.infinispan.commons.io ByteBufferImpl)
   (org.infinispan.commons.marshall BufferSizePredictor Marshaller)
   (org.infinispan.configuration.global GlobalConfiguration GlobalConfigurationBuilder)
   (org.infinispan.factories GlobalComponentRegistry)
   (org.infinispan.manager ClusterExecutor DefaultCacheManager)
   (org.infinispan.remoting.transport Address Transport)
   (org.infinispan.remoting.transport.jgroups JGroupsTransport)
   (org.infinispan.util.function TriConsumer)))

(set! *warn-on-reflection* true)

;; A request, as Infinispan carries it: a function of the manager, run on the member. A throwable
;; would not be carried back, so no answer, ::none, is one too.

(deftype Request [handler ^bytes content]
  Function
  (apply [_ _manager] (try (handler content) (catch Throwable _ ::none))))

(def ^:private predictor
  (reify BufferSizePredictor
    (nextSize [_ _] 512)
    (recordSize [_ _])))

(def ^:private ^:const answer-mark 0)
(def ^:private ^:const request-mark 1)
(def ^:private ^:const none-mark 2)

(defn- marked ^bytes [mark ^bytes content]
  (let [bytes (byte-array (inc (alength content)))]
    (aset bytes 0 (byte mark))
    (System/arraycopy content 0 bytes 1 (alength content))
    bytes))

(defn- bytes-of
  "Returns a request, or an answer, as bytes."
  ^bytes [x]
  (cond
    (instance? Request x) (marked request-mark (.-content ^Request x))
    (= ::none x) (marked none-mark (byte-array 0))
    :else (marked answer-mark x)))

(defn- of-bytes
  "Returns the request, which the handler serves, or the answer."
  [handler ^bytes bytes from length]
  (let [content (java.util.Arrays/copyOfRange bytes (int (inc from)) (int (+ from length)))]
    (condp = (long (aget bytes from))
      request-mark (Request. handler content)
      none-mark ::none
      content)))

(defn- marshaller
  "Returns what carries requests and answers, and nothing else: no class is loaded by name."
  [handler]
  (reify Marshaller
    (objectToByteBuffer [_ x] (bytes-of x))
    (objectToByteBuffer [_ x _size] (bytes-of x))
    (objectToBuffer [_ x] (ByteBufferImpl/create (bytes-of x)))
    (objectFromByteBuffer [_ bs] (of-bytes handler bs 0 (alength ^bytes bs)))
    (objectFromByteBuffer [_ bs offset length] (of-bytes handler bs offset length))
    (isMarshallable [_ x] (or (instance? Request x) (bytes? x) (= ::none x)))
    (getBufferSizePredictor [_ _] predictor)
    (mediaType [_] MediaType/APPLICATION_OCTET_STREAM)))

;; The manager

(defn- configuration
  ^GlobalConfiguration [{:keys [cluster node handler] :as settings}]
  (let [builder (GlobalConfigurationBuilder.)]
    (-> builder
        .transport
        .defaultTransport
        (.clusterName cluster)
        (.nodeName node)
        ;; A part of the address: known wherever the address is.
        (.machineId node)
        (.addProperty JGroupsTransport/CHANNEL_CONFIGURATOR (jgroups/configurator settings)))
    (-> builder .serialization (.marshaller (marshaller handler)))
    (-> builder .jmx .disable)
    (-> builder
        .shutdown
        (.hookBehavior org.infinispan.configuration.global.ShutdownHookBehavior/DONT_REGISTER))
    (.build builder)))

(defn- not-joined [{:keys [host port]} ^Throwable t]
  (let [causes (take-while some? (iterate ex-cause t))
        taken? (some #(instance? BindException %) causes)
        root (last causes)]
    (ex-info (str "The cluster could not be joined at " host (some->> port (str ":")) ": "
                  (if taken?
                    "the port is in use"
                    (or (ex-message root) (.getName (class root)))))
             {:type :thrum/not-joined, :host host, :port port}
             t)))

;; The engine

(defn- nodes
  "Returns the address by node."
  [^Transport transport]
  (into {} (map (juxt #(.getMachineId ^Address %) identity)) (.getMembers transport)))

(defn- view
  "Returns {:id n, :nodes {node address}, :workers [node ...]}, from the cache while the view is the
  same."
  [^Transport transport cache]
  (let [id (.getViewId transport), known @cache]
    (if (= id (:id known))
      known
      (let [nodes (nodes transport)]
        (reset! cache {:id id, :nodes nodes, :workers (filterv engine/worker? (keys nodes))})))))

(defn- no-such-node [node]
  (ex-info (str "The node " node " is not in the cluster") {:type :thrum/lost, :member node}))

(defn- unanswered [^Address address]
  (let [node (.getMachineId address)]
    (ex-info (str "The node " node " could not answer") {:type :thrum/lost, :member node})))

(defn- hand-over
  "Returns what completes the future with a member's answer."
  [^CompletableFuture answer]
  (reify TriConsumer
    (accept [_ address result failure]
      (cond
        failure (.completeExceptionally answer failure)
        (= ::none result) (.completeExceptionally answer (unanswered address))
        :else (.complete answer result)))))

(defn- submit! [^ClusterExecutor executor ^Address address request]
  (let [answer (CompletableFuture.)]
    (-> executor
        (.filterTargets (Collections/singletonList address))
        (.submitConsumer ^Function request ^TriConsumer (hand-over answer))
        ;; Where the consumer was never called.
        (.whenComplete (fn [_ t] (when t (.completeExceptionally answer t)))))
    answer))

(deftype Infinispan [^DefaultCacheManager manager ^Transport transport executor cache]
  engine/Engine
  (workers [_] (:workers (view transport cache)))
  (invoke [_ node request]
    (if-some [address (get-in (view transport cache) [:nodes node])]
      (submit! executor address (Request. nil request))
      (CompletableFuture/failedFuture (no-such-node node))))
  (lost? [_ node] (not (contains? (:nodes (view transport cache)) node)))
  (close! [_] (.close manager)))

(defn- started [^DefaultCacheManager manager]
  (.start manager)
  (Infinispan. manager
               (GlobalComponentRegistry/componentOf manager Transport)
               (-> (.executor manager) .singleNodeSubmission (.timeout 365 TimeUnit/DAYS))
               (atom nil)))

(defn start
  "Starts the engine; see thrum.cluster.spi. Throws :thrum/not-joined."
  [settings]
  (let [manager (DefaultCacheManager. (configuration settings) false)]
    (try
      (started manager)
      (catch Exception e
        (try (.close manager) (catch Exception _))
        (throw (not-joined settings e))))))
