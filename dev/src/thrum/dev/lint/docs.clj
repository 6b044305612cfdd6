(ns thrum.dev.lint.docs
  "Finds namespaces, and public vars of what is published, that say nothing of themselves."
  (:require
   [clojure.string :as str]
   [thrum.dev.lint.source :as source]))

(set! *warn-on-reflection* true)

(defn- silent-namespace
  [{:keys [ns] :as source}]
  (when (str/blank? (:doc (meta ns)))
    [(source/finding source nil (str "namespace " (ns-name ns) " has no docstring"))]))

(defn- needs-doc?
  "The compiler makes constructors of types, and proxy classes; a protocol documents its methods."
  [v]
  (let [{:keys [doc protocol no-doc] :as m} (meta v)]
    (not (or doc protocol no-doc (re-find #"^(?:map)?->[A-Z]|\$" (name (:name m)))))))

(defn- silent-vars
  [{:keys [ns], :as source}]
  (for [v (vals (ns-publics ns))
        :when (needs-doc? v)]
    (source/finding source
                    (with-meta [] (meta v))
                    (str "public " (:name (meta v)) " has no docstring"))))

(defn findings
  "Returns the findings of a source; vars are asked where public-docs? of its file is true."
  [source public-docs?]
  (concat (silent-namespace source)
          (when (public-docs? (:file source)) (silent-vars source))))
