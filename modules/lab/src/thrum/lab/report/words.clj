(ns thrum.lab.report.words
  "The words of a report that the terminal and the page share: cells, conditions, notes. Pure."
  (:refer-clojure :exclude [peek])
  (:require
   [clojure.string :as str]
   [thrum.lab.download :as download]
   [thrum.lab.load :as load]
   [thrum.lab.result :as result]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text])
  (:import
   (java.util Locale)))

(set! *warn-on-reflection* true)

(defn- each-sample
  "Returns the smallest and the largest of a figure of a row's samples as one word: 5, or 3-5."
  [samples figure]
  (let [values (keep figure samples)]
    (cond
      (empty? values) "–"
      (apply = values) (text/thousands (first values))
      :else (str (text/thousands (apply min values)) "–" (text/thousands (apply max values))))))

(defn peak
  "Returns the most tasks that were in flight."
  [{:keys [samples]}]
  (each-sample samples :peak))
(defn ok "Returns how many items went well." [{:keys [samples]}] (each-sample samples :ok))
(defn failed "Returns how many items failed." [{:keys [samples]}] (each-sample samples :failed))
(defn left
  "Returns how many calls had not ended some time after the answer."
  [{:keys [samples]}]
  (each-sample samples :left))

(defn verdict-words "Returns a verdict as words." [verdict] (str/replace (name verdict) "-" " "))

(defn median
  "Returns the row's median, a time or requests per second, as words; how it ended, where there is
  none."
  [{:keys [median-ms median-per-second verdict]}]
  (cond
    median-ms (text/ms median-ms)
    median-per-second (text/per-second median-per-second)
    :else (verdict-words verdict)))

(defn limit-line
  "Returns the row's limit line, in the unit of its median."
  [{:keys [limit-line-ms limit-line-per-second]}]
  (if limit-line-per-second (text/per-second limit-line-per-second) (text/ms limit-line-ms)))

(defn times-limit
  "Returns how many times its limit line the row's median is."
  [{:keys [over-limit of-limit]}]
  (text/ratio (or over-limit of-limit)))

(defn- of-samples
  "Returns the median of a figure of the samples, shown by show; a dash where none has it."
  [show figure samples]
  (if-let [median (stats/median (keep figure samples))] (show median) "–"))

(defn p50
  "Returns the median of the samples' median latencies."
  [{:keys [samples]}]
  (of-samples text/ms :p50-ms samples))
(defn p99
  "Returns the median of the samples' 99th percentiles."
  [{:keys [samples]}]
  (of-samples text/ms :p99-ms samples))
(defn threads
  "Returns the most platform threads that the server, or the JVM, had."
  [{:keys [samples]}]
  (each-sample samples :threads))
(defn rss
  "Returns the server's resident memory."
  [{:keys [samples]}]
  (of-samples #(text/bytes (long %)) :rss samples))

(defn heap-each
  "Returns the heap of a connection whose handler sleeps."
  [{:keys [samples]}]
  (of-samples #(text/bytes (max 0 (Math/round (double %)))) :heap-each samples))

(defn load-errors
  "Returns the requests that went wrong under load, by kind: 364 timeout."
  [{:keys [samples]}]
  (let [all (apply merge-with + (keep :errors samples))]
    (cond (seq all) (text/commas (map (fn [[kind n]] (str (text/thousands n) " " (name kind)))
                                      (sort-by key all)))
          (some :errors samples) "0"
          :else "–")))

(defn cold
  "Returns what the first time in a JVM took, and how many times the limit line that is."
  [{:keys [samples limit-line-ms]}]
  (of-samples #(str (text/ms %)
                    (when limit-line-ms (str " (" (text/ratio (/ % limit-line-ms)) ")")))
              :cold-ms
              samples))

(defn- threads-left
  "Returns the threads that were left of pipelines abandoned in a way, the most of each kind in a
  sample: 0, or 50 platform, 1 virtual."
  [way samples]
  (if-let [left (seq (keep way samples))]
    (let [counts (for [kind [:platform :virtual]
                       :let [most (apply max (map kind left))]
                       :when (pos? most)]
                   (str (text/thousands most) " " (name kind)))]
      (if (seq counts) (str/join ", " counts) "0"))
    "–"))

(defn left-unread
  "Returns the threads left of a pipeline that nobody read any more."
  [{:keys [samples]}]
  (threads-left :unread samples))
(defn left-closed
  "Returns the threads left of a pipeline whose reader had closed it."
  [{:keys [samples]}]
  (threads-left :closed samples))
(defn taken-closed
  "Returns what such a one took from its source later."
  [{:keys [samples]}]
  (each-sample samples (comp :taken :closed)))

(defn published
  "Returns the published figure beside its own limit line, with the threads that were seen; or what
  was published instead of one."
  [{{:keys [ms limit-line-ms per-second limit-line-per-second threads text]} :published}]
  (cond threads (str (text/ms ms) ", " threads " threads (limit line " (text/ms limit-line-ms) ")")
        per-second (str (text/per-second per-second)
                        " (limit line "
                        (text/per-second limit-line-per-second)
                        ")")
        ms (str (text/ms ms) " (limit line " (text/ms limit-line-ms) ")")
        text text
        :else ""))

(defn point
  "Returns a row's median time with n requests at once, beside its limit line."
  [n {:keys [median-points limit-points]}]
  (if-let [[_ ms] (some #(when (= n (first %)) %) median-points)]
    (str (text/ms ms) " (" (text/ms (second (some #(when (= n (first %)) %) limit-points))) ")")
    "–"))

(defn samples "Returns how many samples there are." [{:keys [samples]}] (str (count samples)))

(def columns
  "The columns of a part's table: the heading in a terminal, on a page where that differs, and the
  cell of a row. :words are read, not compared."
  [{:heading "median", :cell median}
   {:heading "cold", :cell cold}
   {:heading "samples", :cell samples}
   {:heading "limit line", :cell limit-line}
   {:heading "x limit", :on-page "times the limit", :cell times-limit}
   {:heading "in flight", :cell peak}
   {:heading "still running", :cell left}
   {:heading "ok", :cell ok}
   {:heading "failed", :cell failed}
   {:heading "p50", :cell p50}
   {:heading "p99", :cell p99}
   {:heading "errors", :cell load-errors}
   {:heading "threads", :on-page "platform threads", :cell threads}
   {:heading "left, closed", :cell left-closed}
   {:heading "taken after", :cell taken-closed}
   {:heading "left, unread", :cell left-unread}
   {:heading "RSS", :cell rss}
   {:heading "heap each", :on-page "heap, sleeping connection", :cell heap-each}
   {:heading "published", :cell published, :words? true}])

(defn- says-something? [{:keys [cell]} rows]
  (not-every? #{"–" ""} (map cell rows)))

(defn columns-of
  "Returns the columns that a part's table has, of columns or of others like them: of a part with
  crowds the curves' points, else those that say something."
  [columns {:keys [crowds contenders]}]
  (if crowds
    (map (fn [n] {:heading (str n " at once"), :cell (partial point n)}) crowds)
    (filter #(says-something? % contenders) columns)))

(defn times-as-fast
  "Returns sentences about how many times as fast one row of a part is as another, where the part
  compares them."
  [{:keys [against contenders]}]
  (for [{:keys [slow fast published]} against
        :let [[slow fast] (map (fn [wanted] (some #(when (= wanted (:contender %)) %) contenders))
                               [slow fast])]
        :when (and (:median-ms slow) (:median-ms fast))]
    (str (:name fast)
         ": "
         (text/ratio (/ (:median-ms slow) (:median-ms fast)))
         " as fast as "
         (:name slow)
         "; arithmetic allows "
         (text/ratio (/ (:limit-line-ms slow) (:limit-line-ms fast)))
         (if published (str ", published " (text/ratio published) ".") "."))))

(defn- burst-conditions
  "Returns how requests were sent at once, in a sentence or two; nil of a part without such."
  [{:keys [sleep-ms connections crowds n contenders]}]
  (when (and sleep-ms (not connections))
    (let [generators (distinct (keep :generator (mapcat :samples contenders)))]
      (str (if crowds (text/commas crowds) (text/thousands n))
           " requests of "
           (text/ms sleep-ms)
           " at once, a connection for each; a JVM for each configuration."
           (when (some #(= :cold (:state (:job %))) contenders)
             " Cold: the first requests after the start of the application.")
           (when-not crowds " Warm: after 3 100 others, which do not count.")
           (when (seq generators)
             (str " The requests came from "
                  (text/commas (map load/generator-name generators))
                  "."))))))

(defn- load-conditions
  "Returns how a server was put under load, in two sentences, or one before the first sample; nil of
  a part without load."
  [{:keys [connections seconds warm-up-seconds contenders]}]
  (when connections
    (let [generators (distinct (keep :generator (mapcat :samples contenders)))]
      (str (text/thousands connections)
           " connections for " seconds
           " s, after " warm-up-seconds
           " s to warm up; each contender has a server in a JVM of its own."
           (when (seq generators)
             (str " The load came from "
                  (text/commas (map load/generator-name generators))
                  "."))))))

(defn conditions
  "Returns what a part ran under, in a sentence."
  [{:keys [about n bytes rate scaled client-jvm], :as part}]
  (str/join
    " "
    (remove nil?
            [about (load-conditions part) (burst-conditions part)
             (when bytes
               (str (text/thousands n)
                    " files of "
                    (text/bytes bytes)
                    ", "
                    (if (number? rate) (str "each sent at " (text/rate rate)) "sent without a limit")
                    "."))
             (when client-jvm
               (str "Each contender has a client JVM of its own: " (str/join " " client-jvm) "."))
             scaled])))

(defn kinds
  "Returns failures by kind as words: 1 758 too many open files."
  [kinds]
  (text/commas (map (fn [[kind n]] (str (text/thousands n) " " (download/kind-label kind)))
                    (sort-by (juxt (comp - val) key) kinds))))

(defn- failures [{:keys [samples]}]
  (let [all (apply merge-with + (map :kinds samples))]
    (when (seq all) (kinds all))))

(defn- errors [{:keys [samples]}]
  (some->> (first (keep :error samples)) ((juxt :class :message)) (str/join ": ")))

(defn- statuses
  [{:keys [own? samples]}]
  (when (and own? (seq (:statuses (clojure.core/peek samples))))
    (let [{:keys [statuses bytes]} (clojure.core/peek samples)]
      (str (text/commas (map (fn [[status n]] (str (text/thousands n) " with status " status))
                             (sort statuses)))
           "; "
           (text/bytes bytes)
           " in all"))))

(defn- trouble
  [row]
  (text/commas (remove nil?
                       [(failures row) (errors row)
                        (when (some :deadline-passed? (:samples row)) "the deadline passed")])))

(defn note
  "Returns a sentence about what a reader of the row must know, or nil."
  [{:keys [name verdict skipped], :as row}]
  (case verdict
    :skipped (str name " was skipped: " skipped ".")
    :broke (str name " broke, as declared: " (trouble row) ".")
    :did-not-break (str name " was declared to break here, and did not.")
    :failed (str name " FAILED: " (trouble row) ".")
    :interrupted (str name " was interrupted.")
    (when (:own? row)
      (when-let [facts (seq (remove nil?
                                    [(statuses row)
                                     (some->> (failures row)
                                              (str "failed: "))]))]
        (str name ": " (str/join "; " facts) ".")))))

(defn interrupted
  "Returns the sentence that marks an interrupted result, or nil."
  [result]
  (when (result/interrupted? result)
    "Interrupted: what follows was measured before that; the rest has not run."))

(defn- one-decimal [x]
  (String/format Locale/ROOT "%.1f" (to-array [(double x)])))

(defn busy
  "Returns the sentence that says that the machine had other work, or nil."
  [{{:keys [load cpus]} :machine}]
  (when (and load cpus (< cpus load))
    (str "Other work ran on this machine: its load was " (one-decimal load) " before the run, on "
         cpus " processors. Left alone, it does better.")))

(defn machine
  "Returns the facts about the machine as [label text] pairs."
  [{:keys [cpu cpus memory-gb os jdk clojure ulimit git load]}]
  (remove (comp nil? second)
          [["CPU" (str cpu ", " cpus " for this JVM")]
           ["Memory" (str memory-gb " GB, of which the heap may take " (:max-heap-gb jdk) " GB")]
           ["System" os]
           ["Load before the run"
            (some-> load
                    one-decimal)]
           ["JDK"
            (str (:version jdk)
                 ", " (:vm jdk)
                 " (" (:vendor jdk)
                 "), " (str/join " and " (:collectors jdk)))]
           ["Flags" (if (seq (:flags jdk)) (str/join " " (:flags jdk)) "none")] ["Clojure" clojure]
           ["Open files" (str (:open-files ulimit) ", hard limit " (:hard ulimit))]
           ["Source" (when git (str (:sha git) (when (:changed? git) ", with changes")))]]))
