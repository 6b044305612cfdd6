(ns thrum.dev.options
  "Writes what the rows of options say into the docstrings that list them, and into
  doc/reference/options.md: ./cljw -M:docs.

  A docstring lists its options on lines of four blanks, the key, ` - ` and the text; the tool
  replaces the text and keeps the keys. test/thrum/repo/options_doc_test.clj compares the keys with
  those that the function accepts."
  (:require
   [clojure.string :as str]
   [thrum.adaptive :as adaptive]
   [thrum.async.executor :as executor]
   [thrum.async.impl.settings :as settings]
   [thrum.cluster.impl.settings :as cluster-settings]
   [thrum.context.otel :as otel]
   [thrum.dev.page :as page]
   [thrum.jdbc :as jdbc]
   [thrum.server :as server]
   [thrum.server.impl.engines :as engines]
   [thrum.server.impl.options :as server-options]
   [thrum.spi.options :as options])
  (:import
   (java.util.regex Pattern)))

(set! *warn-on-reflection* true)

(def page-path
  "The page of all options."
  "doc/reference/options.md")

(def places
  "By section of the page: the file and the definition whose docstring lists the options, and their
  rows."
  (let [core "modules/core/src/thrum/core.clj", core-rows options/rows
        adaptive "modules/adaptive/src/thrum/adaptive.clj"
        async "modules/async/src/thrum/async.clj"
        server "modules/server/src/thrum/server.clj"
        context "modules/context/src/thrum/context/otel.clj"
        cluster "modules/cluster/src/thrum/cluster.clj"]
    [["future-call" core "future-call" (options/rows-at :future)]
     ["with-executor" core "with-executor" core-rows]
     ["pmap" core "pmap" core-rows]
     ["with-scope" core "with-scope" (options/rows-at :with-scope)]
     ["fork" core "fork" (options/rows-at :fork)]
     ["all" core "all" (options/rows-at :all)]
     ["hedge" core "hedge" (options/rows-at :all)]
     ["every!" core "every!" (options/rows-at :every)]
     ["limiter" core "limiter" (options/rows-at :limiter)]
     ["rate-limiter" core "rate-limiter" (options/rows-at :limiter)]
     ["retry" core "retry" core-rows]
     ["retry-budget" core "retry-budget" (options/rows-at :retry-budget)]
     ["run-server" server "run-server" server-options/rows]
     ["access-log" server "access-log" @#'server/log-rows]
     ["pipeline-blocking" async "pipeline-blocking" @#'settings/pipeline-rows]
     ["thread-call" async "thread-call" @#'settings/thread-rows]
     ["process" async "process" @#'settings/process-rows]
     ["data-source" "modules/jdbc/src/thrum/jdbc.clj" "data-source" @#'jdbc/rows]
     ["call-in-span" context "call-in-span" @#'otel/span-rows]
     ["otel/handler" context "handler" @#'otel/handler-rows]
     ["gradient2" adaptive "gradient2" @#'adaptive/rows]
     ["vegas" adaptive "vegas" @#'adaptive/rows]
     ["aimd" adaptive "aimd" @#'adaptive/rows]
     ["join" cluster "join!" cluster-settings/rows]
     ["alts" async "alts!!" @#'settings/alts-rows]
     ["factory" "modules/async/src/thrum/async/executor.clj" "factory"
      @#'executor/rows]]))

;; Docstrings

(def ^:private item #"    (:\S+) +- .*(?:\n {5,}\S.*)*+")

(def ^:private list-of-items
  (re-pattern (str item "(?:\n" item ")*+")))

(defn- docstring-span
  "Returns the indices in source between which the definition's docstring stands."
  [source definition]
  (let [head (str "(?m)^\\((?:defn|defmacro) " (Pattern/quote definition) "\\s+\"")
        matcher (re-matcher (re-pattern head) source)]
    (when-not (.find matcher) (throw (ex-info (str "No " definition) {:definition definition})))
    (let [from (.end matcher)]
      [from (+ from (count (re-find #"(?s)^[^\"\\]*+(?:\\.[^\"\\]*+)*+" (subs source from))))])))

(defn listed
  "Returns the keys that the definition's docstring lists, in their order."
  [source definition]
  (let [[from to] (docstring-span source definition)
        block (first (re-find list-of-items (subs source from to)))]
    (mapv (comp keyword #(subs % 1) second) (re-seq item (or block "")))))

(defn- sentence [{:keys [doc accepts default]}]
  (str doc " (" accepts (when (some? default) (str "; default " default)) ")"))

(defn- item-lines [rows k]
  (let [text (str k " - " (str/replace (sentence (rows k)) "\"" "\\\""))]
    (str/replace (page/filled 90 (str/split text #" ")) #"(?m)^" "      ")))

(defn- item-text [rows k]
  (subs (item-lines rows k) 2))

(defn with-list
  "Returns the source with the list in the definition's docstring as the rows have it."
  [source definition rows]
  (let [[from to] (docstring-span source definition)
        text (subs source from to)
        items (str/join "\n" (map #(item-text rows %) (listed source definition)))]
    (str (subs source 0 from)
         (str/replace-first text list-of-items (fn [_] items))
         (subs source to))))

;; The page

(defn- rows-table [rows ks]
  (page/table ["option" "default" "accepts" "meaning"]
              (for [k ks :let [{:keys [default accepts doc]} (rows k)]]
                [(page/code k) (if (some? default) (page/code default) "") accepts doc])))

(defn- engine-sections [text]
  (reduce (fn [text {:keys [name rows]}]
            (if (seq rows)
              (page/section text (str "engine " (symbol name)) (rows-table rows (keys rows)))
              text))
          text
          (map engines/named engines/names)))

(defn- forms-table []
  (page/table ["form" "likewise" "options"]
              (for [{:keys [written as options]} options/forms]
                [(page/code written)
                 (str/join ", " (map #(page/code (name %)) as))
                 (str/join ", " (map page/code options))])))

(defn page-text
  "Returns the text of the page with its tables as the rows have them."
  [text]
  (engine-sections
    (reduce (fn [text [section file definition rows]]
              (let [ks (listed (slurp file) definition)]
                (page/section text section (rows-table rows ks))))
            (page/section text "forms" (forms-table))
            places)))

(defn sources
  "Returns path -> text of the sources, with their lists as the rows have them."
  []
  (reduce (fn [texts [_ file definition rows]]
            (assoc texts file (with-list (or (texts file) (slurp file)) definition rows)))
          {}
          places))

(defn -main
  "Writes the sources and the page."
  [& _]
  (doseq [[path text] (sources)]
    (when (not= text (slurp path))
      (spit path text)
      (println "Wrote" path)))
  (spit page-path (page-text (slurp page-path)))
  (println "Wrote" page-path)
  (shutdown-agents))
