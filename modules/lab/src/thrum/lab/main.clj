(ns thrum.lab.main
  "The lab's front door: argv in, exit code out. It ends the JVM, or thrum.lab.ending does."
  (:require
   [clojure.java.io :as io]
   [clojure.main :as main]
   [clojure.pprint :as pprint]
   [clojure.string :as str]
   [thrum.lab.cli :as cli]
   [thrum.lab.compare :as compare]
   [thrum.lab.ending :as ending]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.goals :as goals]
   [thrum.lab.json :as json]
   [thrum.lab.machine :as machine]
   [thrum.lab.measure :as measure]
   [thrum.lab.other-work :as other-work]
   [thrum.lab.plan :as plan]
   [thrum.lab.progress :as progress]
   [thrum.lab.report.html :as report.html]
   [thrum.lab.report.text :as report.text]
   [thrum.lab.result :as result]
   [thrum.lab.run :as run]
   [thrum.lab.store :as store]
   [thrum.lab.text :as text]
   [thrum.lab.trouble :as trouble])
  (:import
   (clojure.lang ExceptionInfo)))

(set! *warn-on-reflection* true)

(def ^:private failure-code 1)
(def ^:private usage-code 2)

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
  [{:keys [estimate-ms], {:keys [form] :as options} :options}]
  (cond
    (:bench options) "How long this takes is not estimated."
    (nil? estimate-ms) "How long this takes is up to your own work."
    (= :tour form) (str "A tour of what was published takes 3 minutes on two idle processors, "
                        "5 on busy ones.")
    :else (str "This takes about " (text/duration estimate-ms) " in all.")))

(defn- announce [{:keys [experiments], {:keys [form]} :options, :as plan} longer]
  (println (takes plan))
  (when (= :tour form)
    (println (longer)))
  (doseq [{:keys [not-counted]} experiments :when not-counted]
    (println (str "Not counted: " not-counted ".")))
  (print-skipped experiments))

(defn- figures [result]
  (goals/figures experiments/by-name result))

(defn- write-figures!
  "Writes the figures that a release keeps, and returns [path]; nothing where there are none."
  [dir {:keys [machine started] :as result}]
  (when-let [figures (not-empty (goals/by-name (figures result)))]
    [(store/write! dir "latest.edn" {:machine machine, :started started, :figures figures})]))

(defn- keep!
  "Writes the result and its page; returns {:paths}, or {:problem words} where they cannot be
  written."
  [dir result]
  (try
    {:paths (into [(store/write! dir "result.edn" result)
                   (store/write-text! dir "report.html" (report.html/page result))]
                  (write-figures! dir result))}
    (catch Throwable t {:problem (trouble/sentence t)})))

(defn- kept-words [dir {:keys [paths problem]}]
  (if problem
    (str "The results cannot be written into " dir ": " problem)
    (str "Written: " (text/commas paths))))

(defn- goals-report [{:keys [against markdown]} result]
  (when-let [figures (seq (figures result))]
    (goals/report figures
                  (:machine result)
                  (when (and against (.exists (io/file against)))
                    (store/read! against))
                  :markdown? markdown)))

(defn- print-result [{:keys [json markdown outcomes out] :as options} result kept]
  (if json
    (println (json/write result))
    (do (println (report.text/report result :markdown? markdown))
        (when outcomes (println (str "\n" (report.text/outcomes result))))))
  (binding [*out* (if json *err* *out*)]
    (println (str "\n" (kept-words out kept)))
    (some->> (goals-report options result) (str "\n") println)))

(defn- prepared
  "Returns the plan with :started and the facts about the :machine. Makes a page of it for nothing:
  the first one takes long on a busy machine, and a run that is interrupted has little time."
  [plan]
  (let [plan (assoc plan :started (measure/now), :machine (machine/facts))]
    (try
      (report.html/page (assoc plan :ended (:started plan)))
      (catch Exception _))
    plan))

(defn- begin!
  "Returns {:result :kept :emit! :close!} of a plan that is about to run. :result and :kept are
  delays, since the run may end on either of two threads. The result is made of what the journal
  holds when it is first asked for; :kept is the outcome of writing it. emit! reports progress on
  out, until close!."
  [{:keys [options], :as plan} journal out]
  (let [{:keys [emit! close!]}
        (progress/show! plan out (and (identical? out *out*) (progress/terminal?)))
        before (other-work/reading)
        other-work #(other-work/share before (other-work/reading))
        result (delay (-> plan
                          (assoc :experiments @journal :ended (measure/now))
                          (assoc-in [:machine :other-work] (other-work))))]
    {:result result, :kept (delay (keep! (:out options) @result)), :emit! emit!, :close! close!}))

(defn- end-without-runner!
  "Writes what was measured, since the runner does not."
  [{:keys [out]} {:keys [kept close!]}]
  (close!)
  (binding [*out* *err*]
    (println (str "\nInterrupted. " (kept-words out @kept)))))

(defn- printing-on
  "Calls f. What is printed meanwhile goes to out, also by the user's code, and on threads that
  have no bindings of ours: standard output may be for the result alone."
  [out f]
  (if (identical? out *out*)
    (f)
    (let [before System/out]
      (System/setOut System/err)
      (try
        (with-redefs [*out* out] (binding [*out* out] (f)))
        (finally (System/setOut before))))))

(defn- run-plan!
  "Runs the plan with its progress on out, writes and prints the result; returns the exit code."
  [{:keys [options], :as plan} experiments out {:keys [over write]}]
  (let [journal (atom (:experiments plan))
        {:keys [result kept emit! close!], :as begun} (begin! plan journal out)]
    (reset! write #(end-without-runner! options begun))
    (try
      (printing-on out
        #(run/run! experiments (:experiments plan) emit! {:over over, :journal journal}))
      (finally
        (close!)))
    (print-result options @result @kept)
    (if (:problem @kept) failure-code (result/exit-code @result))))

(defn- run-command [{:keys [options] :as parsed} ending]
  (let [chosen (experiments/chosen options)
        facts (experiments/facts chosen)
        plan (plan/plan parsed facts chosen)
        problem (when-not (:print-plan options) (store/problem (:out options)))
        out (if (:json options) *err* *out*)]
    (cond
      problem (say problem)
      (:print-plan options) (do (pprint/pprint plan) 0)
      :else (let [plan (prepared plan)]
              (binding [*out* out] (announce plan #(longer parsed facts chosen)))
              (run-plan! plan experiments/by-name out ending)))))

(defn- comparison
  "Returns the comparison of two files as text. Throws a usage error where they cannot be compared."
  [a b]
  (let [in-a (store/read! a), in-b (store/read! b)]
    (try
      (compare/report in-a in-b)
      (catch ExceptionInfo e (throw e))
      (catch RuntimeException e
        (throw (ex-info (str a " and " b " cannot be compared: one of them is damaged.")
                        {:type :thrum/lab-usage}
                        e))))))

(defn- compare-command [{[a b] :files}]
  (println (comparison a b))
  0)

(defn run
  "Does what argv asks for and returns the exit code; see thrum.lab.result/exit-codes. `ending` is
  the state in which the run may end before its time, see thrum.lab.ending/state: what was measured
  is still written."
  ([argv] (run argv (ending/state)))
  ([argv ending]
   (try
     (let [{:keys [error command] :as parsed} (cli/parse argv)]
       (cond
         error (say error)
         (= :help command) (do (println (cli/help (:topic parsed))) 0)
         (= :compare command) (compare-command parsed)
         :else (run-command parsed ending)))
     (catch ExceptionInfo e
       (if (trouble/usage? e)
         (say (ex-message e))
         (throw e))))))

(defn- report!
  "Prints a failure of the lab itself, unless the run is over: an interrupt's consequences are not
  reported."
  [t {:keys [over]}]
  (when-not (realized? over)
    (main/report-error t))
  failure-code)

(defn -main
  "Runs argv and exits with its code."
  [& argv]
  (let [{:keys [ended] :as ending} (ending/state)]
    (ending/watch! ending)
    (let [code (try
                 (run argv ending)
                 (catch Throwable t (report! t ending))
                 (finally (flush) (deliver ended true)))]
      (System/exit code))))
