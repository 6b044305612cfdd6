(ns thrum.cluster.stand-in
  "An engine whose network is an atom: its nodes live in this JVM and can be killed, cut off, muted
  and isolated, and their answers held up."
  (:require
   [thrum.cluster :as cluster]
   [thrum.cluster.spi :as engine])
  (:import
   (java.util.concurrent CompletableFuture)))

(set! *warn-on-reflection* true)

;; A network: {node {:handler f, :state :up, :cut or :dead, :muted? b, :isolated? b}}; beside it the
;; calls under way, and what is called before an answer is sent, with the node and the answer.

(defn network []
  {:nodes (atom {}), :calls (atom {}), :hold (atom (fn [_ _]))})

(defn- state [network node]
  (:state (@(:nodes network) node)))

(defn- up? [network node]
  (= :up (state network node)))

(defn- isolated? [network & nodes]
  (boolean (some #(:isolated? (@(:nodes network) %)) nodes)))

(defn- fail! [^CompletableFuture answer message]
  (.completeExceptionally answer (ex-info message {:type ::silence})))

(defn- deliver!
  "The answer arrives where both ends are there, else never."
  [network {:keys [from to ^CompletableFuture answer]} bytes]
  (when (and (up? network from) (up? network to) (not (isolated? network from to)))
    (.complete answer bytes)))

(defn- serve! [network {:keys [to answer] :as call} request]
  (if-some [handler (:handler (@(:nodes network) to))]
    (if-some [bytes (try (handler request) (catch Throwable _))]
      (do (@(:hold network) to bytes)
          (deliver! network call bytes))
      (fail! answer (str to " could not answer")))
    (fail! answer (str to " has left"))))

(defn- start-call! [{:keys [calls] :as network} {:keys [id] :as call} request]
  (let [thread (.unstarted (Thread/ofVirtual)
                           #(try (serve! network call request) (finally (swap! calls dissoc id))))]
    (swap! calls assoc id (assoc call :thread thread))
    (.start thread)))

(deftype StandIn [network node]
  engine/Engine
  (workers [_]
    (if (up? network node)
      (into [] (comp (filter #(= :up (:state (val %)))) (map key) (filter engine/worker?))
            @(:nodes network))
      []))
  (invoke [_ to request]
    (let [answer (CompletableFuture.)
          call {:id (Object.), :from node, :to to, :answer answer}]
      (cond
        (not (and (up? network node) (up? network to))) (fail! answer "unreachable")
        (:muted? (@(:nodes network) node)) nil
        (isolated? network node to) nil
        :else (start-call! network call request))
      answer))
  (lost? [_ other] (not (up? network other)))
  (close! [_]
    (swap! (:nodes network) dissoc node)
    (doseq [{:keys [from to answer]} (vals @(:calls network)) :when (or (= node from) (= node to))]
      (fail! answer (str node " has left")))))

(defn starter
  "Returns the :engine of join! for nodes on this network."
  [network]
  (fn [{:keys [node handler]}]
    (swap! (:nodes network) assoc node {:handler handler, :state :up})
    (StandIn. network node)))

(defn- calls-to [network node]
  (filter #(= node (:to %)) (vals @(:calls network))))

(defn- silence!
  "The node is out of the cluster: the waits for it fail."
  [network node state]
  (swap! (:nodes network) assoc-in [node :state] state)
  (doseq [{:keys [answer]} (calls-to network node)] (fail! answer (str node " was lost"))))

(defn kill!
  "The node's process dies: what it runs ends at once."
  [network node]
  (silence! network node :dead)
  (doseq [{:keys [^Thread thread]} (calls-to network node)] (.interrupt thread)))

(defn cut!
  "The node is out of the cluster, and goes on with what it runs."
  [network node]
  (silence! network node :cut))

(defn isolate!
  "What the node sends, and what is sent to it, does not arrive from now on; no engine misses it."
  [network node]
  (swap! (:nodes network) assoc-in [node :isolated?] true))

(defn heal!
  "The node is back."
  [network node]
  (swap! (:nodes network) update node assoc :state :up, :isolated? false))

(defn mute!
  "What the node sends from now on does not arrive; no node misses it."
  [network node]
  (swap! (:nodes network) assoc-in [node :muted?] true))

(defn members-up [network]
  (filterv #(and (engine/worker? %) (up? network %)) (keys @(:nodes network))))

(defn join!
  "Returns a node on the network."
  [network options]
  (cluster/join! (assoc options :engine (starter network))))
