(ns thrum.dev.page
  "Markdown and EDN that are written by a tool into files that people read."
  (:require
   [clojure.string :as str]))

(set! *warn-on-reflection* true)

(defn code
  "Returns x as code of Markdown."
  [x]
  (str "`" x "`"))

(defn- row [cells]
  (str "| " (str/join " | " (map #(str/replace (str %) "|" "\\|") cells)) " |"))

(defn- lines [heads rules rows]
  (str/join "\n" (list* (row heads) (str "|" (str/join "|" rules) "|") (map row rows))))

(defn table
  "Returns a table of Markdown."
  [heads rows]
  (lines heads (repeat (count heads) "---") rows))

(defn- figure? [cell]
  (re-matches #"[\d .()-]*( ms)?" (str cell)))

(defn figures
  "Returns a table of Markdown whose columns of figures stand at the right."
  [heads rows]
  (lines heads
         (for [i (range (count heads))]
           (if (every? #(figure? (nth % i)) rows) "--:" "---"))
         rows))

(defn section
  "Returns text with what stands between the markers of that name replaced by content."
  [text name content]
  (let [[begin end] [(str "<!-- " name ":begin -->") (str "<!-- " name ":end -->")]
        from (str/index-of text begin)
        to (str/index-of text end)]
    (when-not (and from to) (throw (ex-info (str "No markers " begin) {:name name})))
    (str (subs text 0 from) begin "\n" content "\n" (subs text to))))

(defn filled
  "Returns the words, separated by blanks, on lines of at most width characters."
  [width words]
  (str/join "\n" (reduce (fn [lines word]
                           (let [longer (str (peek lines) " " word)]
                             (if (and (seq lines) (<= (count longer) width))
                               (conj (pop lines) longer)
                               (conj lines (str word)))))
                         []
                         words)))
