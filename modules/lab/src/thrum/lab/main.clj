(ns thrum.lab.main
  "The lab's front door: argv in, exit code out. The only place that ends the JVM."
  (:require
   [clojure.main :as main]
   [clojure.pprint :as pprint]
   [clojure.string :as str]
   [thrum.lab.channels :as channels]
   [thrum.lab.cli :as cli]
   [thrum.lab.compare :as compare]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiment.calls :as calls]
   [thrum.lab.experiment.fan-out :as fan-out]
   [thrum.lab.experiment.go-blocks :as go-blocks]
   [thrum.lab.experiment.handler :as handler]
   [thrum.lab.experiment.pipelines :as pipelines]
   [thrum.lab.experiment.ring :as ring]
   [thrum.lab.experiment.scope :as scope]
   [thrum.lab.experiment.spring-tomcat :as spring-tomcat]
   [thrum.lab.experiment.urls :as urls]
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

(defn- experiments
  "Returns the experiments that the options ask for."
  [{:keys [urls call inputs] function :handler}]
  (cond
    urls [(urls/experiment urls)]
    call [(calls/experiment call inputs)]
    function [(handler/experiment function)]
    :else (-> [(fan-out/experiment fan-out/quick) (scope/experiment)]
              (into (map ring/experiment) [:jdk :jetty :tomcat :helidon :http-kit])
              (conj (spring-tomcat/experiment) (go-blocks/experiment) (pipelines/experiment)))))

(defn- plan-facts []
  {:cpus (machine/cpus), :hard-file-limit? (machine/hard-file-limit? 256), :engines (serve/engines), :spring-boot (spring-boot/facts)
   :ab? (machine/on-path? "ab"), :channels (channels/facts)})

(defn- say [& words]
  (binding [*out* *err*] (println (str/join words)))
  usage-code)

(defn- announce [out {:keys [estimate-ms experiments]}]
  (binding [*out* out]
    (println (if estimate-ms
               (str "This takes about " (text/duration estimate-ms) " in all.")
               "How long this takes is up to your own work."))
    (doseq [{:keys [not-counted]} experiments :when not-counted]
      (println (str "Not counted: " not-counted ".")))
    (doseq [part (mapcat :parts experiments) :when (:skipped part)]
      (println (str "Skipped: " (:title part) " (" (:skipped part) ").")))
    (doseq [row (mapcat :contenders (mapcat :parts experiments)) :when (:skipped row)]
      (println (str "Skipped: " (:name row) " (" (:skipped row) ").")))))

(defn- by-name
  "Returns the experiments by the names that their plans give them."
  [experiments options]
  (let [facts (plan-facts)]
    (into {} (map (juxt #(:experiment (experiment/plan % options facts)) identity)) experiments)))

(defn- run-plan!
  "Runs the plan, telling of it on out, and returns the result."
  [plan experiments out]
  (let [started (measure/now), facts (machine/facts)
        {:keys [emit! close!]} (progress/show! plan out (and (identical? out *out*) (progress/terminal?)))
        done (try
               (run/run! (by-name experiments (:options plan)) (:experiments plan) emit!)
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
  (let [chosen (experiments options)
        {:keys [error] :as plan} (plan/plan parsed (plan-facts) chosen)
        out (if (:json options) *err* *out*)]
    (cond
      error (say error)
      (:print-plan options) (do (pprint/pprint plan) 0)
      :else (do (announce out plan)
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
        (= :help command) (do (println (cli/help)) 0)
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
