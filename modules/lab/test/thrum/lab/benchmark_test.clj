(ns thrum.lab.benchmark-test
  "The pure parts of benchmarks against values known by hand, and two of them from end to end."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.benchmarks.sleeps.list-scheduling :as list-scheduling]
   [thrum.lab.benchmarks.stream.experiment :as stream]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.report.html :as report.html]
   [thrum.lab.report.text :as report.text]
   [thrum.lab.result :as result]
   [thrum.lab.run :as run]
   [thrum.lab.stats :as stats]
   [thrum.lab.table :as table]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

;; The limit line

(deftest list-scheduling-agrees-with-known-values
  (are [makespan limit durations] (= makespan (list-scheduling/makespan limit durations))
    0 4 []
    5 4 [5]
    6 1 [1 2 3]
    3 3 [1 2 3]
    4 2 [1 2 3]
    4 2 [2 1 1 2 0 0]
    ;; Graham's example: the long one last costs 2 - 1/3 of the best, 3.
    5 3 [1 1 1 1 1 1 3]))

(deftest a-chunk-waits-for-the-one-before
  (are [end limit durations] (= end (list-scheduling/chunks limit durations))
    0 4 []
    6 1 [1 2 3]
    5 2 [1 2 3]
    13 3 [1 9 2 0 4 3]))

(deftest list-scheduling-keeps-grahams-bounds
  (let [random (java.util.Random. 7)]
    (dotimes [_ 200]
      (let [limit (inc (.nextInt random 9))
            durations (repeatedly (inc (.nextInt random 50)) #(.nextInt random 100))
            longest (apply max durations)
            even (/ (reduce + durations) limit)
            makespan (list-scheduling/makespan limit durations)]
        (is (<= (max even longest) makespan))
        (is (<= makespan (+ even (* (- 1 (/ 1 limit)) longest))))))))

;; Figures

(deftest a-spread-leaves-out-what-is-not-known
  (is (= {:median 2.0, :min 1.0, :max 5.0} (stats/spread [5 nil 1 2])))
  (is (nil? (stats/spread [nil]))))

(deftest ratios-are-taken-round-by-round
  (is (= 2.0 (stats/paired [2 20 200] [1 10 100])))
  (is (= 1.5 (stats/paired [3 900 2] [2 100 2]))))

;; Tables

(def ^:private columns
  [{:heading "way", :left? true, :show :way} {:heading "x", :show #(text/spread 2 (:x %))}])

(def ^:private rows
  [{:way "hand", :x (stats/spread [1])} {:way "t/pmap", :x (stats/spread [1.2 1.1 1.333])}
   {:way "none"}])

(deftest a-table-lines-up
  (is (= ["way                    x"
          "hand                1.00"
          "t/pmap  1.20 (1.10-1.33)"
          "none"]
         (table/text columns rows)))
  (is (= ["| way    |                x |"
          "| :----- | ---------------: |"
          "| hand   |             1.00 |"
          "| t/pmap | 1.20 (1.10-1.33) |"
          "| none   |                  |"]
         (table/markdown columns rows))))

(deftest figures-are-written-alike-everywhere
  (is (= "1,234.5" (text/decimals 1 1234.5)))
  (is (= "1,000,000" (text/whole 1000000)))
  (is (= "" (text/whole nil))))

(deftest a-spread-is-its-median-alone-where-all-are-equal
  (is (= ["" "3" "2 (1-5)"] (map #(text/spread 0 (stats/spread %)) [[nil] [3 3] [5 1 2]]))))

;; Benchmarks

(defn- quick-run
  "Returns the result of a benchmark's quick form."
  [experiment]
  {:machine {}
   :experiments (run/run! experiments/by-name
                          [((:plan experiment) {:quick true} {})]
                          (constantly nil))})

(deftest a-benchmark-is-a-table-of-what-its-jvms-measured
  (let [result (quick-run stream/experiment), report (report.text/report result)]
    (is (= 0 (result/exit-code result)))
    (is (str/includes? report (str "QUICK FORM, NO MEASUREMENT. Medians of 1 JVM "
                                   "(lowest-highest). Flags: -Xmx256m")))
    (is (re-find #"(?m)^  t/pmap +20,000 " report))
    (is (str/includes? (report.text/report result :markdown? true) "| way "))
    (is (str/includes? (report.html/page result) "<th scope=\"row\">t/pmap</th>"))))

(deftest a-benchmark-that-fails-is-a-row-that-says-so
  (let [broken (benchmark/experiment {:name :bench/laziness
                                      :title "Broken"
                                      :about "It throws."
                                      :jvm-opts ["-Xmx64m"]
                                      :jobs (constantly [{:k 1}])
                                      :measure 'clojure.core/inc
                                      :rows (fn [_] (throw (AssertionError. "nothing to show")))})
        plan ((:plan broken) {:quick true} {})
        experiments (run/run! {:bench/laziness broken} [plan] (constantly nil))
        result {:machine {}, :experiments experiments}]
    (is (= 1 (result/exit-code result)))
    (is (re-find #"\{:k 1\} FAILED: job: .*cannot be cast" (report.text/report result)))))

(deftest every-benchmark-measures-in-a-namespace-that-is-there
  (doseq [{:keys [name]} @experiments/benchmarks
          :let [sym (symbol (str "thrum.lab.benchmarks." (clojure.core/name name) ".experiment")
                            "measure")]]
    (is (ifn? @(requiring-resolve sym)) name)))
