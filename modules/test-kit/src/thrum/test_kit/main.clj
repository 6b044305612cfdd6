(ns thrum.test-kit.main
  "What -M:test runs: the tests of every module, in child JVMs, one more at a time than there are
  processors, since tests also wait; those of core once more on a single carrier thread, those of
  async with older releases of core.async, those of core, async, watch, server and the engines on
  JDK 21, those of server-http-kit with http-kit where it can be had.

  What failed is printed once more behind all children. The last line printed is `N passed, N
  failed`, `, N skipped` where some were; the exit code is 1 if anything failed or nothing ran."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.test-kit.ahead :as ahead]
   [thrum.test-kit.cpu :as cpu]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.release :as release]
   [thrum.test-kit.runner :as runner])
  (:import
   (java.util.concurrent Callable ExecutorService Executors)))

(set! *warn-on-reflection* true)

(def ^:private usage
  "Options of -M:test:
  --ns SUBSTRING   only namespaces whose name contains it
  --var NS/NAME    only this test
  --module NAME    only the tests of this module (core, lab, ...; root for the repository's own);
                   may be repeated
  --times N        every test N times, to hunt for one that fails now and then
  --limit-s N      how long one test may take (300)
  --here           in this JVM alone; --ns, --var and --times imply it
  --help           print this")

;; Arguments

(defn- number [text]
  (let [n (parse-long text)]
    (when (some-> n pos?) n)))

(def ^:private value-options
  {"--ns" [:ns identity], "--var" [:var symbol], "--module" [:modules vector]
   "--times" [:times number], "--limit-s" [:limit-ms #(some-> (number %) (* 1000))]})

(defn- refuse [message] (throw (ex-info message {:type ::arguments})))

(defn- take-value
  [opts option value]
  (let [[key parse] (value-options option)
        parsed (some-> value parse)]
    (when-not parsed
      (refuse (str option " needs a value, and was given " (pr-str value))))
    (update opts key #(if (vector? parsed) (into (vec %) parsed) parsed))))

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

(defn- wanted?
  "True if the options ask for this module."
  [{:keys [modules]} module]
  (or (nil? modules) (some #{module} modules)))

(defn check-modules
  "Returns opts; throws ex-info of :type ::arguments where they name a module that is not among the
  known ones."
  [{:keys [modules] :as opts} known]
  (doseq [module modules :when (not (some #{module} known))]
    (refuse (str "No module " (pr-str module) "; there are " (str/join ", " (sort known)))))
  opts)

(defn- folders
  [opts]
  (filter #(wanted? opts (runner/module %)) (runner/test-folders)))

(defn- stray-outcomes
  []
  (map #(runner/outcome 'no-test :failed (str "reported on a thread without a test: " %) 0)
       @runner/strays))

(defn- print-slowest
  [outcomes]
  (when-let [slow (seq (take 5 (sort-by (comp - :ms) (filter #(< 2000 (:ms %)) outcomes))))]
    (println "slowest:" (str/join ", " (map #(str (:test %) " " (:ms %) " ms") slow)))))

(defn- run-here
  [opts]
  (let [outcomes (runner/run (folders opts) opts)]
    (when (empty? outcomes)
      (refuse (str "No test matches " (pr-str (select-keys opts [:modules :ns :var])))))
    (print-slowest outcomes)
    (runner/totals (concat outcomes (stray-outcomes)))))

;; Children

(defn parse-closing-line
  "Returns the totals in a closing line, or nil where line is none."
  [line]
  (when-let [[_ & counts] (re-matches #"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?" (str line))]
    (zipmap [:passed :failed :skipped] (map #(parse-long (or % "0")) counts))))

(defn child-totals
  "Returns the totals of a child's run. A child that ended without its closing line, or with an exit
  code that its line does not explain, has failed once more."
  [{:keys [exit lines]}]
  (let [totals (or (parse-closing-line (jvm/last-line lines)) {:passed 0, :failed 0, :skipped 0})]
    (cond-> totals
      (and (not= 0 exit) (zero? (:failed totals))) (update :failed inc))))

(def ^:private child-limit-ms "For a JVM that hangs, on a starved machine too." 3600000)

;; A way to run a suite: a function that returns {:home file, :jvm-opts [option ...], :class-path
;; string, :environment map} of a child JVM, or {:totals totals, :why sentence} where there is none.
;; :ahead is which classes that were compiled ahead will do, see ahead/in-front; nil: none.

;; The basis names the repositories of other releases to a child.
(defn- as-users-run-it
  []
  {:home (jvm/this-home)
   :jvm-opts (if-let [basis (System/getProperty "clojure.basis")]
               [(str "-Dclojure.basis=" basis)]
               [])
   :class-path (System/getProperty "java.class.path")
   :environment {}})

(defn- this-jvm
  []
  (assoc (as-users-run-it) :environment jvm/quick :ahead :all))

;; From sources, as core is always loaded: classes that were compiled ahead are loaded one by one as
;; code gets to them, and tests of core fill the stack.
(defn- one-carrier
  []
  (update (assoc (this-jvm) :ahead :tools)
          :jvm-opts
          into
          ["-Djdk.virtualThreadScheduler.parallelism=1"
           "-Djdk.virtualThreadScheduler.maxPoolSize=1"]))

(defn- skipped
  [why]
  {:totals {:passed 0, :failed 0, :skipped 1}, :why (str "skipped: " why)})

(defn- failed
  [why]
  {:totals {:passed 0, :failed 1, :skipped 0}, :why why})

(defn- jdk-21
  "A THRUM_JDK21 that names no Java 21 is a failure: its run was asked for."
  []
  (let [named (System/getenv "THRUM_JDK21")
        home (if (str/blank? named) (jvm/find-home 21) (java.io.File. named))]
    (cond
      (= 21 (.feature (Runtime/version))) (skipped "this JVM is a JDK 21")
      (nil? home) (skipped "no JDK 21 found; name one in THRUM_JDK21")
      (not= 21 (jvm/release home)) (failed (str "THRUM_JDK21 names no Java 21: " named))
      :else (assoc (dissoc (this-jvm) :ahead) :home home))))

(defn- with-tools [way]
  #(assoc (way) :ahead :tools))

(defn- core-async
  "Returns the way to run a suite with this release of core.async."
  [version]
  (fn []
    (try
      (let [path (release/class-path 'org.clojure/core.async
                                     version
                                     '[org.clojure/clojure org.clojure/tools.analyzer.jvm])]
        (assoc (this-jvm) :class-path path :ahead :core))
      (catch Exception e (failed (str "no core.async " version " to be had: " e))))))

(defn- with-http-kit
  "http-kit is on Clojars, which not every machine can reach."
  []
  (if (io/resource "org/httpkit/server.clj")
    (skipped "this JVM has http-kit")
    (if-let [path (release/class-path-with :http-kit 'http-kit/http-kit '[org.clojure/clojure])]
      (assoc (this-jvm) :class-path path)
      (skipped "no repository that can be reached has http-kit"))))

(def ^:private engines
  ["server-http1" "server-jetty" "server-tomcat" "server-http-kit" "server-helidon"])

(def ^:private shares
  "What each child runs: [title modules way]. One that loads sources comes first, beside the
  compilation; then the longest, so that no processor is idle at the end."
  [["core, on JDK 21" ["core"] jdk-21]
   ["core" ["core"] (with-tools as-users-run-it)]
   ["lab" ["lab"] this-jvm]
   ["the repository" ["root" "test-kit"] this-jvm]
   ["the engines" engines this-jvm]
   ["the engines, on JDK 21" (remove #{"server-http-kit"} engines) jdk-21]
   ["server" ["server" "server-tck"] this-jvm]
   ["server, on JDK 21" ["server" "server-tck"] (with-tools jdk-21)]
   ["core, on a single carrier thread" ["core"] one-carrier]
   ["async, with core.async 1.8.741" ["async"] (core-async "1.8.741")]
   ["async" ["async"] this-jvm]
   ["async, with core.async 1.6.681" ["async"] (core-async "1.6.681")]
   ["async, with core.async 1.9.829-alpha2" ["async"] (core-async "1.9.829-alpha2")]
   ["async, on JDK 21" ["async"] (with-tools jdk-21)]
   ["jdbc, context, adaptive" ["jdbc" "context" "adaptive"] this-jvm]
   ["watch, on JDK 21" ["watch"] (with-tools jdk-21)]
   ["watch" ["watch"] this-jvm]
   ["java, cluster" ["java" "cluster"] this-jvm]
   ["server-http-kit, with http-kit" ["server-http-kit"] with-http-kit]])

(defn titles
  "Returns those of the children."
  []
  (map first shares))

(defn unshared
  "Returns the modules among these that no child runs."
  [modules]
  (remove (set (mapcat second shares)) modules))

(defn- print-share
  [title lines seconds]
  (locking #'shares
    (println (str "\n== " title ", " seconds " s"))
    (run! println (remove #(str/starts-with? % "NOTE: Picked up JDK_JAVA_OPTIONS") lines))
    (flush)))

(defn- run-child
  "Runs the tests of modules in a child JVM to its end; returns {:exit code, :lines strings}."
  [modules classes {:keys [home jvm-opts class-path environment ahead]}]
  (let [classes (when ahead @classes)
        class-path (if classes (ahead/in-front classes ahead class-path) class-path)
        environment (if classes (ahead/environment classes environment) environment)
        args (into ["--here"] (mapcat #(vector "--module" %)) modules)]
    (-> (jvm/command home (into jvm/exports jvm-opts) class-path 'thrum.test-kit.main args)
        (jvm/quietly child-limit-ms environment))))

(defn- run-share
  "Runs a share to its end, prints what it printed, and returns its {:title :totals :lines}."
  [title modules classes {:keys [totals why], :as way}]
  (let [start (System/nanoTime)
        child (when-not totals (run-child modules classes way))
        lines (if child (:lines child) [why])]
    (print-share title lines (quot (- (System/nanoTime) start) 1000000000))
    {:title title, :totals (or totals (child-totals child)), :lines lines}))

(defn failures
  "Returns the lines to print once more of a share that has failed: its tests that have; its last
  line, where none says so."
  [{:keys [totals lines]}]
  (when (pos? (:failed totals))
    (or (seq (filter #(str/starts-with? % "    failed ") lines))
        [(str "    " (or (jvm/last-line lines) "printed nothing"))])))

(defn- print-failures
  [shares]
  (doseq [{:keys [title] :as share} shares, :let [lines (failures share)], :when lines]
    (println (str "\n== failed: " title))
    (run! println lines)))

(defn- in-lanes
  "Returns the results of the thunks, one more at a time than there are processors."
  [thunks]
  (let [lanes (inc (.availableProcessors (Runtime/getRuntime)))
        ^ExecutorService pool (Executors/newFixedThreadPool lanes)]
    (try
      (mapv deref (mapv #(.submit pool ^Callable %) thunks))
      (finally
        (.shutdown pool)))))

(defn- classes
  "Returns a delay of the folder of classes for a whole run, nil for a part of it: to compile takes
  longer than what it saves there."
  [{:keys [modules]}]
  (delay (when-not modules (ahead/folder! (System/getProperty "java.class.path")))))

;; The ways are found before anything runs: several processes that download the same jar at once
;; fail.
(defn- run-children
  [opts]
  (let [classes (classes opts)]
    (in-lanes (doall (for [[title modules way] shares
                           :let [modules (filter #(wanted? opts %) modules)]
                           :when (seq modules)]
                       (partial run-share title modules classes (way)))))))

;; All of it

(defn run
  "Runs what opts ask for; returns the totals."
  [opts]
  (if (:here opts)
    (run-here opts)
    (let [shares (run-children opts)]
      (print-failures shares)
      (apply merge-with + {:passed 0, :failed 0, :skipped 0} (map :totals shares)))))

(defn- exit-with
  [opts]
  (runner/catch-strays!)
  (let [totals (run (check-modules opts (map runner/module (runner/test-folders))))]
    (println (format "\nCPU time: %.1f s" (/ (cpu/ms) 1000.0)))
    (println (runner/closing-line totals))
    (runner/exit-code totals)))

(defn -main
  "Runs the tests and ends the JVM: 0 all passed, 1 something failed or nothing ran, 2 wrong
  arguments."
  [& args]
  (let [code (try
               (let [{:keys [help], :as opts} (parse-args args)]
                 (if help
                   (do
                     (println usage)
                     0)
                   (exit-with opts)))
               (catch clojure.lang.ExceptionInfo e
                 (if (= ::arguments (:type (ex-data e)))
                   (do
                     (println (ex-message e))
                     2)
                   (throw e))))]
    (flush)
    (System/exit code)))
