(ns thrum.async.guide
  "The table of doc/guides/channels.md: which release of core.async runs what on which threads."
  (:require
   [clojure.string :as str]
   [thrum.async.release :as release]))

(set! *warn-on-reflection* true)

(def uses
  "The columns."
  ["go" "thread" "io-thread" "pipeline" "pipeline-blocking" "pipeline-async"])

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

(def told
  "The table, as the guide has it."
  (delay (table (slurp "doc/guides/channels.md"))))

(defn factory
  "Returns the JVM option for one of thrum.async.executor's factories."
  [factory-name]
  (str "-Dclojure.core.async.executor-factory=thrum.async.executor/" factory-name))

(defn of-this-release
  "Returns the places in the row of the release on the classpath with these JVM options, or nil."
  [& jvm-opts]
  (get @told (into [release/version] jvm-opts)))
