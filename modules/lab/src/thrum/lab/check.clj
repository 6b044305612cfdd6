(ns thrum.lab.check
  "Asks of a result what must be so on any machine: nothing lost, nothing faster than arithmetic
  allows, the order of the contenders as published. What only one experiment can say is its
  :complaints. Bounds are loose enough that a busy machine passes and a defect does not. Pure."
  (:require
   [thrum.lab.experiments :as experiments]
   [thrum.lab.report.headlines :as headlines]
   [thrum.lab.result :as result]
   [thrum.lab.sanity :as sanity]))

(set! *warn-on-reflection* true)

(defn- row-complaints
  [{:keys [name verdict over-limit expect]}]
  (cond-> []
    (not (#{:done :broke :skipped} verdict)) (conj (str name " ended as " verdict))
    (and over-limit (not expect) (< over-limit sanity/slack))
    (conj (str name " is faster than its limit line: " over-limit))))

(defn- experiment-complaints [{:keys [machine]} {:keys [experiment] :as plan}]
  (when-let [complaints (:complaints (experiments/by-name experiment))]
    (complaints (result/by-part plan) machine)))

(defn- missing-parts
  "Complains of the parts that an experiment must have, unless all of it was skipped."
  [{:keys [parts left-out]} plan]
  (let [there (set (map :part (:parts plan)))]
    (when-not (and (seq there) (every? :skipped (:parts plan)))
      (for [[part] parts :when (not (or (there part) (some #{part} left-out)))]
        (str "the part " part " is missing")))))

(defn- missing
  "Complains of the parts that a run of everything must have; the tour's are its headlines."
  [{{:keys [form]} :options, :keys [experiments]}]
  (when-not (= :tour form)
    (let [plans (into {} (map (juxt :experiment identity)) experiments)]
      (mapcat #(missing-parts % (plans (:name %))) experiments/all))))

(def ^:private no-difference
  "The factor below which there is none. That it is smaller than published may be the machine's."
  1.2)

(defn- headline-complaints
  "Complains unless the report opens on a row for each published part, which shows a difference, or
  was skipped with a reason."
  [{:keys [experiments] :as result}]
  (let [rows (headlines/rows result)
        parts (map :part rows)
        skipped (into #{} (comp (mapcat :parts) (filter :skipped) (map :part)) experiments)]
    (concat
      (when-not (= experiments/toured parts)
        [(str "the report opens on " (vec parts) ", not on " (vec experiments/toured))])
      (for [{:keys [part here verdict]} rows
            :when (if here (< (:factor here) no-difference) (not (skipped part)))]
        (str part ": " verdict)))))

(defn complaints
  "Returns sentences about what cannot be in a result of everything, or of the tour, or should not."
  [{:keys [experiments] :as result}]
  (concat
    (when-not (= 1 (:thrum.lab/version result)) ["not a result of version 1"])
    (missing result)
    (mapcat row-complaints (result/rows result))
    (mapcat #(experiment-complaints result %) experiments)
    (headline-complaints result)))
