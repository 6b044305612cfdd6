(ns thrum.lab.columns
  "The columns that tables of several experiments have. Each shows a figure of a row of a result; a
  column that is empty for every row is omitted. :on-page is the heading on a page where that
  differs. Pure."
  (:require
   [clojure.string :as str]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(defn each-sample
  "Returns the smallest and the largest figure of a row's samples as one word: 5, or 3–5."
  [figure {:keys [samples]}]
  (let [values (keep figure samples)]
    (cond
      (empty? values) "–"
      (apply = values) (text/thousands (first values))
      :else (str (text/thousands (apply min values)) "–" (text/thousands (apply max values))))))

(defn of-samples
  "Returns the median of a figure of a row's samples, shown by show; a dash where none has it."
  [show figure {:keys [samples]}]
  (if-let [median (stats/median (keep figure samples))] (show median) "–"))

(defn verdict-words
  "Returns a verdict as words."
  [verdict]
  (str/replace (name verdict) "-" " "))

(defn median-words
  "Returns the row's median, a time or requests per second; how it ended, where there is none."
  [{:keys [median-ms median-per-second verdict]}]
  (cond
    median-ms (text/ms median-ms)
    median-per-second (text/per-second median-per-second)
    :else (verdict-words verdict)))

(defn times-limit-words
  "Returns how many times its limit line the row's median is."
  [{:keys [over-limit of-limit]}]
  (text/ratio (or over-limit of-limit)))

(defn- limit-line-words [{:keys [limit-line-ms limit-line-per-second]}]
  (if limit-line-per-second (text/per-second limit-line-per-second) (text/ms limit-line-ms)))

(defn- published-words
  "Returns the published figure beside its own limit line, with the threads that were seen; or what
  was published instead of one."
  [{{:keys [ms limit-line-ms per-second limit-line-per-second threads text]} :published}]
  (cond
    threads (str (text/ms ms) ", " threads " threads (limit line " (text/ms limit-line-ms) ")")
    per-second (str (text/per-second per-second)
                    " (limit line " (text/per-second limit-line-per-second) ")")
    ms (str (text/ms ms) " (limit line " (text/ms limit-line-ms) ")")
    text text
    :else ""))

(defn- sample-words [{:keys [ms per-second]}]
  (if per-second (text/per-second per-second) (text/ms ms)))

(def median {:heading "median", :show median-words})

(def samples
  "How many samples there are; on a page, which has room, the samples, where there are several."
  {:heading "samples"
   :class "samples"
   :show (comp str count :samples)
   :page-words (fn [{:keys [samples]}] (when (next samples) (map sample-words samples)))})

(def limit-line {:heading "limit line", :show limit-line-words})
(def times-limit {:heading "x limit", :on-page "times the limit", :show times-limit-words})
(def in-flight {:heading "in flight", :show (partial each-sample :peak)})
(def ok {:heading "ok", :show (partial each-sample :ok)})
(def failed {:heading "failed", :show (partial each-sample :failed)})
(def p50 {:heading "p50", :show (partial of-samples text/ms :p50-ms)})
(def p99 {:heading "p99", :show (partial of-samples text/ms :p99-ms)})

(def threads
  {:heading "threads", :on-page "platform threads", :show (partial each-sample :threads)})

(def published {:heading "published", :left? true, :show published-words})

(def usual
  "The columns of an experiment that brings none."
  [median samples limit-line times-limit published])
