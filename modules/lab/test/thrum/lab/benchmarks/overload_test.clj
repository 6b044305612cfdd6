(ns thrum.lab.benchmarks.overload-test
  "What is made of the answers per second of three phases, by values known by hand."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.benchmarks.overload.experiment :as overload]))

(set! *warn-on-reflection* true)

(defn- windows
  "Returns the windows of three phases with so many answers a second, each 10 ms slower than the one
  before; p99 of nil where none was answered."
  [& goods]
  (vec (map-indexed (fn [i good] {:good (double good), :p99-ms (when (pos? good) (* 10.0 i))})
                    goods)))

(def ^:private run
  {:none (windows 0 0 0 0, 0 0 0 0, 0 0 0 0)
   :fixed-16 (windows 5 700 700 700, 400 390 390 390, 600 690 700 700)
   :fixed-32 (windows 5 800 790 810, 300 300 300 300, 790 800 800 800)
   :fixed-64 (windows 5 800 800 800, 0 0 0 0, 0 0 0 0)
   :fixed-128 (windows 5 900 900 900, 0 0 0 0, 0 0 0 0)
   :vegas (windows 5 760 760 760, 100 360 351 351, 100 600 720 760)
   :gradient2 (windows 5 600 600 600, 100 390 390 390, 0 0 0 0)})

(def ^:private rows (overload/rows [{:runs [run]}]))

(defn- row [way] (first (filter (comp #{way} :way) rows)))

(deftest each-phase-counts-when-it-has-settled
  (is (= {:way :vegas, :good [760.0 351.0 740.0], :p99-ms [30.0 70.0 110.0], :back-s 3}
         (row :vegas)))
  (is (= {:way :none, :good [0.0 0.0 0.0], :p99-ms [0 0 0], :back-s nil} (row :none)))
  (is (nil? (:back-s (row :fixed-64)))))

(deftest adaptive-limits-are-judged-by-the-best-fixed-one
  (is (= [["adaptive/vegas: in time, x the best fixed limit, capacity whole" 0.95]
          ["adaptive/vegas: in time, x the best fixed limit, capacity halved" 0.9]
          ["adaptive/vegas: s until it is back" 3]
          ["adaptive/gradient2: in time, x the best fixed limit, capacity whole" 0.75]
          ["adaptive/gradient2: in time, x the best fixed limit, capacity halved" 1.0]
          ["adaptive/gradient2: s until it is back" ##Inf]]
         (map (juxt :figure :value) (overload/figures rows)))))

(deftest a-short-run-has-one-window
  (is (= [400.0 0.0 0.0]
         (:good (first (overload/rows [{:runs [(update-vals run (fn [_] (windows 400)))]}]))))))
