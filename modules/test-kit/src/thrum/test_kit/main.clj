(ns thrum.test-kit.main
  "What -M:test runs: all tests in this JVM, those of core once more on a single carrier thread and on JDK 21, those of async
  with older releases of core.async and on JDK 21.

  The last line printed is `N passed, N failed`, `, N skipped` where some were; the exit code is 1 if anything failed or
  nothing ran."
  (:require
   [clojure.string :as str]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.release :as release]
   [thrum.test-kit.runner :as runner]))

(set! *warn-on-reflection* true)

(def ^:private usage
  "Options of -M:test:
  --ns SUBSTRING   only namespaces whose name contains it
  --var NS/NAME    only this test
  --module NAME    only the tests of this module (core, lab, ...; root for the repository's own)
  --times N        every test N times, to hunt for one that fails now and then
  --limit-s N      how long one test may take (60)
  --here           in this JVM alone; --ns, --var and --times imply it
  --help           print this")

;; Arguments

(def ^:private value-options
  {"--ns" [:ns identity], "--var" [:var symbol], "--module" [:module identity]
   "--times" [:times parse-long], "--limit-s" [:limit-ms #(some-> (parse-long %) (* 1000))]})

(defn- refuse [message] (throw (ex-info message {:type ::arguments})))

(defn- take-value
  [opts option value]
  (let [[key parse] (value-options option)
        parsed (some-> value parse)]
    (when-not parsed
      (refuse (str option " needs a value, and was given " (pr-str value))))
    (assoc opts key parsed)))

(defn parse-args
  "Returns the options as a map; throws ex-info of :type ::arguments on what it does not know."
  [args]
  (loop [opts {}, [option value & more :as args] args]
    (cond
      (empty? args) (cond-> opts (some opts [:ns :var :times]) (assoc :here true))
      (value-options option) (recur (take-value opts option value) more)
      (= "--here" option) (recur (assoc opts :here true) (rest args))
      (= "--help" option) (recur (assoc opts :help true) (rest args))
      :else (refuse (str "Unknown option " (pr-str option) "\n" usage)))))

;; This JVM

(defn- folders
  [{:keys [module]}]
  (cond->> (runner/test-folders)
    module (filter #(= module (runner/module %)))))

(defn- stray-outcomes
  []
  (map #(runner/outcome 'no-test :failed (str "reported on a thread without a test: " %) 0) @runner/strays))

(defn- print-slowest
  [outcomes]
  (when-let [slow (seq (take 5 (sort-by (comp - :ms) (filter #(< 2000 (:ms %)) outcomes))))]
    (println "slowest:" (str/join ", " (map #(str (:test %) " " (:ms %) " ms") slow)))))

(defn- run-here
  [opts]
  (let [outcomes (runner/run (folders opts) opts)]
    (print-slowest outcomes)
    (runner/totals (concat outcomes (stray-outcomes)))))

;; Children

(defn parse-closing-line
  "Returns the totals that a closing line tells, or nil where line is none."
  [line]
  (when-let [[_ & counts] (re-matches #"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?" (str line))]
    (zipmap [:passed :failed :skipped] (map #(parse-long (or % "0")) counts))))

(defn child-totals
  "Returns the totals of a child's run. A child that ended without its closing line, or with an exit code that its line
  does not explain, has failed once more."
  [{:keys [exit lines]}]
  (let [totals (or (parse-closing-line (jvm/last-line lines)) {:passed 0, :failed 0, :skipped 0})]
    (cond-> totals
      (and (not= 0 exit) (zero? (:failed totals))) (update :failed inc))))

(def ^:private child-limit-ms 600000)

(defn- run-child
  ([module title home jvm-opts] (run-child module title home jvm-opts (System/getProperty "java.class.path")))
  ([module title home jvm-opts class-path]
   (println (str "\n== " module ", " title))
   (-> (jvm/command home (into jvm/exports jvm-opts) class-path 'thrum.test-kit.main ["--here" "--module" module])
       (jvm/run child-limit-ms)
       child-totals)))

(defn- one-carrier
  [module]
  (run-child module "on a single carrier thread"
             (jvm/this-home)
             ["-Djdk.virtualThreadScheduler.parallelism=1" "-Djdk.virtualThreadScheduler.maxPoolSize=1"]))

(defn- skipped
  [why]
  (println "\n== skipped:" why)
  {:passed 0, :failed 0, :skipped 1})

(defn- jdk-21
  "The suite on JDK 21. A THRUM_JDK21 that names no Java 21 is a failure: somebody meant it to run."
  [module]
  (let [named (System/getenv "THRUM_JDK21")
        home (if (str/blank? named) (jvm/find-home 21) (java.io.File. named))]
    (cond
      (= 21 (.feature (Runtime/version))) (println (str "\n== " module " on JDK 21: that is this JVM"))
      (nil? home) (skipped (str module " on JDK 21: none found; name one in THRUM_JDK21"))
      (not= 21 (jvm/release home)) (do (println "\n== THRUM_JDK21 names no Java 21:" named)
                                       {:passed 0, :failed 1, :skipped 0})
      :else (run-child module "on JDK 21" home []))))

(defn- release-path
  "Returns the classpath with this release of core.async, or nil, which is told, where there is no getting it."
  [version]
  (try
    (release/class-path 'org.clojure/core.async version '[org.clojure/clojure org.clojure/tools.analyzer.jvm])
    (catch Exception e
      (println "\n== no core.async" version "to be had:" (str e)))))

(defn- core-async
  "Returns a function that runs a module's suite with this release of core.async."
  [version]
  (fn [module]
    (if-let [path (release-path version)]
      (run-child module (str "with core.async " version) (jvm/this-home) [] path)
      {:passed 0, :failed 1, :skipped 0})))

(def ^:private once-more
  "How the suites of modules run once more, each in a child JVM."
  [["core" one-carrier] ["core" jdk-21]
   ["async" (core-async "1.6.681")] ["async" (core-async "1.8.741")] ["async" (core-async "1.9.829-alpha2")]
   ["async" jdk-21]])

(defn- run-children
  [opts]
  (when-not (:here opts)
    (let [module? (into #{} (map runner/module) (folders opts))]
      (doall (for [[module run] once-more :when (module? module)]
               (run module))))))

;; All of it

(defn run
  "Runs what opts ask for; returns the totals."
  [opts]
  (apply merge-with + (run-here opts) (run-children opts)))

(defn- exit-with
  [opts]
  (runner/catch-strays!)
  (let [totals (run opts)]
    (println)
    (println (runner/closing-line totals))
    (runner/exit-code totals)))

(defn -main
  "Runs the tests and ends the JVM: 0 all passed, 1 something failed or nothing ran, 2 wrong arguments."
  [& args]
  (let [code (try (let [{:keys [help] :as opts} (parse-args args)]
                    (if help (do (println usage) 0) (exit-with opts)))
                  (catch clojure.lang.ExceptionInfo e
                    (if (= ::arguments (:type (ex-data e))) (do (println (ex-message e)) 2) (throw e))))]
    (flush)
    (System/exit code)))
