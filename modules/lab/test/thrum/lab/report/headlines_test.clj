(ns thrum.lab.report.headlines-test
  "The rows that a report opens on."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.lab.report.headlines :as headlines]
   [thrum.lab.report.samples :as samples]))

(defn- shown [rows key]
  (map #(some-> % key :words (str/replace "\u00a0" " ")) rows))

(def ^:private rows (headlines/rows samples/published))

(deftest a-row-for-each-part-that-has-a-headline
  (is (= [:downloads :jetty-sleep :http-kit-sleep :go-blocks :spring-100] (map :part rows)))
  (is (= [] (headlines/rows samples/loaded))))

(deftest published-ours-and-what-arithmetic-allows-stand-side-by-side
  (is (= ["1 103 s → 11.1 s" "843/s → 2 218/s" "928/s → 2 209/s" "107 → 25 threads"
          "6.16 s → 2.16 s"]
         (shown rows :published)))
  (is (= ["12.6 s → 200 ms" "950/s → 2 213/s" nil "107 → 12 threads" "5.10 s → 4.90 s"]
         (shown rows :here)))
  (is (= ["12.0 s → 120 ms" "1 000/s → 2 400/s" "1 000/s → 2 400/s" "1.00 s" "5.00 s → 1.00 s"]
         (shown rows :limit)))
  (is (= [63.0 nil nil]
         [(:factor (:here (first rows))) (:factor (:here (nth rows 2)))
          (:factor (:limit (nth rows 3)))])))

(deftest a-verdict-is-one-sentence
  (is (= ["Confirmed, but less than published: all wait at once; pmap takes 512 ms."
          "Confirmed: all wait at once."
          "Not measured: it is on Clojars."
          "Confirmed: all wait at once (1.03 s → 1.05 s)."
          "Not confirmed."]
         (map :verdict rows)))
  (is (= [:less :as-published :missing :as-published :not] (map :grade rows))))

(defn- with-row [part contender row]
  (update-in samples/published [:experiments part :parts 0 :contenders contender] merge row))

(deftest what-has-no-figure-says-why
  (are [verdict part contender row] (= verdict
                                       (:verdict (nth (headlines/rows (with-row part contender row))
                                                      part)))
    "Not measured: pool FAILED: lab-load: No answer." 1
    0 {:verdict :failed
       :median-per-second nil
       :samples [{:error {:class "lab-load", :message "No answer"}}]}
    "Not measured: thrum.server was interrupted." 1
    2 {:verdict :interrupted, :median-per-second nil}
    "Not measured: not run." 1
    2 {:verdict :not-run, :median-per-second nil}
    "Not measured: avoid was skipped: no network." 3
    2 {:verdict :not-run, :samples []}))

(deftest a-grade-is-a-share-of-what-was-published-or-of-what-can-be
  (are [grade factor published limit] (= grade (headlines/grade factor published limit))
    :as-published 2.31 2.63 2.4
    :as-published 4.8 2.85 5.0
    :as-published 8.9 4.28 nil
    :less 63.0 99.4 100.0
    :less 1.4 2.63 2.4
    :not 1.1 1.2 5.0
    :not 20.0 99.4 100.0))
