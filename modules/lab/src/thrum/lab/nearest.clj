(ns thrum.lab.nearest
  "Finds the known word that a misspelt one most likely meant.")

(set! *warn-on-reflection* true)

(defn- next-row
  "Returns the next row of the Levenshtein table, for one more character of the first word."
  [row a b]
  (reduce (fn [out [left-up up c]]
            (conj out (min (inc up) (inc (peek out)) (if (= a c) left-up (inc left-up)))))
          [(inc (first row))]
          (map vector row (rest row) b)))

(defn distance
  "Returns how many characters to insert, remove or replace to turn word a into b."
  [a b]
  (peek (reduce #(next-row %1 %2 b) (vec (range (inc (count b)))) a)))

(defn hint
  "Returns \"; did you mean …?\"-like words for the known word that is nearest to word, or \"\" if none is near."
  [word known]
  (let [best (apply min-key #(distance word %) known)]
    (if (<= (distance word best) (max 2 (quot (count word) 2)))
      (str "; the nearest one is " best)
      "")))
