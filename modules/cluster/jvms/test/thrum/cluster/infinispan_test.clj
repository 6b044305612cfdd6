(ns thrum.cluster.infinispan-test
  "Infinispan under the contract of engines."
  (:require
   [thrum.cluster.engine-contract :as contract]
   [thrum.cluster.engine.infinispan :as infinispan]))

(set! *warn-on-reflection* true)

(contract/deftests {:start infinispan/start, :gaps #{}})
