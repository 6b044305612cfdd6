(ns thrum.lab.result
  "What became of a plan: verdicts and exit codes, from rows with samples. Pure.

  A verdict is :done, :failed, :broke (as declared), :did-not-break, :interrupted, :skipped or
  :not-run."
  (:require
   [thrum.lab.stats :as stats]))

(set! *warn-on-reflection* true)

(def exit-codes
  "The exit codes of the lab, and what they mean."
  [[0 "done"]
   [1 "a contender failed, or the results could not be written"]
   [2 "wrong arguments"]
   [3 "an experiment that was asked for by name was skipped"]
   [130 "interrupted by Ctrl-C; 143 by SIGTERM, 129 by SIGHUP"]])

(defn- failed? [{:keys [failed error deadline-passed?]}]
  (or (pos? (or failed 0)) (some? error) (true? deadline-passed?)))

(defn verdict
  "Returns what became of a row. Failures of a user's own inputs (:own? rows) are outcomes, not
  failures of the contender."
  [{:keys [expect own? skipped]} samples]
  (cond
    skipped :skipped
    (empty? samples) :not-run
    (some :interrupted? samples) :interrupted
    (= :breaks expect) (if (some failed? samples) :broke :did-not-break)
    own? (if (some :error samples) :failed :done)
    (some failed? samples) :failed
    :else :done))

(defn- whole
  "Returns the samples that ran to their end."
  [samples]
  (remove #(or (:interrupted? %) (:error %) (:deadline-passed? %)) samples))

(defn- times [median limit]
  (when (and median limit (pos? limit))
    (/ median limit)))

(defn- median-points
  "Returns the curve of medians, [[n ms] …]; nil where the samples are no curves."
  [samples]
  (when-let [curves (seq (keep :points samples))]
    (apply mapv (fn [& points] [(ffirst points) (stats/median (map second points))]) curves)))

(defn summarize
  "Returns the row with :verdict, and, of the samples that ran to their end, :median-ms and
  :over-limit, how many times the limit line that is; of a server under load :median-per-second and
  :of-limit; of curves :median-points. A row that broke or failed has none of them: the time of half
  the work compares with nothing."
  [{:keys [limit-line-ms limit-line-per-second samples], :as row}]
  (let [verdict (verdict row samples)
        median (fn [figure]
                 (when-not (#{:broke :failed} verdict)
                   (stats/median (keep figure (whole samples)))))
        ms (median :ms)
        per-second (median :per-second)
        points (when (= :done verdict) (median-points (whole samples)))]
    (cond-> (assoc (dissoc row :median-per-second :of-limit :median-points)
                   :verdict verdict
                   :median-ms ms
                   :over-limit (times ms limit-line-ms))
      points (assoc :median-points points)
      per-second (assoc :median-per-second per-second
                        :of-limit (times per-second limit-line-per-second)))))

(defn add-sample
  "Returns the row with one more sample, summarized anew. What only the run could know of the row
  (its true limit line, or that it cannot run) is the sample's :row. A row that is :skipped gets no
  sample."
  [row sample]
  (let [{:keys [skipped] :as row} (merge row (:row sample))]
    (summarize (if skipped
                 row
                 (update row :samples (fnil conj []) (dissoc sample :row))))))

(defn rows
  "Returns every row of a result, in order."
  [{:keys [experiments]}]
  (mapcat :contenders (remove :skipped (mapcat :parts experiments))))

(defn row-of
  "Returns the row of a contender among rows, or nil."
  [rows wanted]
  (some #(when (= wanted (:contender %)) %) rows))

(defn by-part
  "Returns the rows, by contender, of every part of an experiment that was not skipped, by its name.
  A row has the :n and the :bytes of its part."
  [{:keys [parts]}]
  (into {}
        (for [{:keys [part skipped n bytes contenders]} parts :when (not skipped)]
          [part (into {} (map (juxt :contender #(assoc % :n n :bytes bytes))) contenders)])))

(defn interrupted?
  "True if the run was cut short."
  [{:keys [experiments]}]
  (boolean (some :interrupted? experiments)))

(defn skipped-by-name?
  "True if something that the user asked for by name was skipped."
  [{:keys [experiments asked]}]
  (boolean (and asked (some :skipped (mapcat :parts experiments)))))

(defn exit-code
  "Returns the exit code of a result; see exit-codes."
  [result]
  (cond
    (interrupted? result) 130
    (some #{:failed} (map :verdict (rows result))) 1
    (skipped-by-name? result) 3
    :else 0))
