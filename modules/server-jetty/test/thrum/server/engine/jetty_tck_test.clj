(ns thrum.server.engine.jetty-tck-test
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server :as server]
   [thrum.server.tck :as tck]))

(set! *warn-on-reflection* true)

(deftest jetty-keeps-every-promise-of-the-contract
  (let [outcomes (tck/run server/run-server {:options {:engine :jetty}})]
    (is (< 100 (count outcomes)))
    (is (= [] (filter #(= :failed (:outcome %)) outcomes)))
    (is (= [] (filter #(= :refused (:outcome %)) outcomes)))))
