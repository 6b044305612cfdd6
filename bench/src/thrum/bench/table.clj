(ns thrum.bench.table
  "Tables as text and as Markdown. Pure. A column is {:title, :show, :left?}; show makes the cell, a
  string, of a row."
  (:require
   [clojure.string :as str])
  (:import
   (java.util Locale)))

(set! *warn-on-reflection* true)

;; Figures

(defn decimals
  "Returns a number with that many decimals and groups of three digits, nil as an empty cell."
  [places x]
  (if x (String/format Locale/ROOT (str "%,." places "f") (to-array [(double x)])) ""))

(defn whole
  "Returns a whole number in groups of three digits, nil as an empty cell."
  [x]
  (decimals 0 x))

(defn figure
  "Returns a summary as `median (min-max)`, the median alone where all samples are equal, nil as an
  empty cell."
  [places {:keys [median min max] :as summary}]
  (cond
    (nil? summary) ""
    (= min max) (decimals places median)
    :else (str (decimals places median) " (" (decimals places min) "-" (decimals places max) ")")))

;; Layout

(defn- cells [columns row]
  (mapv (fn [{:keys [show]}] (str (show row))) columns))

(defn- widths [lines]
  (apply mapv (fn [& column] (apply max (map count column))) lines))

(defn- pad [left? width cell]
  (let [blanks (str/join (repeat (- width (count cell)) " "))]
    (if left? (str cell blanks) (str blanks cell))))

(defn- grid
  "Returns all lines, titles first, with the cells of a column equally wide."
  [columns rows]
  (let [lines (into [(mapv :title columns)] (map #(cells columns %)) rows)
        widths (widths lines)]
    (map #(mapv pad (map :left? columns) widths %) lines)))

(defn text
  "Returns the table for a terminal."
  [columns rows]
  (str/join "\n" (map #(str/trimr (str/join "  " %)) (grid columns rows))))

(defn- rule [{:keys [left?]} cell]
  (let [dashes (str/join (repeat (dec (count cell)) "-"))]
    (if left? (str ":" dashes) (str dashes ":"))))

(defn markdown
  "Returns the table as GitHub's Markdown."
  [columns rows]
  (let [[titles & lines] (grid columns rows)]
    (str/join "\n" (map #(str "| " (str/join " | " %) " |")
                        (list* titles (map rule columns titles) lines)))))
