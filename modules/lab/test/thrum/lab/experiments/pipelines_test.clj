(ns thrum.lab.experiments.pipelines-test
  "What the experiment plans."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiments.pipelines.experiment :as pipelines]))

(defn- plan [options]
  ((:plan pipelines/experiment) options {}))

(defn- figures [figure plan]
  (into {} (map (juxt :contender figure)) (:contenders (first (:parts plan)))))

(deftest the-quick-form-is-planned-to-end-within-a-minute
  (is (< 20000 (experiment/estimate-ms (plan {})) 60000)))

(deftest the-limit-line-is-of-what-runs-at-once
  (is (= {:core-pipeline 1000.0, :core-pipeline-blocking 1000.0, :core-pipeline-async 965.0
          :thrum-pipeline-blocking 1000.0, :thrum-pipeline-fn 1000.0, :thrum-upipeline 1000.0}
         (figures :limit-line-ms (plan {})))
      "core.async's pipeline-async runs two more than it is asked for"))

(deftest the-full-form-runs-each-three-times
  (is (= #{3} (set (vals (figures :repeat (plan {:full true})))))))
