(ns thrum.lab.experiments.own.calls
  "The user's own function, called on the user's own inputs."
  (:require
   [clojure.edn :as edn]
   [clojure.string :as str]
   [thrum.lab.experiments.own.work :as work]
   [thrum.lab.text :as text])
  (:import
   (java.io PushbackReader StringReader)))

(set! *warn-on-reflection* true)

(defn- values
  "Returns the values in a text."
  [text]
  (let [in (PushbackReader. (StringReader. text))]
    (into [] (take-while #(not= ::end %)) (repeatedly #(edn/read {:eof ::end} in)))))

(defn inputs
  "Returns the inputs in a text: one vector, list or set, as EDN. Throws a usage error otherwise."
  [text file]
  (let [[value :as all] (try
                          (values text)
                          (catch RuntimeException e
                            (throw (work/usage (str "The file " file " is no EDN: "
                                                    (ex-message e) ".")
                                               e))))]
    (if (and (= 1 (count all)) (coll? value) (not (map? value)))
      (vec value)
      (throw (work/usage (str "The file " file
                              " must hold one vector or list, and nothing behind it."))))))

(defn- outcome [f [index input]]
  (try
    (f input)
    {:input (inc index)}
    (catch InterruptedException e (throw e))
    (catch Throwable t
      {:input (inc index), :kind (keyword (text/class-word t)), :message (str (ex-message t))})))

(defn- ordered [sample]
  (update sample :outcomes #(vec (sort-by :input %))))

(defn- plan [{function :call, file :inputs, :as options} facts]
  (work/plan {:experiment :calls
              :title "Your function"
              :about (str function " on the inputs of " file ".")
              :function function
              :file file}
             {:part :calls
              :title "Your function"
              :about (str function " on each input of " file ".")}
             options
             facts))

(defn- open! [{:keys [function file]}]
  {:f (work/resolve-function function), :inputs (inputs (work/read-text file) file)})

(defn- sample! [{:keys [f inputs]} _ row on-end]
  (let [items (vec (map-indexed vector inputs))]
    (ordered (work/sample row (partial outcome f) items (count items) on-end))))

(def ^:private options
  [[nil "--call NS/F" "call your own function on each input (with --inputs)" :parse-fn symbol
    :validate [qualified-symbol? "must be a name with its namespace, such as my.ns/f"]]
   [nil "--inputs FILE" "the inputs of --call: one vector or list, as EDN"]
   [nil "--contenders A,B" "how to run your own work; default t/pmap alone"
    :parse-fn #(mapv keyword (str/split % #","))]
   [nil "--outcomes" "print what became of each URL or input"]])

(def experiment
  {:name :calls
   :doc "your own function, called on your own inputs"
   :belongs-to :fan-out
   :options options
   :plan plan
   :open! open!
   :sample! sample!
   :columns work/columns
   :meaning work/meaning})
