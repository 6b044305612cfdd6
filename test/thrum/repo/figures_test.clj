(ns thrum.repo.figures-test
  "The tables of doc/performance.md are those of the newest run in bench/results; the figures of the
  README are in doc/performance.md."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.dev.performance-doc :as performance-doc]))

(set! *warn-on-reflection* true)

(def ^:private page (delay (slurp "doc/performance.md")))

(deftest the-tables-are-those-of-the-newest-run
  (let [run (performance-doc/newest)]
    (is (= @page (performance-doc/written @page run)) "./cljw -M:publish-bench writes them")
    (is (= @page (performance-doc/written (str/replace @page "| 512 |" "| 511 |") run)))))

(def ^:private number #"(?<![\w.])\d{1,3}(?: \d{3})+(?:\.\d+)?|(?<![\w.])\d+(?:\.\d+)?")

(defn- rows
  "Returns the cells of each row of the tables, without the first, which says what is measured."
  [markdown]
  (for [line (str/split-lines markdown)
        :when (re-find #"^\| [^-:]" line)
        :let [cells (str/split (str/replace line #"`[^`]*`" "-") #"\|")]]
    (drop 1 (remove str/blank? (map str/trim cells)))))

(defn- figures
  "Returns the numbers in the text, as they are written."
  [text]
  (map #(str/replace % " " "") (re-seq number text)))

(defn- shows?
  "True if the text is the value rounded, in its unit or in one of a thousand of them."
  [text value]
  (let [decimals (count (second (str/split text #"\.")))
        shown (parse-double text)
        within (/ 0.5001 (Math/pow 10 decimals))]
    (some #(<= (abs (- shown (/ (double value) (double %)))) within) [1 1e3 1e6 1e9])))

(defn- unfounded
  "Returns the figures of a table that none of the values shows. Between the first and the last
  column stands the limit line, which is arithmetic."
  [markdown values]
  (for [cell (mapcat (juxt first last) (rows markdown))
        text (figures cell)
        :when (not-any? #(shows? text %) values)]
    text))

(defn- section [page heading]
  (-> page
      (str/split (re-pattern (str "\n## " heading "\n")))
      second
      (str/split #"\n## |\n<!--")
      first))

(deftest the-readmes-figures-are-on-the-page
  (is (= [] (unfounded (section (slurp "README.md") "Four figures")
                       (map parse-double (figures @page))))))

(def ^:private cpu-row
  "An engine, its handler, whether threads are reused, and the µs of a request under Thrum."
  (re-pattern (str "\\| `(:[a-z-]+)` \\| (no sleep, 120 connections(?:, no headers)?)"
                   "(, `:reuse-threads\\?`)? \\| CPU, µs a request \\| [\\d.]+ \\| ([\\d.]+) ")))

(defn- spared
  "Returns how many percent less CPU time each handler takes where threads are reused, sorted; below
  0 where it takes more."
  [markdown]
  (sort (for [by-threads (vals (group-by (juxt second #(nth % 2)) (re-seq cpu-row markdown)))
              :let [{[fresh] false, [reused] true} (group-by (comp some? #(nth % 3)) by-threads)]
              :when reused]
          (- 100 (Math/round (double (/ (* 100 (parse-double (last reused)))
                                        (parse-double (last fresh)))))))))

(deftest the-guide-says-what-reused-threads-spare-as-the-table-does
  (let [percents (spared @page)]
    (is (str/includes? (slurp "doc/guides/servers.md")
          (str "up to " (last percents) " % less CPU time"))
        (pr-str percents))))

(deftest a-figure-that-was-not-measured-is-found
  (is (= ["2.1"] (unfounded "| way | ns |\n|---|--:|\n| `a` | 1 220 | 2.1 |\n| `b` | 1.8 | 2.9 |"
                            [1219.8 1.7997 2.8635]))))
