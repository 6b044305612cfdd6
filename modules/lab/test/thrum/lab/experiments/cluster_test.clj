(ns thrum.lab.experiments.cluster-test
  "The plan of the experiment, and what it measures without members of a cluster."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiments.cluster.calls :as calls]
   [thrum.lab.experiments.cluster.experiment :as cluster]
   [thrum.lab.measure :as measure]
   [thrum.lab.result :as result]
   [thrum.lab.run :as run]))

(set! *warn-on-reflection* true)

(defn- plan [folder]
  ((:plan cluster/experiment) {} {:checkout folder}))

(deftest the-plan-is-of-two-minutes
  (is (< (experiment/estimate-ms (plan "/x")) 120000)))

(deftest without-a-checkout-it-is-skipped
  (let [ran (run/run! {:cluster cluster/experiment} [(plan nil)] (constantly nil))]
    (is (re-find #"no|none" (get-in ran [0 :parts 0 :skipped])))
    (is (= 0 (result/exit-code {:experiments ran})))))

(deftest without-members-it-is-the-map-of-this-jvm
  (let [{:keys [ms cpu-times gap-ms]} (calls/sample {:members 0, :n 10, :limit 5, :nap-ms 20
                                                     :computes 2, :compute-ms 1})]
    (is (<= 40 ms))
    (is (pos? cpu-times))
    (is (nil? gap-ms))))

(deftest the-gap-is-that-after-the-kill
  (let [killed (atom 0)
        now (atom 0)
        pause (fn [i ms] (lazy-seq (swap! now + ms) [i]))
        gap (fn [pauses]
              (let [results (mapcat pause (range 9) pauses)]
                (#'calls/longest-gap-ms results 9 #(swap! killed inc))))]
    (with-redefs [measure/now-ms #(deref now)]
      (is (= 20.0 (gap [0 0 0 0 20 0 0 0 0])))
      (is (= 0.0 (gap [200 0 0 0 0 0 0 0 0]))))
    (is (= 2 @killed))))
