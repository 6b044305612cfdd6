(ns thrum.lab.run-test
  "In which order a plan is run."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.run :as run]))

(def ^:private idle
  (reify experiment/Experiment
    (plan [_ _ _])
    (open! [_] {:close! (constantly nil)})
    (sample! [_ _ _ _ _] {:ms 1.0})))

(defn- order
  "Returns the contenders of the samples of one part, in the order in which they were taken."
  [part]
  (let [taken (atom []), rows [{:contender :a, :repeat 3} {:contender :b, :repeat 2}]
        note (fn [{:keys [event row]}] (when (= :sample-starts event) (swap! taken conj (:contender row))))]
    (run/run! {:idle idle} [{:experiment :idle, :parts [(assoc part :contenders rows)]}] note)
    @taken))

(deftest rows-are-run-one-after-the-other-or-in-turns
  (is (= [:a :a :a :b :b] (order {:part :p})))
  (is (= [:a :b :a :b :a] (order {:part :p, :in-turns? true}))))

(deftest an-experiment-that-cannot-be-opened-is-skipped-with-the-reason
  (let [closed (atom 0), events (atom [])
        unable (reify experiment/Experiment
                 (plan [_ _ _])
                 (open! [_] {:skipped "Maven failed", :close! #(swap! closed inc)})
                 (sample! [_ _ _ _ _] (throw (AssertionError.))))
        done (run/run! {:x unable} [{:experiment :x, :parts [{:part :p, :contenders [{:contender :a, :repeat 1}]}]}] #(swap! events conj %))]
    (is (= ["Maven failed"] (map :skipped (:parts (first done)))))
    (is (= [:experiment-starts :experiment-skipped] (map :event @events)))
    (is (= 1 @closed))))
