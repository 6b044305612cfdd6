(ns thrum.repo.core-async-doc-test
  "The table of doc/guides/channels.md, which release of core.async runs what on which threads, is
  what a JVM with that release tells."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing]]
   [thrum.async.probe :as probe]
   [thrum.core :as t]
   [thrum.test-kit.release :as release]))

(set! *warn-on-reflection* true)

(def ^:private uses ["go" "thread" "io-thread" "pipeline" "pipeline-blocking" "pipeline-async"])

(defn- cells [line]
  (map #(str/replace (str/trim %) "`" "") (remove str/blank? (str/split line #"\|"))))

(defn- told-apart
  "Returns what a row's first cell names: [version jvm-option ...], of `1.9.829-alpha2,
  vthreads=avoid`."
  [cell]
  (let [[version & properties] (str/split cell #", ")]
    (into [version] (map #(str "-Dclojure.core.async." %)) properties)))

(defn table
  "Returns {[version jvm-option ...] {use place}} of the table in markdown whose first columns are
  core.async and go; nil without one."
  [markdown]
  (let [[header _ & rows] (->> (str/split-lines markdown)
                               (drop-while #(not (str/starts-with? % "| core.async | `go` |")))
                               (take-while #(str/starts-with? % "|")))]
    (when header
      (into {}
            (map (fn [[first-cell & places]] [(told-apart first-cell)
                                              (zipmap (rest (cells header)) places)]))
            (map cells rows)))))

(deftest tables-are-read
  (is
    (= {["1.2"] {"go" "platform x", "thread" "none"}
        ["1.3-alpha4" "-Dclojure.core.async.a=b/c"] {"go" "virtual, no name", "thread" "virtual y"}}
       (table
         (str/join "\n"
                   ["# x" "" "| a | b |" "|---|---|" "| 1 | 2 |" ""
                    "| core.async | `go` | `thread` |"
                    "|---|---|---|" "| 1.2 | platform `x` | none |"
                    "| 1.3-alpha4, `a=b/c` | virtual, no name | virtual `y` |" "" "| z |"]))))
  (is (nil? (table "# x\n"))))

(def ^:private rows
  "What the table must tell of."
  (let [ours #(str "-Dclojure.core.async.executor-factory=thrum.async.executor/" %)
        alpha "1.9.829-alpha2"]
    #{["1.6.681"] ["1.8.741"] [alpha] [alpha "-Dclojure.core.async.vthreads=target"]
      [alpha "-Dclojure.core.async.vthreads=avoid"] ["1.9.865"] ["1.10.864-alpha1"]
      ["1.9.865" (ours "everything")] ["1.9.865" (ours "all-but-dispatch")]
      [alpha (ours "all-but-dispatch")]}))

(defn- in-a-jvm
  "Returns {row {use place}} as a JVM with that release and those options tells."
  [[version & jvm-opts :as row]]
  (let [path (release/class-path 'org.clojure/core.async
                                 version
                                 '[org.clojure/clojure org.clojure/tools.analyzer.jvm])]
    {row (probe/of jvm-opts path)}))

(deftest ^{:time-limit-ms 240000} the-table-tells-what-is-so
  (let [told (table (slurp "doc/guides/channels.md"))]
    (is (= rows (set (keys told))))
    (doseq [[row {:keys [places]}] (into {} (t/pmapv 2 in-a-jvm (keys told)))]
      (testing (str/join " " row)
        (is (= (get told row) (select-keys places uses)))
        (is (= (places "go") (places "go, woken"))
            "a go block that was woken runs where it began")))))
