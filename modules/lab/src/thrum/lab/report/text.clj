(ns thrum.lab.report.text
  "A result as tables for the terminal. Pure: result in, text out."
  (:require
   [clojure.string :as str]
   [thrum.lab.download :as download]
   [thrum.lab.report.headlines :as headlines]
   [thrum.lab.report.meaning :as meaning]
   [thrum.lab.report.words :as words]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(defn- pad [align width s]
  (let [gap (str/join (repeat (- width (count s)) " "))]
    (if (= :left align) (str s gap) (str gap s))))

(defn table
  "Returns lines: a heading and a line for each row, in columns as wide as their widest cell."
  [columns rows]
  (let [cells (cons (map first columns)
                    (map (fn [row] (map (fn [[_ _ cell]] (cell row)) columns)) rows))
        widths (apply map (fn [& column] (apply max (map count column))) cells)]
    (map (fn [line]
           (str "  " (str/trimr (str/join "  " (map pad (map second columns) widths line)))))
         cells)))

(defn- columns-of [part]
  (cons ["contender" :left :name]
        (for [{:keys [heading cell words?]} (words/columns-of words/columns part)]
          [heading (if words? :left :right) cell])))

(def ^:private headline-columns
  [["" :left :system]
   ["published" :left (comp :words :published)]
   ["here" :left #(get-in % [:here :words] "–")]
   ["limit line" :left (comp :words :limit)]
   ["factor" :right (comp text/ratio :factor :here)]])

(defn- verdict-lines [{:keys [system verdict]}]
  (let [[start & more] (text/wrap 76 (str system ": " verdict))]
    (cons (str "  " start) (map #(str "    " %) more))))

(defn- headline-lines
  "Returns the table that a report opens on, and a sentence for each of its rows; nil where nothing
  of it was published."
  [result]
  (when-let [rows (seq (headlines/rows result))]
    (concat ["Published, and here"]
            (map #(str "  " %) (text/wrap 78 headlines/about))
            (table headline-columns rows)
            [""]
            (mapcat verdict-lines rows)
            [""])))

(defn- part-lines [busy? {:keys [title skipped contenders] :as part}]
  (concat [title (str "  " (words/conditions part))]
          (if skipped
            [(str "  Skipped: " skipped ".")]
            (concat (table (columns-of part) contenders)
                    (map #(str "  " %) (words/times-as-fast part))
                    (map #(str "  " %) (meaning/sentences part busy?))
                    (map #(str "  " %) (keep words/note contenders))))
          [""]))

(defn- machine-lines [machine]
  (map (fn [[label value]] (str "  " label ": " value)) (words/machine machine)))

(defn report
  "Returns the result as text."
  [{:keys [experiments machine] :as result}]
  (str/join "\n"
            (concat (when (words/interrupted result) [(words/interrupted result) ""])
                    (when (words/busy result) [(words/busy result) ""])
                    (headline-lines result)
                    (mapcat (partial part-lines (words/busy result)) (mapcat :parts experiments))
                    ["Machine"]
                    (machine-lines machine))))

(defn- outcome-line
  [{:keys [line url input status bytes kind message location]}]
  (str/join "  "
            (remove nil?
                    [(str (or line input))
                     (some-> status
                             str)
                     (some-> bytes
                             text/bytes) url
                     (some->> location
                              (str "-> "))
                     (some-> kind
                             download/kind-label) message])))

(defn outcomes
  "Returns what became of each URL or input of the user, a line each, in the order of the file."
  [{:keys [experiments]}]
  (str/join "\n"
            (for [part (mapcat :parts experiments)
                  row (:contenders part)
                  sample (:samples row)
                  line (cons (:name row) (map outcome-line (:outcomes sample)))]
              line)))
