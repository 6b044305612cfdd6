(ns thrum.lab.plan
  "From a parsed command line to a plan, plain EDN that says all that will run. Pure."
  (:require
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiments :as experiments]))

(set! *warn-on-reflection* true)

(defn form
  "Returns how much of the lab a command line asks for: :tour where it asks for nothing, else :quick
  or :full."
  [{:keys [named options]}]
  (cond
    (:full options) :full
    (or named (some options [:all :only :urls :call :handler :bench])) :quick
    :else :tour))

(defn- toured
  "Returns a plan as the tour has it, nil where nothing was published: the contenders of its
  headlines alone."
  [plan]
  (let [parts (for [{:keys [headline] :as part} (:parts plan) :when headline]
                (update part :contenders #(filterv (comp (set (:tour headline)) :contender) %)))]
    (when (seq parts)
      (assoc plan :parts (vec parts)))))

(defn- on-tour
  "Returns what the tour has of the plans; one that is :unplanned? is always there."
  [plans]
  (keep #(if (:unplanned? %) % (toured %)) plans))

(defn- only
  "Returns the plans with nothing but what is called wanted: an experiment, or a part of one. Of an
  experiment that is skipped as a whole its one part is left."
  [plans wanted owner]
  (for [{:keys [experiment parts] :as plan} plans :when (= experiment owner)]
    (assoc plan :parts (or (not-empty (filterv (comp #{wanted} :part) parts)) parts))))

(defn- asked
  "Returns the names that the user gave, the command's first; none of benchmarks, which are chosen
  before they are planned."
  [{named :named, {:keys [bench only]} :options}]
  (when-not bench
    (not-empty (into [] (remove nil?) [named only]))))

(defn- total [plans]
  (let [estimates (map experiment/estimate-ms plans)]
    (when (every? some? estimates)
      (reduce + 0 estimates))))

(defn plan
  "Returns {:thrum.lab/version 1 :options :asked [name …] :experiments [plan …] :estimate-ms}, the
  options with their :form. experiments are maps of thrum.lab.experiment, among which every name
  that was asked for is known; facts are those of thrum.lab.experiments/facts."
  [{:keys [options] :as parsed} facts experiments]
  (let [form (form parsed)
        options (assoc options :form form)
        owners (experiments/owners experiments)
        plans (map #(experiment/planned % options facts) experiments)
        left (if (= :tour form)
               (on-tour plans)
               (reduce #(only %1 %2 (owners %2)) plans (asked parsed)))]
    {:thrum.lab/version 1
     :options options
     :asked (asked parsed)
     :experiments (vec left)
     :estimate-ms (total left)}))
