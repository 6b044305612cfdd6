(ns thrum.dev.servers-doc
  "Writes the tables of doc/servers.md, from what checks the options and from what the contract
  found.

  ./cljw -M:servers-doc rewrites the page; ./cljw -M:servers-doc ENGINE [CASE ...] holds an engine
  against these cases first, or all, and keeps what was found in doc/contract.edn. What the JDK's
  server has once for the JVM wants a run of its own."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.server :as server]
   [thrum.server.impl.options :as options]
   [thrum.server.spi :as engine]
   [thrum.server.tck :as tck]))

(set! *warn-on-reflection* true)

(def ^:private page "doc/servers.md")
(def ^:private kept "doc/contract.edn")

;; Options

(defn- cell [x]
  (-> (str x) (str/replace "|" "\\|") (str/replace #"\s+" " ")))

(defn- option-row
  [[k {:keys [default accepts doc]}]]
  (str "| `"
       k
       "` | "
       (if (some? default) (str "`" (pr-str default) "`") "")
       " | "
       (cell doc)
       " ("
       (cell accepts)
       ") |"))

(defn- options-table
  []
  (str/join
    "\n"
    (into ["| option | default | meaning |" "|---|---|---|"] (map option-row) options/table)))

;; The contract

(defn contract
  "Returns what was found: engine -> id of a case -> outcome."
  []
  (edn/read-string (slurp kept)))

(defn- hold!
  "Holds the engine against the cases of these ids, or all; returns id -> outcome."
  [engine ids]
  (let [found (tck/run server/run-server (cond-> {:options {:engine engine}
                                                  :capabilities (server/capabilities engine)
                                                  :gaps (:gaps (engine/named engine))
                                                  :report #(println (:outcome %) (:id %))}
                                           (seq ids) (assoc :only ids)))]
    (into (sorted-map) (map (juxt :id :outcome)) found)))

(defn- keep!
  [engine outcomes]
  (let [known (if (.exists (io/file kept)) (contract) {})
        all (update-vals (update known engine merge outcomes) #(into (sorted-map) %))]
    (spit
      kept
      (str "{"
           (str/join "\n "
                     (for [[engine outcomes] (sort all)]
                       (str engine
                            "\n {"
                            (str/join "\n  " (map (fn [[id outcome]] (str id " " outcome)) outcomes))
                            "}")))
           "}\n"))))

(defn- contract-table
  [found]
  (let [engines (vec (sort-by #(.indexOf ^java.util.List engine/names %) (keys found)))]
    (str/trim
      (tck/table engines
                 (update-vals found
                              (fn [outcomes]
                                (map (fn [[id outcome]] {:id id, :outcome outcome}) outcomes)))))))

;; The page

(defn section
  "Returns the text with what stands between the markers of that name replaced."
  [text name content]
  (let [[begin end] [(str "<!-- " name ":begin -->") (str "<!-- " name ":end -->")]
        from (str/index-of text begin)
        to (str/index-of text end)]
    (when-not (and from to) (throw (ex-info (str "No markers " begin) {})))
    (str (subs text 0 from) begin "\n" content "\n" (subs text to))))

(defn written
  "Returns the page with its options, and what was found, as they are."
  [text found]
  (-> text
      (section "options" (options-table))
      (section "contract" (contract-table found))))

(defn -main
  "Rewrites the page; with arguments, after the engine has been held against the contract."
  [& [engine & ids]]
  (when engine
    (keep! (keyword engine) (hold! (keyword engine) (map keyword ids))))
  (spit page (written (slurp page) (contract)))
  (shutdown-agents))
