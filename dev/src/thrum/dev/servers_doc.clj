(ns thrum.dev.servers-doc
  "Writes the tables of doc/servers.md from what checks the options and from the contract: ./cljw -M:servers-doc."
  (:require
   [clojure.string :as str]
   [thrum.server.options :as options]))

(set! *warn-on-reflection* true)

(def ^:private page "doc/servers.md")

(defn- cell [x]
  (str/replace (str x) "|" "\\|"))

(defn- option-row [[k {:keys [default accepts doc]}]]
  (str "| `" k "` | " (if (some? default) (str "`" (pr-str default) "`") "") " | " (cell doc) " (" (cell accepts) ") |"))

(defn options-table
  "Returns the table of run-server's options, as Markdown."
  []
  (str/join "\n" (into ["| option | default | meaning |" "|---|---|---|"] (map option-row) options/table)))

(defn section
  "Returns the text with what stands between the markers of that name replaced."
  [text name content]
  (let [[begin end] [(str "<!-- " name ":begin -->") (str "<!-- " name ":end -->")]
        from (str/index-of text begin)
        to (str/index-of text end)]
    (when-not (and from to) (throw (ex-info (str "No markers " begin) {})))
    (str (subs text 0 from) begin "\n" content "\n" (subs text to))))

(defn written
  "Returns the page with its options as they are."
  [text]
  (section text "options" (options-table)))

(defn -main
  "Rewrites the page."
  []
  (spit page (written (slurp page))))
