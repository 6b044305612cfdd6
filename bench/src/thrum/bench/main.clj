(ns thrum.bench.main
  "./cljw -M:bench: what Thrum costs, as ratios that are each taken in one JVM, medians of several.
  Ends with exit code 0, 1 if a child JVM failed, 2 for wrong arguments."
  (:require
   [clojure.java.io :as io]
   [clojure.pprint :as pprint]
   [thrum.bench.families :as families]
   [thrum.bench.jvm :as jvm]
   [thrum.bench.plan :as plan]
   [thrum.bench.report :as report]
   [thrum.lab.machine :as machine])
  (:import
   (clojure.lang ExceptionInfo)
   (java.time LocalDate)))

(set! *warn-on-reflection* true)

(defn- say [& words]
  (binding [*out* *err*]
    (apply println words)
    (flush)))

(defn- facts [{:keys [size jvms]}]
  {:date (str (LocalDate/now)), :size size, :jvms jvms, :machine (machine/facts)})

(defn- command [{:keys [family job size]}]
  (jvm/command (families/jvm-opts family size) 'thrum.bench.child [(name family) (pr-str job)]))

(defn- outcome
  "Runs a job in a JVM of its own; returns it with :figures, or with :failure."
  [timeout-ms job]
  (try
    (assoc job :figures (jvm/run (command job) timeout-ms))
    (catch ExceptionInfo e
      (assoc job :failure (ex-message e)))))

(defn- run-job
  [timeout-ms {:keys [family job jvm], :as planned}]
  (let [start (System/nanoTime)
        {:keys [failure], :as outcome} (outcome timeout-ms planned)]
    (say (format "%-9s JVM %d  %5.1f s  %s%s"
                 (name family)
                 jvm
                 (/ (- (System/nanoTime) start) 1e9)
                 (pr-str job)
                 (if failure (str "  FAILED: " failure) "")))
    outcome))

(defn- write! [file results]
  (io/make-parents file)
  (with-open [out (io/writer file)]
    (binding [*print-length* nil, *print-level* nil]
      (pprint/pprint results out))))

(defn- name-failures! [failures]
  (doseq [{:keys [family job jvm failure]} failures]
    (say "Failed:" (name family) (pr-str job) "in JVM" (str jvm ":") failure)))

(defn- run!! [{:keys [only timeout-ms out markdown] :as options}]
  (let [facts (facts options)
        outcomes (mapv #(run-job timeout-ms %) (plan/jobs options))
        {:keys [failures] :as results} (report/results facts only outcomes)]
    (write! out results)
    (println (if markdown (report/markdown results) (report/text results)))
    (say "Written to" out)
    (name-failures! failures)
    (if (seq failures) 1 0)))

(defn- exit-code [{:keys [help error] :as options}]
  (cond
    help (do (println help) 0)
    error (do (say error) 2)
    :else (run!! options)))

(defn -main
  "Runs the benchmark; see --help."
  [& argv]
  (let [code (exit-code (plan/parse argv))]
    (flush)
    (System/exit code)))
