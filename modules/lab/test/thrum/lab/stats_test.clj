(ns thrum.lab.stats-test
  "Figures from samples."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.stats :as stats]))

(deftest median-of-odd-even-and-none
  (is (= 2 (stats/median [3 1 2])))
  (is (= 2.5 (stats/median [4 1 2 3])))
  (is (nil? (stats/median []))))

(deftest at-most-one-of-a-hundred-is-beyond-the-p99
  (is (= [1 2 99 100 990]
         (map #(stats/p99 (shuffle (range 1 (inc %)))) [1 2 100 101 1000])))
  (is (nil? (stats/p99 []))))

(deftest in-flight-counts-overlaps
  (is (= [[0 1] [1 2] [2 1] [3 0]] (stats/in-flight [[0 2] [1 3]])))
  (is (= 2 (stats/peak (stats/in-flight [[0 2] [1 3]])))))

(deftest a-task-that-starts-when-another-ends-does-not-overlap-it
  (is (= 1 (stats/peak (stats/in-flight [[0 1] [1 2] [2 3]])))))

(deftest thin-keeps-ends-and-extremes
  (let [curve (assoc (mapv (fn [i] [i 5]) (range 1000)) 500 [500 99] 700 [700 0])
        thin (stats/thin 100 curve)]
    (is (<= (count thin) 100))
    (is (= [[0 5] [999 5]] [(first thin) (peek thin)]))
    (is (= #{5 99 0} (set (map second thin))))
    (is (= thin (sort-by first thin)))))

(deftest tally-tells-failures-by-kind
  (is (= {:ok 2
          :failed 2
          :cancelled 1
          :bytes 30
          :kinds {:timeout 1, :http-404 1}
          :messages {:timeout "late", :http-404 "gone"}
          :statuses {200 2, 404 1}}
         (stats/tally [{:status 200, :bytes 10} {:status 200, :bytes 15}
                       {:kind :timeout, :message "late"}
                       {:status 404, :bytes 5, :kind :http-404, :message "gone"} nil]))))
