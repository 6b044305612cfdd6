(ns thrum.repo.lab-doc-test
  "The lab's guide names all that the lab has."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.dev.lab-doc :as lab-doc]
   [thrum.lab.cli :as cli]
   [thrum.lab.contender :as contender]
   [thrum.lab.experiments :as experiments]
   [thrum.lab.experiments.ring.experiment :as ring])
  (:import
   (java.util.regex Pattern)))

(set! *warn-on-reflection* true)

(def ^:private guide (slurp "doc/lab.md"))

(defn- missing [words]
  (remove #(re-find (re-pattern (str "`" (Pattern/quote %) "(?![\\w-])")) guide) words))

(deftest the-guide-names-every-experiment-option-engine-and-contender
  (is (= [] (missing (map (comp name :name) experiments/all))))
  (is (= [] (missing (map name ring/engines))))
  (is (= []
         (missing (map #(re-find #"--[a-z-]+" (second %))
                       (remove #(= "--help" (second %)) cli/options)))))
  (is (= [] (missing (map name (contender/ids))))))

(deftest the-lists-are-as-generated
  (is (= (lab-doc/written guide) guide) "./cljw -M:lab-doc rewrites them")
  (is (= guide (lab-doc/written (str/replace guide "| `scope` |" "| `scop` |")))))

(deftest the-guide-names-every-part-that-is-not-an-engines
  (is (= [] (missing (for [[part owner] (experiments/owners experiments/all)
                           :when (not (str/starts-with? (name owner) "ring-"))]
                       (name part))))))
