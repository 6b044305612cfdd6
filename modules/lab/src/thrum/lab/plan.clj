(ns thrum.lab.plan
  "From a parsed command line to a plan, plain EDN that says all that will run. Pure."
  (:require
   [thrum.lab.experiment :as experiment]
   [thrum.lab.nearest :as nearest]))

(set! *warn-on-reflection* true)

(defn- part-names [plans]
  (map :part (mapcat :parts plans)))

(defn- only
  "Returns the plans with nothing but what is called `wanted`: an experiment, or a part of one."
  [plans wanted]
  (if (some #{wanted} (map :experiment plans))
    (filterv #(= wanted (:experiment %)) plans)
    (into []
          (comp (map #(update % :parts (partial filterv (comp #{wanted} :part))))
                (filter (comp seq :parts)))
          plans)))

(defn- unknown [plans wanted]
  (let [known (map name (distinct (concat (map :experiment plans) (part-names plans))))]
    (str "There is no experiment " (name wanted) (nearest/hint (name wanted) known) ".")))

(defn- chosen
  "Returns the names the user gave, the command's first."
  [{:keys [named options]}]
  (remove nil? [named (:only options)]))

(defn- total [plans]
  (let [estimates (map experiment/estimate-ms plans)]
    (when (every? some? estimates)
      (reduce + 0 estimates))))

(defn plan
  "Returns {:thrum.lab/version 1 :options :asked [name …] :experiments [plan …] :estimate-ms}, or {:error sentence}
  for a name that is not known. experiments are records of thrum.lab.experiment; facts are those of thrum.lab.experiment/plan."
  [{:keys [options] :as parsed} facts experiments]
  (let [plans (mapv #(experiment/plan % options facts) experiments)
        narrow (fn [plans wanted] (only plans wanted))
        names (chosen parsed)
        left (reduce narrow plans names)]
    (if (empty? left)
      {:error (unknown plans (last names))}
      {:thrum.lab/version 1
       :options options
       :asked (not-empty (vec names))
       :experiments left
       :estimate-ms (total left)})))
