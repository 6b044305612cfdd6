(ns thrum.repo.links-test
  "Every relative link of every page leads to a file, and to a heading of it."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.repo.files :as files])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(defn- prose
  "Returns the lines of markdown outside of its fenced blocks."
  [markdown]
  (->> (str/split-lines markdown)
       (reductions (fn [[fenced? _] line]
                     (if (re-find #"^\s*```" line) [(not fenced?) nil] [fenced? line]))
                   [false nil])
       (keep (fn [[fenced? line]] (when-not fenced? line)))))

(defn slug
  "Returns the anchor that GitHub makes of a heading."
  [heading]
  (-> heading
      (str/replace #"\[([^\]]*)\]\([^)]*\)" "$1")
      str/lower-case
      (str/replace #"[^\p{L}\p{N}\s_-]" "")
      str/trim
      (str/replace " " "-")))

(defn anchors
  "Returns the anchors of a page; a heading that stands there before has a number behind its own."
  [markdown]
  (let [slugs (keep #(some-> (re-matches #"#+\s+(.*)" %) second slug) (prose markdown))]
    (into #{}
          (mapcat (fn [[slug n]] (cons slug (map #(str slug "-" %) (range 1 n)))))
          (frequencies slugs))))

(defn links
  "Returns the targets of the links of a page that lead to no other host."
  [markdown]
  (->> (prose markdown)
       (map #(str/replace % #"`[^`]*`" ""))
       (mapcat #(map second (re-seq #"\]\(([^)\s]+)\)" %)))
       (remove #(re-find #"^[a-z]+:" %))))

(defn broken
  "Returns the targets of the links of the page at path that lead nowhere."
  [path markdown]
  (remove (fn [target]
            (let [[place anchor] (str/split target #"#" 2)
                  ^File file (io/file (.getParentFile (io/file path)) place)]
              (if (str/blank? place)
                (contains? (anchors markdown) anchor)
                (and (.exists file)
                     (or (nil? anchor) (contains? (anchors (slurp file)) anchor))))))
          (links markdown)))

(defn- pages []
  (filter #(str/ends-with? % ".md") (files/committed)))

(deftest every-link-leads-somewhere
  (doseq [path (pages)]
    (is (= [] (broken path (slurp path))) path)))

(deftest the-tree-of-cljdoc-has-every-page
  (let [tree (edn/read-string (slurp "doc/cljdoc.edn"))
        named (into #{} (keep :file) (tree-seq coll? seq tree))]
    (is (= (into #{}
                 (filter #(re-matches #"(?:[A-Z]+|doc/(?!decisions/\d).*)\.md" %))
                 (pages))
           named))))

(deftest the-index-of-decisions-has-every-page
  (is (= (set (filter #(re-matches #"doc/decisions/\d+.*\.md" %) (pages)))
         (into #{} (map #(str "doc/decisions/" %)) (links (slurp "doc/decisions/README.md"))))))

(deftest a-newcomer-can-hold-the-readme
  (is (<= (count (str/split-lines (slurp "README.md"))) 150)))

(deftest a-link-that-leads-nowhere-is-found
  (let [page (str/join "\n" ["# A `b` c" "## A, and B" "## A, and B"
                             "[x](#a-b-c) [y](#a-and-b-1) [z](https://x.y/#q)"
                             "`[v](nowhere.md)` [u](nowhere.md)"
                             "[t](#a-and-b-2) [s](CHANGELOG.md#nothing) [r](LICENSE)"
                             "```" "# no heading" "[q](nowhere.md)" "```"])]
    (is (= #{"a-b-c" "a-and-b" "a-and-b-1"} (anchors page)))
    (is (= ["nowhere.md" "#a-and-b-2" "CHANGELOG.md#nothing"] (broken "README.md" page)))))
