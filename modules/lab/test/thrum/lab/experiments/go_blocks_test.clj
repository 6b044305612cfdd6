(ns thrum.lab.experiments.go-blocks-test
  "What the experiment plans, and what it leaves out."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiments.go-blocks.experiment :as go-blocks]
   [thrum.lab.run :as run]))

(def ^:private checkout {:cpus 2, :checkout "thrum"})
(def ^:private jars {:cpus 2})

(defn- plan [options facts]
  ((:plan go-blocks/experiment) options facts))

(defn- rows [plan]
  (:contenders (first (:parts plan))))

(deftest the-quick-form-is-planned-to-end-within-a-minute
  (let [plan (plan {} checkout)]
    (is (< 30000 (experiment/estimate-ms plan) 60000))
    (is (= #{1} (set (map :repeat (rows plan)))))
    (is (= #{1000.0} (set (map :limit-line-ms (rows plan)))))))

(deftest the-full-form-runs-each-three-times-in-turns
  (is (= #{3} (set (map :repeat (rows (plan {:full true} checkout))))))
  (is (true? (:in-turns? (first (:parts (plan {:full true} checkout)))))))

(deftest the-published-figures-stand-beside-the-releases-that-they-are-of
  (is (= {:go-target [25 3652.99125], :go-avoid [107 4712.404833]}
         (into {} (for [{:keys [contender published]} (rows (plan {} checkout)) :when published]
                    [contender ((juxt :threads :ms) published)])))))

(deftest outside-of-a-checkout-the-alpha-is-skipped-and-nothing-else
  (let [plan (plan {} jars)]
    (is (= [:go-target :go-avoid] (map :contender (filter :skipped (rows plan)))))
    (is (str/includes? (:skipped (first (rows plan))) "checkout"))
    (is (nil? (:not-counted plan)))
    (is (< (experiment/estimate-ms plan)
           (experiment/estimate-ms (thrum.lab.experiments.go-blocks-test/plan {} checkout))))))

(deftest a-class-path-that-cannot-be-had-skips-the-row
  (let [env {:alpha (delay {:problem "no network"})}]
    (is (= {:row {:skipped "no network"}}
           ((:sample! go-blocks/experiment) env
            {}
            (first (rows (plan {} checkout)))
            (constantly nil))))))

(def ^:private one-row
  {:open! (constantly {})
   :sample! (fn [_ _ {:keys [contender]} _]
              (case contender
                :no-checkout (throw (AssertionError. "This row must not run"))
                :no-network {:row {:skipped "no network"}}
                :there {:ms 1.0}))})

(deftest a-skipped-row-is-not-run-and-has-no-figures
  (let [plan {:experiment :x
              :parts [{:part :p
                       :contenders [{:contender :no-checkout, :skipped "no checkout", :repeat 1}
                                    {:contender :no-network, :repeat 1}
                                    {:contender :there, :repeat 1}]}]}]
    (is (= [[:no-checkout :skipped nil nil] [:no-network :skipped nil nil] [:there :done 1.0 1]]
           (map (juxt :contender :verdict
                      :median-ms (comp #(some-> %
                                                count)
                                       :samples))
                (rows (first (run/run! {:x one-row} [plan] (constantly nil)))))))))
