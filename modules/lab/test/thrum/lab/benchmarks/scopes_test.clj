(ns thrum.lab.benchmarks.scopes-test
  "The benchmark of scopes, in its forms."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.benchmarks.scopes.experiment :as scopes]))

(set! *warn-on-reflection* true)

(deftest each-form-has-all-sizes
  (let [keys-of #(map (juxt (comp set keys) (comp set keys :calls)) (scopes/jobs %))]
    (is (apply = (concat (keys-of :quick) (keys-of :full))))
    (is (every? seq (mapcat identity (keys-of :full))))))
