(ns thrum.lab.progress-test
  "What a waiting person reads."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.lab.progress :as progress])
  (:import
   (java.io StringWriter)))

(def ^:private row {:name "t/map", :estimate-ms 500, :repeat 1})
(def ^:private part {:part :downloads, :n 100})

(def ^:private half-way
  (reduce progress/step (progress/start {:estimate-ms 1000})
          [{:event :sample-starts, :part part, :row row} {:event :sample-ends, :row row}]))

(deftest the-fraction-counts-samples-and-items
  (is (= 0.5 (progress/fraction half-way)))
  (is (= 0.75
         (progress/fraction
           (reduce progress/step
                   half-way
                   [{:event :sample-starts, :part part, :row row} {:event :items, :count 50}]))))
  (is (nil? (progress/fraction (progress/start {:estimate-ms nil})))))

(deftest what-is-skipped-is-done
  (let [plan {:title "Spring", :parts [{:contenders [row row]}]}
        state (progress/step (progress/start {:estimate-ms 2000})
                             {:event :experiment-skipped, :plan plan})]
    (is (= 0.5 (progress/fraction state)))
    (is
      (= "Skipped: Spring (Maven failed)."
         (progress/line {:event :experiment-skipped, :plan plan, :reason "Maven failed"} state
           0)))))

(deftest time-left-follows-the-pace
  (is (= 3000.0 (progress/left-ms half-way 3000))))

(deftest the-bar-shows-how-much-is-done
  (is (= "██████████████░░░░░░░░░░░░░░  3 s left" (progress/bar half-way 3000))))

(deftest the-bar-stays-on-its-line
  (let [part {:part :go-blocks, :n 100}
        row {:name "go, 1.9.829-alpha2, target", :estimate-ms 4900, :repeat 1}
        bar (progress/bar (progress/step (progress/start {:estimate-ms 140000})
                                         {:event :sample-starts, :part part, :row row})
                          3000)]
    (is (<= (count bar) 79))
    (is (str/ends-with? bar "  go-blocks: go, 1.9.829-alpha2, …"))))

(deftest a-pipe-gets-plain-lines
  (let [out (StringWriter.), {:keys [emit! close!]} (progress/show! {:estimate-ms 1000} out false)]
    (emit! {:event :sample-starts, :part part, :row row})
    (emit! {:event :items, :count 100})
    (emit! {:event :sample-ends, :part part, :row row, :sample {:ms 213.0, :failed 2}})
    (close!)
    (is (str/starts-with? (str out) "downloads: t/map 213 ms, 2 failed ("))
    (is (not (re-find #"[\r\u001b]" (str out))))))

(deftest a-terminal-gets-a-bar-that-is-wiped-at-the-end
  (let [out (StringWriter.), {:keys [close!]} (progress/show! {:estimate-ms 1000} out true)]
    (close!)
    (is (str/ends-with? (str out) "\r\u001b[2K"))))

(deftest a-bar-is-wiped-though-the-run-is-interrupted-at-its-end
  (let [out (StringWriter.), {:keys [close!]} (progress/show! {:estimate-ms 1000} out true)]
    (.interrupt (Thread/currentThread))
    (try
      (close!)
      (is (str/ends-with? (str out) "\r\u001b[2K"))
      (finally (is (Thread/interrupted) "the interrupt stays")))))
