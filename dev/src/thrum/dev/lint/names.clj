(ns thrum.dev.lint.names
  "Finds what a namespace requires, refers, imports or defines privately, and never names again."
  (:require
   [clojure.string :as str]
   [thrum.dev.lint.source :as source]))

(set! *warn-on-reflection* true)

(defn- with-metadata
  "Returns the children of form, its metadata among them: type hints name classes."
  [form]
  (concat (when (coll? form) (seq form))
          (some-> (meta form) (dissoc :line :column :end-line :end-column :file :source) seq)))

(defn- leaves
  [forms]
  (filter #(or (symbol? %) (keyword? %) (string? %))
          (tree-seq #(or (coll? %) (meta %)) with-metadata forms)))

(defn- words
  "Returns the strings that symbols and type hints name: sym, its namespace, and the class in a hint
  that is a string."
  [leaf]
  (cond
    (string? leaf) [leaf]
    (keyword? leaf) [(namespace leaf)]
    :else (distinct [(namespace leaf) (name leaf) (str/replace (name leaf) #"\.$" "")])))

(defn- ns-form? [form] (and (seq? form) (= 'ns (first form))))

(defn- named
  "Returns how often each word is named outside the ns form."
  [{:keys [forms]}]
  (frequencies (remove nil? (mapcat words (leaves (remove ns-form? forms))))))

(defn- clauses
  [{:keys [forms]} key]
  (mapcat rest (filter #(and (seq? %) (= key (first %))) (first (filter ns-form? forms)))))

(defn- unused-require
  "Returns a finding for a libspec none of whose names is used, and for each unused :refer."
  [source used spec]
  (when-let [[lib & {:keys [as refer]}] (and (vector? spec) (next spec) spec)]
    (concat
      (when (and as (not-any? used [(str as) (str lib)]))
        [(source/finding source lib (str "alias " as " is never used"))])
      (for [sym (when (coll? refer) refer) :when (not (used (str sym)))]
        (source/finding source sym (str "referred " sym " is never used"))))))

(defn- imported
  "Returns [symbol-with-line names-it-goes-by] for each class of an import clause."
  [spec]
  (if (symbol? spec)
    [[spec [(str spec) (last (str/split (str spec) #"\."))]]]
    (for [class (rest spec)] [class [(str class) (str (first spec) "." class)]])))

(defn- unused-import
  [source used spec]
  (for [[class names] (imported spec) :when (not-any? used names)]
    (source/finding source class (str "import " class " is never used"))))

(defn- private-name
  "Returns the symbol that a top-level form defines privately, or nil."
  [form]
  (when (and (seq? form) (symbol? (second form)))
    (when (or (= 'defn- (first form))
              (and (str/starts-with? (str (first form)) "def") (:private (meta (second form)))))
      (second form))))

(defn- unused-private
  [source used]
  (for [sym (keep private-name (:forms source)) :when (= 1 (used (name sym)))]
    (source/finding source sym (str "private " sym " is never used"))))

(defn findings
  "Returns the findings of a source."
  [source]
  (let [used (named source)]
    (concat (mapcat #(unused-require source used %) (clauses source :require))
            (mapcat #(unused-import source used %) (clauses source :import))
            (unused-private source used))))
