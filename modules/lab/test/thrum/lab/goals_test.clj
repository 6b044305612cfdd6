(ns thrum.lab.goals-test
  "Figures beside their goals and those of the last release."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.goals :as goals]))

(set! *warn-on-reflection* true)

(deftest a-goal-is-met-at-its-bound
  (are [met figure] (= met (goals/met? figure))
    true {:value 1.2, :at-most 1.2}
    false {:value 1.21, :at-most 1.2}
    true {:value 0.9, :at-least 0.9}
    false {:value 0.89, :at-least 0.9}
    nil {:value 3}))

(def ^:private figures
  [{:figure "a", :value 1.1, :at-most 1.2, :cpu? true}
   {:figure "b", :value 1.5, :at-most 1.2, :cpu? true}
   {:figure "c", :value 2000, :at-least 1000}
   {:figure "d", :value 20}])

(deftest the-table-shows-goal-verdict-and-last-release
  (is (= ["figure   here      goal           last release  change"
          "a        1.10   <= 1.20  met              1.00   +10 %"
          "b        1.50   <= 1.20  NOT MET          1.20   +25 %"
          "c       2,000  >= 1,000  met             1,000  +100 %"
          "d       20.00"
          ""
          "2 of 3 goals are met."
          "CHANGED: b, +25 % against the last release"]
         (str/split-lines
           (goals/report figures nil {:figures {"a" 1.0, "b" 1.2, "c" 1000}})))))

(deftest another-machine-of-the-last-release-is-named
  (let [here {:cpu "A", :cpus 2, :load 1.0}
        said #(str/includes? (goals/report (take 1 figures) here {:machine %})
                             "The last release was measured on another machine: ")]
    (is (str/ends-with? (goals/report (take 1 figures) here {:machine {:cpu "B", :cpus 4}})
                        "machine: B, 4 processors."))
    (is (said {:cpu "A", :cpus 4}))
    (is (not (said {:cpu "A", :cpus 2, :load 2.0})))
    (is (not (said nil)))))

(deftest a-cost-that-has-fallen-has-changed-too
  (is (str/ends-with? (goals/report (take 1 figures) nil {:figures {"a" 1.3}})
                      "CHANGED: a, -15 % against the last release"))
  (is (not (str/includes? (goals/report (take 1 figures) nil {:figures {"a" 1.29}}) "CHANGED"))))

(deftest without-figures-there-is-no-table
  (is (nil? (goals/report [] nil {:figures {"a" 1}}))))

(defn- judged
  "Returns the figures of a run of one benchmark, whose JVMs have measured these."
  [size measured]
  (let [experiment (benchmark/experiment
                     {:name :bench/x
                      :jobs (constantly [{:limit 8}])
                      :rows (fn [[{:keys [job runs]}]] [(assoc job :all runs)])
                      :figures (fn [rows] (for [{:keys [limit all]} rows]
                                            {:figure (str "x " limit), :value (reduce + all)}))})
        plan ((:plan experiment) {:quick (= :quick size)} {})
        samples (map #(hash-map :figures %) measured)]
    (goals/figures {:bench/x experiment}
                   {:experiments [(assoc-in plan [:parts 0 :contenders 0 :samples] samples)]})))

(deftest figures-are-those-of-the-rows-of-each-benchmark
  (is (= [{:figure "x 8", :value 3}] (judged :full [1 2])))
  (is (= [] (judged :full [])) "no JVM has measured anything")
  (is (= [] (judged :quick [1 2])) "the quick form measures nothing"))
