(ns thrum.dev.lab-doc
  "Writes what the lab has into doc/lab.md: its commands, experiments, engines, benchmarks, options.
  ./cljw -M:lab-doc rewrites the page."
  (:require
   [clojure.string :as str]
   [thrum.dev.page :as page]
   [thrum.lab.cli :as cli]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.experiments.ring.experiment :as ring]))

(set! *warn-on-reflection* true)

(def ^:private file "doc/lab.md")

(defn- codes [names]
  (str/join ", " (map (comp page/code name) names)))

(defn- experiment-row [{:keys [name doc parts]}]
  [(codes [name]) doc (codes (map first parts))])

(defn- command-row [{:keys [usage doc]}]
  [(page/code (str "./cljw -M:lab " usage)) doc])

(defn- option-row [[_ option doc & {:keys [default]}]]
  [(page/code option) doc (cond
                            (keyword? default) (codes [default])
                            default (page/code default)
                            :else "")])

(defn written
  "Returns the text of the page with its lists as they are."
  [text]
  (-> text
      (page/section "commands" (page/table ["command" "what it does"]
                                           (map command-row cli/commands)))
      (page/section "experiments" (page/table ["experiment" "what it is" "parts"]
                                              (map experiment-row experiments/all)))
      (page/section "benchmarks" (page/table ["benchmark" "what it measures"]
                                             (map (juxt (comp codes vector :name) :doc)
                                                  @experiments/benchmarks)))
      (page/section "engines" (str "Engines: " (codes ring/engines) "."))
      (page/section "options" (page/table ["option" "what it does" "unless given"]
                                          (map option-row cli/options)))))

(defn -main
  "Rewrites the page."
  []
  (spit file (written (slurp file))))
