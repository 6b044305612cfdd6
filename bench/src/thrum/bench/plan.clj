(ns thrum.bench.plan
  "The command line as data, and what is to be run. Pure."
  (:require
   [clojure.string :as str]
   [clojure.tools.cli :as cli]
   [thrum.bench.families :as families]))

(set! *warn-on-reflection* true)

(defn- parse-names [s]
  (mapv keyword (str/split s #",")))

(def ^:private known
  (str/join ", " (map name families/order)))

(def ^:private options
  [[nil "--quick" "tiny sizes in one JVM each: shows that it works, measures nothing"]
   [nil "--only NAME" (str "one or, with commas, several of: " known)
    :parse-fn parse-names
    :validate [#(every? families/by-name %) (str "is one or, with commas, several of: " known)]]
   [nil "--jvms N" "how many JVMs the medians are of: 5, or 1 with --quick"
    :parse-fn parse-long
    :validate [#(and % (pos? %)) "is a positive whole number"]]
   [nil "--out FILE" "where the results go, as EDN" :default "target/bench.edn"]
   [nil "--markdown" "print the tables as Markdown"]
   [nil "--help" "print this"]])

(defn- with-defaults [{:keys [quick only jvms] :as given}]
  (assoc given
         :size (if quick :quick :full)
         :only (or only families/order)
         :jvms (or jvms (if quick 1 5))
         :timeout-ms (if quick 60000 900000)))

(defn parse
  "Returns the options as a map, {:help text}, or {:error sentence}."
  [argv]
  (let [{:keys [options arguments errors summary]} (cli/parse-opts argv options)]
    (cond
      errors {:error (first errors)}
      (seq arguments) {:error (str "There is one word too many: " (first arguments))}
      (:help options) {:help summary}
      :else (with-defaults options))))

(defn jobs
  "Returns what is to be run: {:family :job :jvm :size}, all of the first JVM before the second, so
  that what changes over time meets every job."
  [{:keys [only size jvms]}]
  (for [jvm (range 1 (inc jvms))
        family only
        job ((get-in families/by-name [family :jobs]) size)]
    {:family family, :job job, :jvm jvm, :size size}))
