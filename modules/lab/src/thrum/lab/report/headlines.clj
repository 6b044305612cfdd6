(ns thrum.lab.report.headlines
  "The rows that a report opens on: one for each part whose figure was published, with that figure,
  ours, what arithmetic allows, and a verdict. Pure."
  (:require
   [clojure.string :as str]
   [thrum.lab.report.words :as words]
   [thrum.lab.result :as result]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

;; The figures of a pair of contenders: published, ours, and their limit lines

(defn- threads [{:keys [samples verdict]}]
  (when (= :done verdict)
    (stats/median (keep :threads samples))))

(def ^:private figures
  "By :figure of a headline: how to read it off a row, and what makes words of it."
  {:ms {:ours :median-ms, :published :ms, :limit :limit-line-ms, :shown text/ms}
   :per-second {:ours :median-per-second, :published :per-second, :limit :limit-line-per-second
                :shown text/per-second, :more-is-better? true}
   :threads {:ours threads, :published :threads, :limit (constantly nil)
             :shown #(text/thousands (long %)), :unit " threads"}})

(defn- pair
  "Returns {:words :factor} of a figure of two rows, nil where one of them has none."
  [{:keys [shown unit more-is-better?]} figure slow fast]
  (let [[slow fast] (map figure [slow fast])]
    (when (and slow fast)
      {:words (str (shown slow) " → " (shown fast) unit)
       :factor (if more-is-better? (/ fast slow) (/ slow fast))})))

(defn- chosen
  "Returns the rows of the first pair that was measured, of the first pair where none was."
  [{:keys [pairs figure]} contenders]
  (let [rows (map (fn [pair] (map (partial result/row-of contenders) pair)) pairs)
        {:keys [ours]} (figures figure)]
    (or (first (filter (partial every? ours) rows)) (first rows))))

(defn- published-pair
  "Returns the pair that has published figures, whichever was measured."
  [{:keys [pairs figure]} contenders]
  (let [{was :published :as reading} (figures figure)]
    (some (fn [rows]
            (let [[slow fast] (map (partial result/row-of contenders) rows)]
              (pair reading (comp was :published) slow fast)))
          pairs)))

;; The verdict

(defn- reason
  "Returns why there is no figure."
  [{:keys [skipped]} rows]
  (str/replace (or skipped (some words/note rows) "not run") #"\.$" ""))

(defn grade
  "Returns :as-published, :less or :not, for a factor beside the published one and the one that
  arithmetic allows, either of them nil."
  [factor published limit]
  (let [share (apply max 0 (map #(/ factor %) (remove nil? [published limit])))]
    (cond
      (or (< factor 1.2) (< share 0.3)) :not
      (< share 0.8) :less
      :else :as-published)))

(def ^:private grades
  {:as-published "Confirmed"
   :less "Confirmed, but less than published"
   :not "Not confirmed"})

(defn- beside
  "Returns the words about one more figure, nil where it was not measured."
  [{[contender words] :beside, :keys [figure]} contenders]
  (let [{:keys [ours shown unit]} (figures figure)]
    (when-let [value (some-> (result/row-of contenders contender) ours)]
      (format words (str (shown value) unit)))))

(defn- verdict [{:keys [because figure] :as headline} contenders grade [slow fast]]
  (str (grades grade)
       (when-not (= :not grade) (str ": " because))
       (when (= :threads figure)
         (str " (" (text/ms (:median-ms slow)) " → " (text/ms (:median-ms fast)) ")"))
       (some->> (beside headline contenders) (str "; "))
       "."))

(defn- limit-words [{limit :words} fast]
  (or limit (text/ms (:limit-line-ms fast))))

(defn- headline-row [{:keys [part headline contenders] :as question}]
  (let [[slow fast :as rows] (chosen headline contenders)
        {:keys [ours limit] :as reading} (figures (:figure headline))
        published (published-pair headline contenders)
        here (when-not (:skipped question) (pair reading ours slow fast))
        limit (pair reading limit slow fast)
        grade (when here (grade (:factor here) (:factor published) (:factor limit)))]
    {:part part
     :system (:system headline)
     :published published
     :here here
     :limit (assoc limit :words (limit-words limit fast))
     :grade (or grade :missing)
     :verdict (if here
                (verdict headline contenders grade rows)
                (str "Not measured: " (reason question rows) "."))}))

(def about
  "What the rows show, in a sentence or two."
  (str "Each row: the slow way → the fast way. What was published is of other machines; the limit "
       "line is the best that arithmetic allows at the sizes of this run."))

(defn rows
  "Returns the rows of a result, {:part :system :published :here :limit :grade :verdict}, in its
  order. :published, :here and :limit are {:words :factor}, of which :here is nil where nothing was
  measured; :grade is :as-published, :less, :not or :missing."
  [{:keys [experiments]}]
  (map headline-row (filter :headline (mapcat :parts experiments))))
