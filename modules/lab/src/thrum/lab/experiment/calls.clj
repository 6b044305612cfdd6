(ns thrum.lab.experiment.calls
  "The user's own function, called on the user's own inputs."
  (:require
   [clojure.edn :as edn]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiment.own :as own]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(defn inputs
  "Returns the inputs in a text: one vector, list or set, as EDN. Throws a usage error otherwise."
  [text file]
  (let [value (try
                (edn/read-string {:eof nil} text)
                (catch RuntimeException e
                  (throw (own/usage (str "The file " file " is no EDN.") e))))]
    (if (and (coll? value) (not (map? value)))
      (vec value)
      (throw (own/usage (str "The file " file " must hold one vector or list."))))))

(defn- outcome [f [index input]]
  (try
    (f input)
    {:input (inc index)}
    (catch InterruptedException e (throw e))
    (catch Throwable t
      {:input (inc index), :kind (keyword (text/class-word t)), :message (str (ex-message t))})))

(defn- ordered [sample]
  (update sample :outcomes #(vec (sort-by :input %))))

(defrecord Calls [function file]
  experiment/Experiment
  (about [_] {:name :calls, :doc "your own function, called on your own inputs"})
  (plan [_ options facts]
    (own/plan
      {:experiment :calls
       :title "Your function"
       :about (str function " on the inputs of " file ".")}
      {:part :calls, :title "Your function", :about (str function " on each input of " file ".")}
      options
      facts))
  (open! [_]
    {:f (own/resolve-function function)
     :inputs (inputs (own/read-text file) file)
     :close! (constantly nil)})
  (sample! [_ {:keys [f inputs]} _ row on-end]
    (ordered
      (own/sample row (partial outcome f) (vec (map-indexed vector inputs)) (count inputs) on-end))))

(defn experiment
  "Returns the experiment that calls the function of that name on the inputs in file."
  [function file]
  (->Calls function file))
