(ns thrum.cluster.hazelcast-test
  "Hazelcast under the contract of engines. Its edition without a licence has no TLS."
  (:require
   [thrum.cluster.engine-contract :as contract]
   [thrum.cluster.engine.hazelcast :as hazelcast]))

(set! *warn-on-reflection* true)

(contract/deftests {:start hazelcast/start, :gaps #{:tls :dns}})
