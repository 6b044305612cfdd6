(ns thrum.dev.lint.locals
  "Finds local bindings that are never used. A macro may put one binding into its expansion several
  times (loop does, when it destructures): it is unused where all of them are."
  (:require
   [clojure.string :as str]
   [clojure.tools.analyzer.ast :as ast]
   [clojure.tools.analyzer.jvm :as jvm]
   [clojure.tools.analyzer.passes :as passes]
   [clojure.tools.analyzer.passes.uniquify :as uniquify]
   [thrum.dev.lint.source :as source]))

(set! *warn-on-reflection* true)

(def ^:private only-tell-locals-apart
  "The one pass that this needs; the usual ones resolve every call, and take ten times as long."
  (passes/schedule #{#'uniquify/uniquify-locals}))

(defn- analyze
  "Returns the nodes of a form, expanded. It is not evaluated: its namespace is loaded."
  [form]
  (binding [jvm/run-passes only-tell-locals-apart]
    (ast/nodes (jvm/analyze form (jvm/empty-env)))))

(defn- written?
  "Was this binding written by a person, who wants it used? What macros invent has no line."
  [{:keys [form local]}]
  (and (:line (meta form))
       (not (#{:field :this} local))
       (not (str/starts-with? (name form) "_"))
       (not (#{"&form" "&env"} (name form)))))

(defn- place [{:keys [form]}] [(:line (meta form)) (:column (meta form)) form])

(defn- unused
  [nodes]
  (let [used (into #{} (comp (filter #(= :local (:op %))) (map :name)) nodes)
        bindings (group-by place (filter #(and (= :binding (:op %)) (written? %)) nodes))]
    (for [[_ same] bindings :when (not-any? (comp used :name) same)]
      (:form (first same)))))

(defn findings
  "Returns the findings of a source."
  [{:keys [ns forms] :as source}]
  (binding [*ns* ns, *warn-on-reflection* false]
    (doall (for [form forms, sym (unused (analyze form))]
             (source/finding source sym (str "binding " sym " is never used"))))))
