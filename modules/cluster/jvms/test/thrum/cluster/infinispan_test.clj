(ns thrum.cluster.infinispan-test
  "Infinispan under the contract of engines."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.cluster.engine-contract :as contract]
   [thrum.cluster.engine.infinispan :as infinispan]
   [thrum.cluster.engine.jgroups :as jgroups]))

(set! *warn-on-reflection* true)

(contract/deftests {:start infinispan/start, :gaps #{}})

(deftest seeds-are-addresses-of-both-protocols
  (is (str/includes? (jgroups/stack {:seeds ["h:7800" "[::1]:7801"], :heartbeat-ms 3000})
                     "\"h[7800],::1[7801]\"")))
