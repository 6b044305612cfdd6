(ns thrum.lab.main
  "The lab's front door: argv in, exit code out. The only place that ends the JVM."
  (:require
   [clojure.main :as main]
   [clojure.pprint :as pprint]
   [clojure.string :as str]
   [thrum.lab.channels :as channels]
   [thrum.lab.cli :as cli]
   [thrum.lab.compare :as compare]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.json :as json]
   [thrum.lab.machine :as machine]
   [thrum.lab.measure :as measure]
   [thrum.lab.plan :as plan]
   [thrum.lab.progress :as progress]
   [thrum.lab.report.html :as report.html]
   [thrum.lab.report.text :as report.text]
   [thrum.lab.result :as result]
   [thrum.lab.run :as run]
   [thrum.lab.serve :as serve]
   [thrum.lab.spring-boot :as spring-boot]
   [thrum.lab.store :as store]
   [thrum.lab.text :as text])
  (:import
   (clojure.lang ExceptionInfo)))

(set! *warn-on-reflection* true)

(def ^:private failure-code 1)
(def ^:private usage-code 2)
(def ^:private interrupted-code 130)
(def ^:private grace-ms "How long an interrupted run may take to write what it has." 8000)

(defn- plan-facts []
  {:cpus (machine/cpus), :hard-file-limit? (machine/hard-file-limit? 256), :engines (serve/engines), :spring-boot (spring-boot/facts)
   :ab? (machine/on-path? "ab"), :channels (channels/facts)})

(defn- say [& words]
  (binding [*out* *err*] (println (str/join words)))
  usage-code)

(defn- print-skipped [experiments]
  (doseq [part (mapcat :parts experiments) :when (:skipped part)]
    (println (str "Skipped: " (:title part) " (" (:skipped part) ").")))
  (doseq [row (mapcat :contenders (remove :skipped (mapcat :parts experiments)))
          :when (:skipped row)]
    (println (str "Skipped: " (:name row) " (" (:skipped row) ")."))))

(defn- longer
  "Returns what more there is than the tour, and how long it takes."
  [parsed facts experiments]
  (let [with (fn [option] (plan/plan (assoc-in parsed [:options option] true) facts experiments))
        duration (comp text/duration :estimate-ms with)]
    (str "Everything in its quick form: --all, " (duration :all)
         ". The published sizes: --full, " (duration :full) ".")))

(defn- takes
  "Returns how long the run takes, in a sentence."
  [{:keys [estimate-ms], {:keys [form]} :options}]
  (cond
    (nil? estimate-ms) "How long this takes is up to your own work."
    (= :tour form) (str "A tour of what was published takes about " (text/duration estimate-ms)
                        ", at most 3 minutes on two idle processors.")
    :else (str "This takes about " (text/duration estimate-ms) " in all.")))

(defn- announce [{:keys [experiments], {:keys [form]} :options, :as plan} longer]
  (println (takes plan))
  (when (= :tour form)
    (println (longer)))
  (doseq [{:keys [not-counted]} experiments :when not-counted]
    (println (str "Not counted: " not-counted ".")))
  (print-skipped experiments))

(defn- run-plan!
  "Runs the plan, telling of it on out, and returns the result."
  [plan experiments out]
  (let [started (measure/now), facts (machine/facts)
        {:keys [emit! close!]} (progress/show! plan out (and (identical? out *out*) (progress/terminal?)))
        done (try
               (run/run! (experiments/by-name experiments) (:experiments plan) emit!)
               (finally (close!)))]
    (assoc plan :experiments done :started started :ended (measure/now) :machine facts)))

(defn- keep!
  "Writes the result and its page; returns the paths."
  [dir result]
  [(store/write! dir "result.edn" result)
   (store/write-text! dir "report.html" (report.html/page result))])

(defn- print-result [{:keys [json outcomes out]} result]
  (let [paths (keep! out result)]
    (if json
      (println (json/write result))
      (do (println (report.text/report result))
          (when outcomes (println (str "\n" (report.text/outcomes result))))
          (println (str "\nWritten: " (text/commas paths)))))))

(defn- run-command [{:keys [options] :as parsed}]
  (let [chosen (experiments/chosen options), facts (plan-facts)
        plan (plan/plan parsed facts chosen)
        out (if (:json options) *err* *out*)]
    (if (:print-plan options)
      (do (pprint/pprint plan) 0)
      (do (binding [*out* out] (announce plan #(longer parsed facts chosen)))
          (let [result (run-plan! plan chosen out)]
            (print-result options result)
            (result/exit-code result))))))

(defn- compare-command [{[a b] :files}]
  (println (compare/report (store/read! a) (store/read! b)))
  0)

(defn run
  "Does what argv asks for and returns the exit code; see thrum.lab.result/exit-codes. An interrupt of the calling thread ends
  the run early: what was measured is still written."
  [argv]
  (try
    (let [{:keys [error command] :as parsed} (cli/parse argv)]
      (cond
        error (say error)
        (= :help command) (do (println (cli/help (:topic parsed))) 0)
        (= :compare command) (compare-command parsed)
        :else (run-command parsed)))
    (catch ExceptionInfo e
      (if (= :thrum/lab-usage (:type (ex-data e)))
        (say (ex-message e))
        (throw e)))))

(defn- on-signal
  "Makes Ctrl-C and SIGTERM interrupt thread, wait until `ended` is delivered, and exit with 130.
  A JVM that ends by itself, with `ended` delivered, is left alone."
  [^Thread thread ended]
  (.addShutdownHook (Runtime/getRuntime)
                    (Thread. #(when-not (realized? ended)
                                (.interrupt thread)
                                (deref ended grace-ms nil)
                                (flush)
                                (.halt (Runtime/getRuntime) interrupted-code)))))

(defn -main
  "Runs argv and exits with its code."
  [& argv]
  (let [ended (promise)]
    (on-signal (Thread/currentThread) ended)
    (let [code (try
                 (run argv)
                 (catch Throwable t
                   (main/report-error t :target "stderr")
                   failure-code)
                 (finally (flush) (deliver ended true)))]
      (System/exit code))))
