(ns thrum.repo.figures-test
  "The figures of doc/performance.md are those of bench/results, rounded; those of the README are in
  doc/performance.md."
  (:require
   [clojure.edn :as edn]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(def ^:private sections
  "From a heading of the page to the benchmarks that its tables show."
  {"Overhead of an item" #{:overhead}, "Uneven work" #{:sleeps}, "Scopes" #{:scopes}
   "Limiters" #{:limiter}, "Pipelines, takes and puts" #{:pipelines :ports}, "Servers" #{:servers}})

(def ^:private number #"(?<![\w.])\d{1,3}(?: \d{3})+(?:\.\d+)?|(?<![\w.])\d+(?:\.\d+)?")

(def ^:private goal #"^[\d.]+ x (?:bare|limit)$")

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

(defn unfounded
  "Returns the figures in the tables of a section that none of the values shows."
  [section values]
  (for [row (rows section)
        cell row
        :when (not (re-find goal cell))
        text (figures cell)
        :when (and (< 2 (count text)) (not-any? #(shows? text %) values))]
    text))

(defn- newest-run []
  (let [files (sort (filter #(re-find #"\d{4}-\d\d-\d\d\.edn$" %)
                            (map str (.listFiles (File. "bench/results")))))]
    (:benchmarks (edn/read-string (slurp (last files))))))

(defn- values [benchmarks run]
  (filter number? (tree-seq coll? seq (filter (comp benchmarks :name) run))))

(defn- section [page heading]
  (-> page
      (str/split (re-pattern (str "\n## " heading "\n")))
      second
      (str/split #"\n## |\n<!--")
      first))

(deftest the-figures-are-those-that-were-measured
  (let [page (slurp "doc/performance.md"), run (newest-run)]
    (doseq [[heading benchmarks] sections]
      (is (= [] (unfounded (section page heading) (values benchmarks run))) heading))))

(deftest the-readmes-figures-are-on-the-page
  (let [page (map parse-double (figures (slurp "doc/performance.md")))
        ;; Between them stands the limit line, which is arithmetic.
        measured (mapcat (juxt first last) (rows (section (slurp "README.md") "Four figures")))]
    (is (= [] (for [text (mapcat figures measured) :when (not-any? #(shows? text %) page)] text)))))

(deftest a-figure-that-was-not-measured-is-found
  (is (= ["2.1"] (unfounded "| way | ns |\n|---|--:|\n| `a` | 1 220 | 2.59 (1.80-2.86) | 2.1 |"
                   [1219.8 2.5886 1.7997 2.8635]))))
