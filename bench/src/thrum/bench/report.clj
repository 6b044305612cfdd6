(ns thrum.bench.report
  "From raw figures to results and tables. Pure."
  (:require
   [clojure.string :as str]
   [thrum.bench.families :as families]
   [thrum.bench.table :as table]))

(set! *warn-on-reflection* true)

;; Results

(defn- by-job
  "Returns [{:job, :runs}] of the outcomes of a family that have figures, in the order of its jobs."
  [outcomes]
  (let [done (filter :figures outcomes)]
    (for [job (distinct (map :job done))]
      {:job job, :runs (mapv :figures (filter #(= job (:job %)) done))})))

(defn- family-results [size family outcomes]
  (let [{:keys [rows]} (families/by-name family)
        results (by-job outcomes)]
    {:family family, :jvm-opts (families/jvm-opts family size), :raw (vec results)
     :rows (if (seq results) (vec (rows results)) [])}))

(defn results
  "Returns what is written: the facts, for each family its flags, raw figures and rows, and what
  failed."
  [facts only outcomes]
  (let [outcomes-of (group-by :family outcomes)]
    (assoc facts
           :thrum.bench/version 1
           :families (mapv #(family-results (:size facts) % (outcomes-of %)) only)
           :failures (vec (filter :failure outcomes)))))

;; Tables

(defn- conditions
  [{:keys [date size jvms machine]}]
  (let [{:keys [cpu cpus memory-gb os jdk]} machine]
    (str (when (= :quick size) "QUICK FORM, NO MEASUREMENT. ")
         "Medians of "
         jvms
         (if (= 1 jvms) " JVM" " JVMs")
         " (lowest-highest), "
         date
         ". "
         cpu
         ", "
         cpus
         " cores, "
         memory-gb
         " GB, "
         os
         "; load at the start "
         (table/decimals 1 (:load machine))
         ". "
         (:vendor jdk)
         " "
         (:version jdk)
         ", Clojure "
         (:clojure machine)
         ".")))

(defn- columns-of [columns rows]
  (if (fn? columns) (columns rows) columns))

(defn- flags [jvm-opts]
  (str "Flags: " (str/join " " jvm-opts)))

(defn- section [heading layout {:keys [family jvm-opts rows]}]
  (let [{:keys [title about columns]} (families/by-name family)]
    (str (heading title) "\n\n" about "\n" (flags jvm-opts) "\n\n"
         (if (seq rows) (layout (columns-of columns rows) rows) "No figures."))))

(defn- document [heading layout {:keys [families] :as results}]
  (str/join "\n\n" (cons (conditions results) (map #(section heading layout %) families))))

(defn text
  "Returns the results for a terminal."
  [results]
  (document #(str "== " %) table/text results))

(defn markdown
  "Returns the results as Markdown."
  [results]
  (document #(str "### " %) table/markdown results))
