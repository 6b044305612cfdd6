(ns thrum.test-kit.runner
  "Finds tests and runs them one by one; what did not visibly pass did not pass.

  The outcome of a test is {:test symbol, :outcome :passed | :failed | :skipped, :why string, :ms
  long}."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :as test]
   [thrum.test-kit.cpu :as cpu]
   [thrum.test-kit.dump :as dump]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(def default-limit-ms
  "How long one test may take: for what hangs. A starved machine takes a minute for some."
  300000)

;; Finding

(defn test-folders
  "Returns the folders named test on the classpath."
  []
  (->> (str/split (System/getProperty "java.class.path") (re-pattern File/pathSeparator))
       (map #(.getAbsoluteFile (io/file %)))
       (filter #(and (.isDirectory ^File %) (= "test" (.getName ^File %))))))

(defn module
  "Returns the name of the module that a test folder belongs to; root for that of the repository."
  [^File folder]
  (let [parent (.getParentFile folder)]
    (if (= "modules" (.getName (.getParentFile parent))) (.getName parent) "root")))

(defn- namespace-in
  "Returns the symbol of the namespace that a file under folder holds by its path, or nil."
  [^File folder ^File file]
  (let [path (str (.relativize (.toPath folder) (.toPath file)))]
    (when-let [[_ path] (re-matches #"(.+)\.cljc?" path)]
      (symbol (str/replace (str/replace path File/separator ".") "_" "-")))))

(defn find-namespaces
  "Returns the symbols of the namespaces under folders, sorted within each folder."
  [folders]
  (mapcat (fn [folder] (sort (keep #(namespace-in folder %) (file-seq folder)))) folders))

;; Counting

(defn outcome
  "Returns an outcome; why may be nil."
  [sym result why ms]
  {:test sym, :outcome result, :why why, :ms ms})

(defn totals
  "Returns {:passed n, :failed n, :skipped n}."
  [outcomes]
  (merge {:passed 0, :failed 0, :skipped 0} (frequencies (map :outcome outcomes))))

(defn closing-line
  "Returns `N passed, N failed`, followed by `, N skipped` if any were."
  [{:keys [passed failed skipped]}]
  (str passed " passed, " failed " failed" (when (pos? skipped) (str ", " skipped " skipped"))))

(defn exit-code
  "Returns 0 if something passed and nothing failed, else 1."
  [{:keys [passed failed]}]
  (if (and (pos? passed) (zero? failed)) 0 1))

;; Reporting

(def ^:private ^:dynamic *counts* nil)

(defn- in-short
  "Returns where an assertion failed and what there was, in a line of at most 300 characters."
  [{:keys [file line actual]}]
  (let [actual (if (instance? Throwable actual)
                 (str actual)
                 (binding [*print-length* 20, *print-level* 5] (pr-str actual)))
        text (str/replace (str file ":" line " " actual) #"\s+" " ")]
    (subs text 0 (min 300 (count text)))))

(defn- reporter
  "Returns a clojure.test report function that counts into counts, with the first failure in short,
  and prints failures alone."
  [print-report]
  (fn [{:keys [type] :as event}]
    (when (#{:pass :fail :error} type)
      (swap! *counts* update type (fnil inc 0)))
    (when (#{:fail :error} type)
      (print-report event)
      (let [first-failure (in-short event)]
        (swap! *counts* update :first-failure #(or % first-failure))))))

(def ^:private standard-report test/report)

(defonce
  ^{:doc
    "Failures reported on threads without a test's bindings: no test can be blamed, the run is."}
  strays
  (atom []))

(defn- report-stray
  [{:keys [type] :as event}]
  (when (#{:fail :error} type)
    (swap! strays conj (str (:message event) " " (pr-str (:expected event) (:actual event))))
    (standard-report event)))

(defn catch-strays!
  "Makes failures on threads without a test's bindings count; for the life of this JVM."
  []
  (alter-var-root #'test/report (constantly report-stray)))

;; Running one test

(defn skip!
  "Ends the running test; it counts as skipped, because of why, unless something failed before."
  [why]
  (throw (ex-info why {:type ::skip})))

(defn- skip? [t] (= ::skip (:type (ex-data t))))

(defn- report-error
  [message t]
  (test/do-report {:type :error, :message message, :expected nil, :actual t}))

(defn- call-test
  "Calls the test function of v; returns why it was skipped, or nil. What it throws is reported as
  an error."
  [v]
  (try ((:test (meta v)))
       nil
       (catch Throwable t
         (if (skip? t)
           (ex-message t)
           (report-error "Uncaught exception, not in assertion." t)))))

(defn- call-in-fixtures
  "Calls the test of v within the :each fixtures of its namespace; returns why it was skipped, or
  nil."
  [v]
  (let [fixtures (test/join-fixtures (::test/each-fixtures (meta (:ns (meta v)))))
        why (volatile! nil)]
    (try (fixtures #(do (vreset! why (call-test v)) nil))
         (catch Throwable t
           (if (skip? t) (vreset! why (ex-message t)) (report-error "Error in a fixture" t))))
    @why))

(defn- judge
  [{:keys [pass fail error first-failure]} skipped]
  (cond
    (or fail error)
    [:failed (str (+ (or fail 0) (or error 0)) " assertion(s) failed: " first-failure)]
    skipped [:skipped skipped]
    pass [:passed nil]
    :else [:failed "made no assertion"]))

(defn- overrun
  "Says which test hangs, and where; interrupts it, and gives it a second to clean up."
  [sym ^Thread thread limit-ms]
  (println "FAIL in" sym "\ntook longer than" limit-ms "ms")
  (dump/print! (str sym) thread)
  (.interrupt thread)
  (.join thread 1000)
  [:failed (str "took longer than " limit-ms " ms")])

(defn- run-within
  "Runs the test of v on a thread of its own; returns [outcome why]."
  [v sym limit-ms]
  (binding [*counts* (atom {})
            test/report (reporter standard-report)
            test/*testing-vars* (list v)
            test/*testing-contexts* ()]
    (let [[thread done] (gate/start (str "test " sym) #(call-in-fixtures v))
          {:keys [value thrown] :as ended} (deref done limit-ms nil)]
      (cond
        (nil? ended) (overrun sym thread limit-ms)
        thrown [:failed (str "its report failed: " thrown)]
        :else (judge @*counts* value)))))

(defn run-var
  "Runs the test of v, and returns its outcome."
  [v {:keys [limit-ms] :or {limit-ms default-limit-ms}}]
  (let [sym (symbol v)
        start (System/nanoTime)
        limit-ms (:time-limit-ms (meta v) limit-ms)
        [result why] (if-let [skip (:skip (meta v))]
                       [:skipped (str skip)]
                       (run-within v sym limit-ms))]
    (outcome sym result why (quot (- (System/nanoTime) start) 1000000))))

;; Running a namespace

(defn- print-trouble
  [sym ^Throwable t]
  (println "\nERROR in" sym)
  (binding [*err* *out*]
    (.printStackTrace t (java.io.PrintWriter. ^java.io.Writer *out* true))))

(defn- tests-of
  [ns-sym {:keys [var times] :or {times 1}}]
  (->> (vals (ns-interns ns-sym))
       (filter (comp :test meta))
       (filter #(or (nil? var) (= var (symbol %))))
       (sort-by (juxt (comp :line meta) symbol))
       (mapcat #(repeat times %))))

(defn- fixture-failure
  "Calls f within the :once fixtures of ns-sym; returns nil, or the outcome of fixtures that threw."
  [ns-sym f]
  (try ((test/join-fixtures (::test/once-fixtures (meta (find-ns ns-sym)))) f)
       nil
       (catch Throwable t
         (print-trouble ns-sym t)
         (outcome ns-sym :failed (str "its :once fixtures failed: " (ex-message t)) 0))))

(defn- not-run
  [v]
  (outcome (symbol v) :failed "was not run by its :once fixtures" 0))

(defn- run-tests
  "Runs vars within the :once fixtures; a var that the fixtures kept from running has failed."
  [ns-sym vars opts]
  (let [done (atom [])
        failure (fixture-failure ns-sym (fn [] (run! #(swap! done conj (run-var % opts)) vars)))]
    (cond-> (into @done (map not-run) (drop (count @done) vars))
      failure (conj failure))))

(defn- load-failure
  "Loads ns-sym; returns nil, or the outcome of a failed load."
  [ns-sym]
  (try (require ns-sym)
       nil
       (catch Throwable t
         (print-trouble ns-sym t)
         (outcome ns-sym :failed (str "did not load: " (ex-message t)) 0))))

(defn run-namespace
  "Loads ns-sym, runs its tests, and returns their outcomes; a namespace that does not load is one
  failed outcome."
  [ns-sym opts]
  (if-let [failure (load-failure ns-sym)]
    [failure]
    (run-tests ns-sym (tests-of ns-sym opts) opts)))

(defn- print-namespace
  [ns-sym outcomes cpu-ms]
  (println
    (format "%-48s %s, %d ms, %d ms of CPU time" ns-sym (closing-line (totals outcomes))
      (reduce + (map :ms outcomes)) cpu-ms))
  (doseq [{:keys [test outcome why]} outcomes
          :when (not= :passed outcome)]
    (println "   " (name outcome) (str test) "-" why))
  (flush))

(defn- wanted?
  [{:keys [ns var]} ns-sym]
  (and (or (nil? ns) (str/includes? (str ns-sym) ns))
       (or (nil? var) (= (namespace var) (str ns-sym)))))

(defn run
  "Runs the tests in folders that opts selects, prints how they went, and returns their outcomes.
  The CPU time of a namespace is that of loading and running it.

  :ns a part of the namespace's name · :var a qualified symbol · :times how often each · :limit-ms
  for one test, which the metadata :time-limit-ms of a test overrides."
  [folders opts]
  (->> (find-namespaces folders)
       (filter #(wanted? opts %))
       (mapcat (fn [ns-sym]
                 (let [before (cpu/ms)
                       outcomes (run-namespace ns-sym opts)]
                   (when (seq outcomes)
                     (print-namespace ns-sym outcomes (- (cpu/ms) before)))
                   outcomes)))
       vec))
