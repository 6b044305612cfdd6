(ns thrum.repo.peers-test
  "The list of the peers' defects goes over two modules; none is left out between them."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.async.peers-test :as channels]
   [thrum.peers-test :as peers]))

(set! *warn-on-reflection* true)

(deftest the-defects-of-channels-are-tests-of-async
  (is (= peers/of-channels
         (into (set (keys channels/where))
               (mapcat (comp :peer meta))
               (vals (ns-publics 'thrum.async.peers-test))))))
