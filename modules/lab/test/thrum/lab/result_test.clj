(ns thrum.lab.result-test
  "Verdicts and exit codes."
  (:require
   [clojure.test :refer [are deftest is]]
   [thrum.lab.result :as result]))

(defn- with-row [row] {:experiments [{:parts [{:contenders [row]}]}]})
(defn- taken [row & samples] (reduce result/add-sample row samples))

(def ^:private well {:ms 10.0, :ok 3, :failed 0})
(def ^:private badly {:ms 10.0, :ok 2, :failed 1})

(deftest verdicts
  (are [verdict row samples] (= verdict (:verdict (apply taken row samples)))
    :done {} [well well]
    :failed {} [well badly]
    :failed {} [(assoc well :error {:class "X", :message "y"})]
    :failed {} [(assoc well :deadline-passed? true)]
    :broke {:expect :breaks} [badly]
    :did-not-break {:expect :breaks} [well]
    :interrupted {} [well (assoc well :interrupted? true)]
    :done {:own? true} [badly]
    :skipped {} [{:row {:skipped "no network"}}])
  (is (= :not-run (:verdict (result/summarize {}))))
  (is (= :skipped (:verdict (result/summarize {:skipped "no checkout"})))))

(deftest the-median-is-of-whole-samples
  (let [row (taken {:limit-line-ms 5.0}
                   well
                   (assoc well :ms 20.0)
                   (assoc well :ms 30.0)
                   (assoc well :ms 1.0 :interrupted? true))]
    (is (= [20.0 4.0] ((juxt :median-ms :over-limit) row)))))

(deftest requests-per-second-have-a-median-too
  (let [row (taken {:limit-line-per-second 100.0}
                   {:per-second 50.0}
                   {:per-second 80.0}
                   {:per-second 90.0, :errors {:timeout 3}})]
    (is (= [:done 80.0 0.8 nil nil]
           ((juxt :verdict :median-per-second :of-limit :median-ms :over-limit) row))))
  (is (= [:failed nil]
         ((juxt :verdict :median-per-second)
          (taken {} {:per-second 50.0} {:error {:class "X", :message "y"}})))))

(deftest curves-have-a-median-at-each-point
  (is (= [:done [[10 2.0] [20 9.0]] nil]
         ((juxt :verdict :median-points :median-ms)
          (taken {}
                 {:points [[10 1.0] [20 9.0]]}
                 {:points [[10 2.0] [20 8.0]]}
                 {:points [[10 3.0] [20 10.0]]}))))
  (is (nil? (:median-points (taken {} {:points [[10 1.0]]} {:error {:class "X", :message "y"}})))))

(deftest what-broke-has-no-median
  (is (= [nil nil]
         ((juxt :median-ms :over-limit) (taken {:expect :breaks, :limit-line-ms 5.0} badly)))))

(deftest a-limit-line-that-only-the-run-knew-replaces-the-planned-one
  (is (= 2.0 (:over-limit (taken {:limit-line-ms 100.0} (assoc well :row {:limit-line-ms 5.0}))))))

(deftest exit-codes
  (are [code result] (= code (result/exit-code result))
    0 (with-row (taken {} well))
    0 (with-row (taken {:expect :breaks} badly))
    0 (with-row (taken {} {:row {:skipped "no network"}}))
    1 (with-row (taken {} badly))
    3 {:asked [:files], :experiments [{:parts [{:skipped "no shell"}]}]}
    0 {:asked nil, :experiments [{:parts [{:skipped "no shell"}]}]}
    130 {:experiments [{:interrupted? true, :parts []}]}))
