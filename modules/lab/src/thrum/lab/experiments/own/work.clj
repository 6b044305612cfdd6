(ns thrum.lab.experiments.own.work
  "The user's own work as an experiment: what both forms of it, URLs and calls, share."
  (:require
   [clojure.java.io :as io]
   [thrum.lab.columns :as columns]
   [thrum.lab.contender :as contender]
   [thrum.lab.measure :as measure]
   [thrum.lab.text :as text]
   [thrum.spi.options :as options]))

(set! *warn-on-reflection* true)

(def ^:private pool "The size of the platform pool, if that is asked for." 50)

(defn- row [id {:keys [limit]} {:keys [cpus]}]
  (-> (contender/plan id {:n 1, :cpus cpus, :limit limit, :pool pool})
      (dissoc :rounds :limit-line-ms)
      (assoc :repeat 1, :own? true, :params {:limit limit, :pool pool, :cpus cpus})))

(defn plan
  "Returns the experiment's plan: one part with the contenders of the options, by default t/pmap
  alone."
  [experiment part {:keys [contenders], :as options} facts]
  (assoc experiment
         :parts
         [(assoc part :contenders (mapv #(row % options facts) (or contenders [:thrum-pmap])))]))

(defn usage
  "Returns an ex-info that the lab answers with its message and exit code 2."
  ([message] (usage message nil))
  ([message cause] (ex-info message {:type :thrum/lab-usage} cause)))

(defn- nearest
  "Returns, in words, the public name of the same namespace that is spelled most like a name; nil
  where it has none."
  [wanted]
  (when-let [known (seq (keys (ns-publics (symbol (namespace wanted)))))]
    (str "; the nearest one is " (namespace wanted) "/" (options/nearest wanted known))))

(defn resolve-function
  "Returns the user's function of that name, loading its namespace. Throws a usage error if there is
  none."
  [name]
  (let [found (try
                (requiring-resolve name)
                (catch java.io.FileNotFoundException e
                  (throw (usage (str "The namespace " (namespace name) " is not on the class path.")
                                e))))]
    (cond
      (nil? found) (throw (usage (str "There is no function " name (nearest name) ".")))
      (:macro (meta found)) (throw (usage (str name " is no function: it is a macro.")))
      (not (ifn? @found)) (throw (usage (str name " is no function: it is "
                                             (if-some [c (class @found)]
                                               (str "a " (Class/.getName c))
                                               "nil")
                                             "."))))
    @found))

(defn read-text
  "Returns the text of the user's file. Throws a usage error if it cannot be read."
  [file]
  (try
    (slurp (io/file file))
    (catch java.io.IOException e (throw (usage (str "The file " file " cannot be read.") e)))))

(defn sample
  "Runs the row's contender with f over items, with a window that no slow item can fill, and returns
  the sample."
  [{:keys [contender params]} f items n on-end]
  (measure/sample (contender/way contender (assoc params :window (max 1 n))) f items #(on-end 1)))

;; The command line

(def positive
  "What tools.cli asks of a number."
  [#(and (int? %) (pos? %)) "must be a whole number, 1 or more"])

;; The report

(def columns
  "The columns of the user's own work."
  [columns/median columns/samples columns/in-flight columns/ok columns/failed])

(defn- took
  "Returns how long n calls took, in a sentence or two."
  [name n {:keys [ms busy-ms longest-ms peak]}]
  (str name ": " (text/thousands n) " took "
       (if (= 1 peak)
         (str (text/ms ms) ", one after the other. The longest took " (text/ms longest-ms) ".")
         (str (text/ms busy-ms) " together, and " (text/ms ms) " side by side: "
              (text/ratio (/ busy-ms ms)) ". The longest took " (text/ms longest-ms)
              ", and nothing can be faster than that."))))

(defn- row-meaning
  [{:keys [name params] [{:keys [ms busy-ms peak ok failed] :as sample}] :samples}]
  (when (and ms busy-ms (pos? ms) (pos? busy-ms))
    (let [n (+ (or ok 0) (or failed 0))]
      [(took name n sample)
       (when (and peak (= peak (:limit params)) (< peak n))
         (str name ": all " (text/thousands peak)
              " places were taken at once; a larger --limit might be faster."))])))

(defn meaning
  "Returns what the figures say of the user's calls."
  [{:keys [contenders]} _]
  (remove nil? (mapcat row-meaning contenders)))
