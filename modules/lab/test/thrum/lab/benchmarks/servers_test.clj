(ns thrum.lab.benchmarks.servers-test
  "What servers are judged by."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.benchmarks.servers.experiment :as servers]))

(set! *warn-on-reflection* true)

(defn- rounds [& cpu-us]
  (for [us cpu-us] {:cpu-us us, :per-second 1000, :p99-ms 10}))

(def ^:private run
  {:taken {:bare (rounds 5.0 4.0 9.0), :thrum (rounds 6.0 5.5 30.0)}, :heap {:bare 1, :thrum 1}})

(defn- asked
  "Returns the rows of one question, asked of Tomcat."
  [{:keys [question] :as asked}]
  (servers/rows [{:job {:engine :tomcat, :questions [asked]}, :runs [{question run}]}]))

(deftest a-request-costs-cpu-beside-the-bare-engine
  (let [[_ cpu] (asked {:question :cost})]
    (is (= [6.0 5.0 1.2 1.375]
           (map :median [(:thrum cpu) (:bare cpu) (:ratio cpu) (:best cpu)])))
    (is (= [["tomcat cost: CPU x bare, medians" 1.2 1.25]
            ["tomcat cost: CPU x bare, best rounds" 1.375 1.25]
            ["tomcat cost: CPU, us a request" 6.0 nil]]
           (map (juxt :figure :value :at-most) (servers/figures [cpu]))))))

(deftest one-thread-for-a-connection-stands-beside-a-fresh-one-for-each-request
  (let [both (assoc-in run [:taken :reuse] (rounds 4.0 4.5 8.0))
        rows (servers/rows [{:job {:engine :tomcat, :questions [{:question :cost}]}
                             :runs [{:cost both}]}])]
    (is (= [[:cpu nil 6.0 1.2] [:cpu true 4.5 0.9]]
           (for [{:keys [figure reuse? thrum ratio]} rows :when (= :cpu figure)]
             [figure reuse? (:median thrum) (:median ratio)])))
    (is (= ["tomcat cost: CPU x bare, medians" "tomcat, reused threads, cost: CPU x bare, medians"]
           (filter #(re-find #"medians" %) (map :figure (servers/figures rows)))))))

(deftest a-load-on-processors-of-its-own-has-the-same-goals
  (let [[_ cpu] (asked {:question :apart, :halves [[0] [1]]})]
    (is (= [["tomcat apart: CPU x bare, medians" 1.2 1.25]
            ["tomcat apart: CPU x bare, best rounds" 1.375 1.25]
            ["tomcat apart: CPU, us a request" 6.0 nil]]
           (map (juxt :figure :value :at-most) (servers/figures [cpu]))))))

(deftest many-connections-have-goals-too
  (let [rows (asked {:question :many, :connections 4000, :sleep-ms 50})]
    (is (= [["tomcat many: requests/s" 1000.0 30000 nil] ["tomcat many: p99 x bare" 1.0 nil 1.05]]
           (map (juxt :figure :value :at-least :at-most) (servers/figures rows))))))

(deftest the-best-engine-stands-beside-the-best-peer
  (let [asked {:question :cost}
        peer {:taken {:peer (rounds 4.0 5.0 3.0)}}
        rows (servers/rows [{:job {:engine :tomcat, :questions [asked]}, :runs [{:cost run}]}
                            {:job {:peer 'my/slow, :questions [asked]}
                             :runs [{:cost {:taken {:peer (rounds 50.0)}}}]}
                            {:job {:peer 'my/fast, :questions [asked]}, :runs [{:cost peer}]}])]
    (is (= [['my/fast :cpu 4.0]]
           (for [{:keys [peer figure bare]} rows :when (= ['my/fast :cpu] [peer figure])]
             [peer figure (:median bare)])))
    (is (= ["cost: CPU, the best x the best peer's" 1.5 1.1]
           ((juxt :figure :value :at-most) (last (servers/figures rows)))))))
