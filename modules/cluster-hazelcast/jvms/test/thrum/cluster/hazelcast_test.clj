(ns thrum.cluster.hazelcast-test
  "Hazelcast under the contract of engines. Its edition without a licence has no TLS."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.cluster.engine-contract :as contract]
   [thrum.cluster.engine.hazelcast :as hazelcast]
   [thrum.cluster.processes :as processes]
   [thrum.cluster.spi :as engine]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.util.concurrent CompletableFuture TimeUnit)))

(set! *warn-on-reflection* true)

(contract/deftests {:start hazelcast/start, :gaps #{:tls :dns}})

(deftest an-answer-finds-its-node-where-the-view-is-behind
  (let [[port] (processes/free-ports 1)
        start #(hazelcast/start {:cluster "behind", :node %, :handler identity, :host "127.0.0.1"
                                 :port (when (engine/worker? %) port)
                                 :seeds [(str "127.0.0.1:" port)], :heartbeat-ms 3000})
        m (with-redefs [hazelcast/follow! (fn [_ _ _])] (start "m"))
        c (start "~c")]
    (try
      (is (gate/eventually 20000 #(not (engine/lost? c "m"))))
      (let [^CompletableFuture answer (engine/invoke c "m" (byte-array [7]))]
        (is (= [7] (vec (.get answer 20 TimeUnit/SECONDS)))))
      (finally (run! engine/close! [c m])))))
