(ns thrum.dev.lint.source
  "Reads a source file into forms whose symbols know their line."
  (:require
   [clojure.java.io :as io]
   [clojure.tools.namespace.file :as ns-file]
   [clojure.tools.namespace.parse :as parse]
   [clojure.tools.reader :as reader]
   [clojure.tools.reader.reader-types :as reader-types]))

(set! *warn-on-reflection* true)

(defn- read-all
  [rdr]
  (->> (repeatedly #(reader/read {:read-cond :allow, :eof ::eof} rdr))
       (take-while #(not= ::eof %))
       doall))

(defn- read-forms
  "Reads as the compiler would inside ns: aliased keywords and syntax-quoted symbols are resolved."
  [file ns]
  (with-open [in (io/reader file)]
    (binding [*ns* ns
              reader/*alias-map* (into {} (map (juxt key (comp ns-name val))) (ns-aliases ns))]
      (read-all
        (reader-types/indexing-push-back-reader (java.io.PushbackReader. in) 1 (str file))))))

(defn load-source
  "Requires the namespace in file; returns {:file :ns :ns-decl :forms}, or nil where file has no ns
  form."
  [file]
  (when-let [decl (ns-file/read-file-ns-decl file)]
    (let [sym (parse/name-from-ns-decl decl)]
      (require sym)
      {:file (str file)
       :ns (find-ns sym)
       :ns-decl decl
       :forms (read-forms file (find-ns sym))})))

(defn finding
  "Returns a finding at the line of form."
  [{:keys [file]} form message]
  {:file file, :line (:line (meta form) 1), :message message})
