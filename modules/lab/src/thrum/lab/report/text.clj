(ns thrum.lab.report.text
  "A result as tables, for the terminal or in Markdown. Pure: result in, text out."
  (:require
   [clojure.string :as str]
   [thrum.lab.download :as download]
   [thrum.lab.report.headlines :as headlines]
   [thrum.lab.report.words :as words]
   [thrum.lab.table :as table]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(defn- indented [lines] (map #(str "  " %) lines))

(def ^:private terminal
  "How a title, sentences and a table become lines of a terminal."
  {:title vector, :sentences indented, :table (comp indented table/text)})

(def ^:private in-markdown
  "The same in Markdown."
  {:title #(vector (str "### " %) "")
   :sentences #(mapcat (fn [sentence] [sentence ""]) %)
   :table #(concat (table/markdown %1 %2) [""])})

;; The rows that a report opens on

(def ^:private headline-columns
  [{:heading "", :left? true, :show :system}
   {:heading "published", :left? true, :show (comp :words :published)}
   {:heading "here", :left? true, :show #(get-in % [:here :words] "–")}
   {:heading "limit line", :left? true, :show (comp :words :limit)}
   {:heading "factor", :show (comp text/ratio :factor :here)}])

(defn- verdict-lines [{:keys [system verdict]}]
  (let [[start & more] (text/wrap 76 (str system ": " verdict))]
    (cons (str "  " start) (map #(str "    " %) more))))

(defn- headline-lines
  "Returns the table that a report opens on, and a sentence for each of its rows; nil where nothing
  of it was published."
  [{:keys [title sentences table]} result]
  (when-let [rows (seq (headlines/rows result))]
    (concat (title "Published, and here")
            (sentences (text/wrap 78 headlines/about))
            (table headline-columns rows)
            [""]
            (mapcat verdict-lines rows)
            [""])))

;; The rest

(defn- figure-lines [{:keys [sentences table]} busy? {:keys [contenders] :as part}]
  (let [rows (words/rows part)]
    (concat (when (seq rows) (table (words/columns part) rows))
            (sentences (words/facts part busy?))
            (sentences (keep words/note contenders)))))

(defn- part-lines [{:keys [title sentences] :as layout} busy? {:keys [skipped] :as part}]
  (concat (title (:title part))
          (sentences [(words/conditions part)])
          (if skipped
            (sentences [(str "Skipped: " skipped ".")])
            (figure-lines layout busy? part))
          [""]))

(defn- machine-lines [machine]
  (for [[label value] (words/machine machine)]
    (str "  " label ": " value)))

(defn report
  "Returns the result as text, :markdown? or for a terminal."
  [{:keys [machine] :as result} & {:keys [markdown?]}]
  (let [layout (if markdown? in-markdown terminal), busy (words/busy result)]
    (str/join "\n"
              (concat (mapcat #(vector % "") (remove nil? [(words/interrupted result) busy]))
                      (headline-lines layout result)
                      (mapcat #(part-lines layout (some? busy) %) (words/parts result))
                      ["Machine"]
                      (machine-lines machine)))))

(defn- outcome-line [{:keys [line url input status bytes kind message location]}]
  (str/join "  " (remove nil? [(str (or line input))
                               (some-> status str)
                               (some-> bytes text/bytes)
                               url
                               (some->> location (str "-> "))
                               (some-> kind download/kind-label)
                               message])))

(defn outcomes
  "Returns what became of each URL or input of the user, a line each, in the order of the file."
  [{:keys [experiments]}]
  (str/join "\n" (for [part (mapcat :parts experiments)
                       row (:contenders part)
                       sample (:samples row)
                       line (cons (:name row) (map outcome-line (:outcomes sample)))]
                   line)))
