(ns thrum.dev.performance-doc
  "Publishes a run of all benchmarks: its figures into bench/results, its tables into
  doc/performance.md. ./cljw -M:publish-bench target/bench does both; the sentences around the
  tables are written by hand."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.dev.page :as page]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.goals :as goals]
   [thrum.lab.store :as store])
  (:import
   (java.math MathContext)
   (java.util Locale)))

(set! *warn-on-reflection* true)

(def ^:private file "doc/performance.md")
(def ^:private folder "bench/results")

;; From a result to the figures that are kept

(defn- rounded
  "Returns the number with five significant digits."
  [x]
  (let [n (.round (bigdec x) (MathContext. 5))]
    (if (zero? (rem n 1)) (long n) (double n))))

(defn- kept
  "Returns a value of a row as it is kept: a spread as [median lowest highest], or as [figure] where
  all agree."
  [x]
  (cond
    (and (map? x) (= #{:median :min :max} (set (keys x))))
    (cond-> (mapv (comp rounded x) [:median :min :max])
      (= (:min x) (:max x)) (subvec 0 1))
    (map? x) (update-vals x kept)
    (sequential? x) (mapv kept x)
    (ratio? x) (rounded x)
    (float? x) (rounded x)
    (keyword? x) x
    (or (nil? x) (boolean? x) (integer? x)) x
    :else (str x)))

(defn- judged
  "Returns how many figures have a goal, and those that miss it."
  [result]
  (let [with-goals (filter (comp some? goals/met?) (goals/figures experiments/by-name result))]
    {:of (count with-goals)
     :missed (mapv #(kept (select-keys % [:figure :value :at-most :at-least]))
                   (remove goals/met? with-goals))}))

(defn- benchmark [date {:keys [experiment parts]}]
  (let [rows (:rows (experiments/by-name experiment))
        [{:keys [jvms jvm-opts] :as part}] parts]
    {:name (keyword (name experiment))
     :date date
     :jvms jvms
     :flags (str/join " " jvm-opts)
     :rows (mapv kept (rows part))}))

(defn run
  "Returns what is kept of a result: {:machine :jdk :clojure :goals :benchmarks}."
  [{:keys [machine experiments started] :as result}]
  {:machine (select-keys machine [:cpu :cpus :memory-gb :os])
   :jdk (select-keys (:jdk machine) [:version :vendor :collectors])
   :clojure (:clojure machine)
   :goals (judged result)
   :benchmarks (mapv #(benchmark (subs started 0 10) %) experiments)})

;; From the figures that are kept to tables. Each shows the median, some the lowest and highest too.

(defn- number [places x]
  (-> (String/format Locale/ROOT (str "%,." places "f") (to-array [(double x)]))
      (str/replace "," " ")))

(defn- median [places [x]]
  (if x (number places x) ""))

(defn- spread [places [x lowest highest :as figure]]
  (cond-> (median places figure)
    (and x highest) (str " (" (number places lowest) "-" (number places highest) ")")))

(defn- goal [x]
  (if x (number 2 x) ""))

(defn- beside
  "Returns {key {consumer row}} of rows that are measured from both kinds of threads."
  [rows key]
  (update-vals (group-by key rows) #(into {} (map (juxt :consumer identity)) %)))

(def ^:private overhead-ways
  [[:pmap "`t/pmap`"] [:upmap "`t/upmap`"] [:pmapv "`t/pmapv`"] [:prun! "`t/prun!`"]
   [:pmap-16 "`t/pmap`, `:batch 16`"] [:pmap-64 "`t/pmap`, `:batch 64`"]
   [:prun!-64 "`t/prun!`, `:batch 64`"] [:chunks "Virtuoso's `pmap`, its shape"]
   [:bare "bare executor"]])

(defn- overhead [rows]
  (let [of (beside rows (juxt :limit :way))]
    (page/figures
      ["way" "limit" "ns, platform caller" "CPU x hand" "goal" "ns, virtual caller" "CPU x hand"
       "goal" "bytes x hand"]
      (for [limit [64 512]
            [way title] overhead-ways
            :let [{:keys [main virtual]} (of [limit way])]]
        [title limit
         (median 0 (:ns main)) (spread 2 (:cpu-to-hand main)) (goal (:goal main))
         (median 0 (:ns virtual)) (spread 2 (:cpu-to-hand virtual)) (goal (:goal virtual))
         (number 2 (max (first (:bytes-to-hand main)) (first (:bytes-to-hand virtual))))]))))

(defn- sleeps [rows]
  (let [of (into {} (map (juxt (juxt :input :limit :way) identity)) rows)]
    (page/figures
      ["sleeps" "of them" "limit" "`t/pmap`" "`:window 4096`" "`t/upmap`" "over chunks"]
      (for [[input title] [[:exponential "exponential, mean 20 ms"]
                           [:tail "1 % of 500 ms among 5 ms"]]
            limit [16 64]]
        (into [title (number 0 (:items (of [input limit :pmap]))) limit]
              (for [[way places] [[:pmap 3] [:pmap-4096 3] [:upmap 3] [:chunks 2]]]
                (median places (:to-line (of [input limit way])))))))))

(defn- scopes [rows]
  (let [of (beside rows (juxt :forks :way))]
    (page/figures
      ["way" "forks" "ns, platform caller" "CPU x by hand" "ns, virtual caller" "CPU x by hand"
       "goal"]
      (for [forks [0 2 8]
            [way title] [[:scope "`t/with-scope`"] [:all "`t/all`"]]
            :let [{:keys [main virtual]} (of [forks way])]]
        [title forks
         (median 0 (:ns main)) (spread 2 (:cpu-to-hand main))
         (median 0 (:ns virtual)) (spread 2 (:cpu-to-hand virtual)) (goal (:goal main))]))))

(def ^:private ways
  {:bare "bare virtual threads", :hand "an executor's futures, with names and bindings"
   :future "`t/future`", :fmap "`t/pmap-tasks`", :pmap "`t/pmap`"
   :pmapv-failing "`t/pmapv`, one fails", :pmapv-interrupted "`t/pmapv`, its caller is interrupted"
   :pmap-failing "`t/pmap`, the first fails", :scope "`t/with-scope`, cancelled"
   :executor "an executor's `shutdownNow`, `awaitTermination`"})

(defn- calls [rows]
  (let [of (beside rows :way)]
    (page/figures
      ["way" "beside" "ns, platform caller" "CPU x" "ns, virtual caller" "CPU x"]
      (for [[way title other] [[:with-timeout "`t/with-timeout`, empty" ""]
                               [:hedge "`t/hedge` of two, the first in time" "`t/race`"]
                               [:limiter "`t/limiter`, a free permit" "`Semaphore`, fair"]
                               [:rate-limiter "`t/rate-limiter`, a free permit"
                                "`Semaphore`, fair"]]
            :let [{:keys [main virtual]} (of way)]]
        [title other
         (median 0 (:ns main)) (spread 2 (:cpu-to-hand main))
         (median 0 (:ns virtual)) (spread 2 (:cpu-to-hand virtual))]))))

(defn- parked [rows]
  (page/figures
    ["a million parked tasks" "heap, B each" "resident, B each" "goal"]
    (for [{:keys [way heap rss] needed :goal} rows]
      [(ways way) (median 0 heap) (median 0 rss) (if needed (number 0 needed) "")])))

(defn- cancel [rows]
  (page/figures
    ["until all have ended, ms" "10 000 tasks" "100 000" "300 000"]
    (for [{:keys [way ms]} rows]
      (into [(ways way)] (map #(median 0 (ms %))) [10000 100000 300000]))))

(defn- limiter [rows]
  (let [of (into {} (map (juxt :way identity)) rows)
        ms #(if % (str (median 0 %) " ms") "")]
    (page/figures
      ["" "ns per grant" "Jain's index" "cancel of 10 000 who wait" "20 000"]
      (for [[way title] [[:limiter "`t/limiter`"] [:fair "`Semaphore`, fair"]
                         [:unfair "`Semaphore`, unfair"]]
            :let [{:keys [ns evenness cancel-ms]} (of way)]]
        [title (median 0 ns) (median 3 evenness)
         (ms (get cancel-ms 10000)) (ms (get cancel-ms 20000))]))))

(defn- as-code
  "Returns a title with the calls of the library's in it as code."
  [title]
  (str/replace title #"a/[^ ,]+|pipeline-blocking|(?<!/)[<>]!!" page/code))

(defn- pipelines [rows]
  (page/figures
    ["way" "ns per item" "x core.async's" "goal"]
    (for [{:keys [title ns to-core] needed :goal} rows]
      [(as-code title) (spread 0 ns) (spread 2 to-core) (goal needed)])))

(def ^:private questions
  {:cost "no sleep, 120 connections"
   :plain-cost "no sleep, 120 connections, no headers"
   :apart "no sleep, 120 connections, apart"
   :plain-apart "no sleep, 120 connections, no headers, apart"
   :sleep "50 ms, 120 connections"
   :many "50 ms, 4 000 connections"})

(def ^:private units
  {:requests "requests/s", :cpu "CPU, µs a request", :errors "errors", :p99 "p99, ms"
   :heap "heap, B a sleeping connection"})

(defn- server-figure
  "Returns the figure with two decimals for CPU time, with four digits for a time."
  [unit [x :as figure]]
  (median (case unit :cpu 2, :p99 (if (< x 1000) 1 0) 0) figure))

(defn- servers [rows]
  (page/figures
    ["engine" "handler" "figure" "bare" "`thrum.server`" "x bare" "best rounds" "goal"]
    (for [{:keys [engine question figure bare thrum ratio best reuse?] needed :goal} rows]
      [(page/code engine)
       (str (get questions question question) (when reuse? ", `:reuse-threads?`"))
       (units figure)
       (server-figure figure bare) (server-figure figure thrum) (median 2 ratio) (median 2 best)
       (str/replace (str needed) #"^[<>]= " "")])))

(defn- shown [x]
  (number (if (<= 100 (abs (double x))) 0 2) x))

(defn- missed [{:keys [missed]}]
  (page/figures
    ["figure" "here" "goal"]
    (for [{:keys [figure value at-most at-least]} missed
          :let [needed (shown (or at-most at-least))]]
      [figure
       (if (= needed (shown value)) (number 4 value) (shown value))
       (str (if at-most "at most " "at least ") needed)])))

(def ^:private tables
  "By the marker on the page: whose rows a table shows, and the function that makes it of them."
  {"overhead" [:overhead overhead], "sleeps" [:sleeps sleeps], "scopes" [:scopes scopes]
   "calls" [:scopes calls], "parked" [:parked parked], "cancel" [:cancel cancel]
   "limiter" [:limiter limiter], "pipelines" [:pipelines pipelines]
   "servers" [:servers servers]})

(defn written
  "Returns the text of the page with the tables of a run."
  [text {:keys [benchmarks goals]}]
  (let [rows (into {} (map (juxt :name :rows)) benchmarks)]
    (reduce-kv (fn [text marker [benchmark table]]
                 (page/section text marker (table (rows benchmark))))
               (page/section text "missed" (missed goals))
               tables)))

(defn newest
  "Returns the newest run of those that are kept."
  []
  (->> (.listFiles (io/file folder))
       (filter #(re-find #"\d{4}-\d\d-\d\d\.edn$" (str %)))
       sort
       last
       slurp
       edn/read-string))

;; A run as a file that a diff can show: a row takes a line

(defn- line [x]
  (binding [*print-namespace-maps* false] (pr-str x)))

(defn- as-text [{:keys [machine jdk clojure goals benchmarks]}]
  (str ";; A run of all benchmarks, ./cljw -M:bench: [median lowest highest], or [figure] where "
       "all JVMs agree.\n"
       "{:machine " (line machine)
       "\n :jdk " (line jdk)
       ", :clojure " (line clojure)
       "\n :goals {:of " (:of goals) ", :missed\n  ["
       (str/join "\n   " (map line (:missed goals))) "]}"
       "\n :benchmarks\n ["
       (str/join "\n  "
                 (for [{:keys [rows] :as benchmark} benchmarks]
                   (str (str/replace (line (dissoc benchmark :rows)) #"\}$" "") ", :rows\n   ["
                        (str/join "\n    " (map line rows)) "]}")))
       "]}\n"))

(defn -main
  "Publishes the run whose result.edn and latest.edn are in the folder."
  [from]
  (let [{:keys [started] :as result} (store/read! (io/file from "result.edn"))
        published (run result)
        page (written (slurp file) published)]
    ;; First: a quick form, or a run of some, has none, and is not published.
    (io/copy (io/file from "latest.edn") (io/file folder "latest.edn"))
    (spit (io/file folder (str (subs started 0 10) ".edn")) (as-text published))
    (spit file page)))
