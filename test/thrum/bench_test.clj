(ns thrum.bench-test
  "The pure parts of the benchmark against values known by hand."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]))

(set! *warn-on-reflection* true)

;; By file, since bench/src is not on the class path of the tests.
(run! #(load-file (str "bench/src/thrum/bench/" % ".clj"))
      ["list_scheduling" "stats" "table" "jvm"])

(require '[thrum.bench.jvm :as jvm]
         '[thrum.bench.list-scheduling :as list-scheduling]
         '[thrum.bench.stats :as stats]
         '[thrum.bench.table :as table])

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

(deftest a-median-is-the-middle-or-the-mean-of-two
  (are [median xs] (= median (stats/median xs))
    nil []
    3 [3]
    2 [9 1 2]
    2.5 [4 1 3 2]))

(deftest a-summary-leaves-out-what-is-not-known
  (is (= {:median 2.0, :min 1.0, :max 5.0} (stats/summary [5 nil 1 2])))
  (is (nil? (stats/summary [nil]))))

(deftest ratios-are-taken-round-by-round
  (is (= 2.0 (stats/paired [2 20 200] [1 10 100])))
  (is (= 1.5 (stats/paired [3 900 2] [2 100 2]))))

;; Tables

(def ^:private columns
  [{:title "way", :left? true, :show :way} {:title "x", :show #(table/figure 2 (:x %))}])

(def ^:private rows
  [{:way "hand", :x (stats/summary [1])} {:way "t/pmap", :x (stats/summary [1.2 1.1 1.333])}
   {:way "none"}])

(deftest a-table-lines-up
  (is (= ["way                    x"
          "hand                1.00"
          "t/pmap  1.20 (1.10-1.33)"
          "none"]
         (str/split-lines (table/text columns rows))))
  (is (= ["| way    |                x |"
          "| :----- | ---------------: |"
          "| hand   |             1.00 |"
          "| t/pmap | 1.20 (1.10-1.33) |"
          "| none   |                  |"]
         (str/split-lines (table/markdown columns rows)))))

(deftest figures-are-written-alike-everywhere
  (is (= "1,234.5" (table/decimals 1 1234.5)))
  (is (= "1,000,000" (table/whole 1000000)))
  (is (= "" (table/whole nil))))

;; What a child prints

(deftest figures-stand-between-the-marks
  (is (= {:ns 1}
         (jvm/figures (str "noise {:a\n" jvm/begin-mark "\n{:ns 1}\n" jvm/end-mark "\nmore"))))
  (is (nil? (jvm/figures (str jvm/begin-mark "\n{:ns 1}\n"))))
  (is (nil? (jvm/figures ""))))
