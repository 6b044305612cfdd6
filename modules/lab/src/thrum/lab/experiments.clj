(ns thrum.lab.experiments
  "The lab's experiments, in the order of a run. A new one stands here and is named nowhere else."
  (:require
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiment.calls :as calls]
   [thrum.lab.experiment.fan-out :as fan-out]
   [thrum.lab.experiment.go-blocks :as go-blocks]
   [thrum.lab.experiment.handler :as handler]
   [thrum.lab.experiment.pipelines :as pipelines]
   [thrum.lab.experiment.ring :as ring]
   [thrum.lab.experiment.scope :as scope]
   [thrum.lab.experiment.spring-tomcat :as spring-tomcat]
   [thrum.lab.experiment.urls :as urls]))

(set! *warn-on-reflection* true)

(def all
  "The lab's own experiments."
  (-> [(fan-out/experiment fan-out/quick) (scope/experiment)]
      (into (map ring/experiment) ring/engines)
      (conj (spring-tomcat/experiment) (go-blocks/experiment) (pipelines/experiment))))

(defn chosen
  "Returns the experiments that the options ask for: the user's own work, or all of the lab's."
  [{:keys [urls call inputs] function :handler}]
  (cond
    urls [(urls/experiment urls)]
    call [(calls/experiment call inputs)]
    function [(handler/experiment function)]
    :else all))

(defn by-name
  "Returns experiments by their names."
  [experiments]
  (into {} (map (juxt (comp :name experiment/about) identity)) experiments))

(defn owners
  "Returns the name of the experiment that each name, of an experiment or of one of its parts,
  belongs to."
  [experiments]
  (into {}
        (for [{owner :name, parts :parts} (map experiment/about experiments)
              named (cons owner (map first parts))]
          [named owner])))
