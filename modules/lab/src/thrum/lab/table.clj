(ns thrum.lab.table
  "Tables as text and as Markdown. Pure. A column is {:heading :show :left?}: show makes the cell, a
  string, of a row; a column of words is :left?."
  (:require
   [clojure.string :as str]))

(set! *warn-on-reflection* true)

(defn- cells [columns row]
  (mapv (fn [{:keys [show]}] (str (show row))) columns))

(defn- pad [left? width cell]
  (let [blanks (str/join (repeat (- width (count cell)) " "))]
    (if left? (str cell blanks) (str blanks cell))))

(defn- grid
  "Returns all lines, headings first, with the cells of a column equally wide."
  [columns rows]
  (let [lines (into [(mapv :heading columns)] (map #(cells columns %)) rows)
        widths (apply mapv (fn [& column] (apply max (map count column))) lines)]
    (map #(mapv pad (map :left? columns) widths %) lines)))

(defn text
  "Returns the lines of a table for a terminal."
  [columns rows]
  (map #(str/trimr (str/join "  " %)) (grid columns rows)))

(defn- rule [{:keys [left?]} cell]
  (let [dashes (str/join (repeat (dec (count cell)) "-"))]
    (if left? (str ":" dashes) (str dashes ":"))))

(defn markdown
  "Returns the lines of a table in GitHub's Markdown."
  [columns rows]
  (let [[headings & lines] (grid columns rows)]
    (map #(str "| " (str/join " | " %) " |")
         (list* headings (map rule columns headings) lines))))
