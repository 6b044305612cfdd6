(ns thrum.lab.report.words
  "The words of a report that the terminal and the page share: columns, conditions, notes. Pure."
  (:require
   [clojure.string :as str]
   [thrum.lab.columns :as columns]
   [thrum.lab.download :as download]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.result :as result]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(defn parts
  "Returns the parts of a result, in order, each with :by, the experiment that it is of."
  [{:keys [experiments]}]
  (for [{:keys [experiment parts]} experiments, part parts]
    (assoc part :by (experiments/by-name experiment))))

;; Tables

(defn ask
  "Returns what a function of an experiment makes of args, `instead` where that throws: what cannot
  be shown is no reason to lose a report."
  [instead f & args]
  (try
    (apply f args)
    (catch Throwable _ instead)))

(defn rows
  "Returns the rows of a part's table."
  [{:keys [by contenders] :as part}]
  (if-let [rows (:rows by)] (ask [] (comp vec rows) part) contenders))

(defn- says-something? [{:keys [show]} rows]
  (not-every? #{"–" ""} (map show rows)))

(defn columns
  "Returns the columns of a part's table that say something. The first one names the row."
  [{:keys [by contenders] :as part}]
  (let [{:keys [columns rows]} by
        columns (if (fn? columns)
                  (ask columns/usual (comp vec columns) part)
                  (or columns columns/usual))
        columns (map (fn [column] (update column :show #(partial ask "?" %))) columns)]
    (if rows
      columns
      (cons {:heading "contender", :left? true, :show :name}
            (filter #(says-something? % contenders) columns)))))

;; Sentences

(defn conditions
  "Returns what a part ran under."
  [{:keys [by about scaled] :as part}]
  (let [conditions (some-> (:conditions by) (as-> f (ask nil f part)))]
    (str/join " " (remove nil? [about conditions scaled]))))

(defn times-as-fast
  "Returns sentences about how many times as fast one row of a part is as another, where the part
  compares them."
  [{:keys [against contenders]}]
  (for [{:keys [slow fast published]} against
        :let [[slow fast] (map #(result/row-of contenders %) [slow fast])]
        :when (and (:median-ms slow) (:median-ms fast))]
    (str (:name fast) ": " (text/ratio (/ (:median-ms slow) (:median-ms fast)))
         " as fast as " (:name slow) "; arithmetic allows "
         (text/ratio (/ (:limit-line-ms slow) (:limit-line-ms fast)))
         (if published (str ", published " (text/ratio published) ".") "."))))

(defn facts
  "Returns sentences about what the figures of a part say, with care where the machine was busy."
  [{:keys [by] :as part} busy?]
  (concat (times-as-fast part)
          (when-let [meaning (:meaning by)] (ask nil (comp vec meaning) part busy?))))

(defn kinds
  "Returns failures by kind as words: 1 758 too many open files."
  [kinds]
  (text/commas (for [[kind n] (sort-by (juxt (comp - val) key) kinds)]
                 (str (text/thousands n) " " (download/kind-label kind)))))

(defn- failures [{:keys [samples]}]
  (let [all (apply merge-with + (map :kinds samples))]
    (when (seq all) (kinds all))))

(defn- errors [{:keys [samples]}]
  (some->> (first (keep :error samples)) ((juxt :class :message)) (str/join ": ")))

(defn- statuses [{:keys [own? samples]}]
  (let [{:keys [statuses bytes]} (peek samples)]
    (when (and own? (seq statuses))
      (str (text/commas (for [[status n] (sort statuses)]
                          (str (text/thousands n) " with status " status)))
           "; " (text/bytes bytes) " in all"))))

(defn- trouble [{:keys [samples] :as row}]
  (text/commas (remove nil? [(failures row)
                             (errors row)
                             (when (some :deadline-passed? samples) "the deadline passed")])))

(defn- own-note [{:keys [name] :as row}]
  (let [facts (remove nil? [(statuses row) (some->> (failures row) (str "failed: "))])]
    (when (seq facts)
      (str name ": " (str/join "; " facts) "."))))

(defn note
  "Returns a sentence about what a reader of the row must know, or nil."
  [{:keys [name verdict skipped own?] :as row}]
  (case verdict
    :skipped (str name " was skipped: " skipped ".")
    :broke (str name " broke, as declared: " (trouble row) ".")
    :did-not-break (str name " was declared to break here, and did not.")
    :failed (str name " FAILED: " (trouble row) ".")
    :interrupted (str name " was interrupted.")
    (when own? (own-note row))))

(defn interrupted
  "Returns the sentence that marks an interrupted result, or nil."
  [result]
  (when (result/interrupted? result)
    "Interrupted: what follows was measured before that; the rest has not run."))

(def ^:private much "From this share of the processors' time on, other work spoils figures." 0.25)

(defn busy
  "Returns the sentence that says that the machine had other work, or nil."
  [{{:keys [load cpus other-work]} :machine}]
  (cond
    (and other-work (< much other-work))
    (str "Other work took " (text/whole (* 100 other-work)) " % of the processors' time during the "
         "run. Run it again before you conclude anything.")
    (and load cpus (< cpus load))
    (str "Other work ran on this machine: its load was " (text/decimals 1 load)
         " before the run, on " cpus " processors. Left alone, it does better.")))

;; The machine

(defn- jdk-words [{:keys [version vm vendor collectors]}]
  (str version ", " vm " (" vendor "), " (str/join " and " collectors)))

(defn machine
  "Returns the facts about the machine as [label text] pairs."
  [{:keys [cpu cpus memory-gb os jdk clojure ulimit git load]}]
  (remove (comp nil? second)
          [["CPU" (str cpu ", " cpus " for this JVM")]
           ["Memory" (str memory-gb " GB, of which the heap may take " (:max-heap-gb jdk) " GB")]
           ["System" os]
           ["Load before the run" (some->> load (text/decimals 1))]
           ["JDK" (jdk-words jdk)]
           ["Flags" (if (seq (:flags jdk)) (str/join " " (:flags jdk)) "none")]
           ["Clojure" clojure]
           ["Open files" (str (:open-files ulimit) ", hard limit " (:hard ulimit))]
           ["Source" (when git (str (:sha git) (when (:changed? git) ", with changes")))]]))
