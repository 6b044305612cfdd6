(ns thrum.impl.spelling
  "Which known key an unknown one may have meant."
  {:no-doc true}
  (:require
   [clojure.string :as str]))

(set! *warn-on-reflection* true)

(defn- next-row
  "Returns the row of distances for the character of a at i. above: the row before it; higher: the
  one before that."
  [a b i above higher]
  (reduce (fn [row j]
            (let [x (nth a i)
                  y (nth b j)
                  least (min (inc (peek row)) (inc (above (inc j))) (+ (above j) (if (= x y) 0 1)))]
              (conj row
                    (if (and (pos? i) (pos? j) (= x (nth b (dec j))) (= y (nth a (dec i))))
                      (min least (inc (higher (dec j))))
                      least))))
          [(inc i)]
          (range (count b))))

(defn- distance
  "Returns the edit distance of two strings; two neighbours that change places are one edit."
  [a b]
  (loop [i 0, above (vec (range (inc (count b)))), higher nil]
    (if (= i (count a))
      (peek above)
      (recur (inc i) (next-row a b i above higher) above))))

(defn nearest
  "Returns the key among ks that is spelled most like k."
  [k ks]
  (apply min-key #(distance (name %) (name k)) ks))

(def ^:private ^:const longest-name
  "A longer key resembles no option, and its distance takes long."
  40)

(defn- plain [k]
  (str/replace (name k) #"\?$" ""))

(defn- spelled-alike
  "Returns those of ks whose distance from k is least, if it is 1 or at most a third of k's length."
  [k ks]
  (let [given (plain k)
        from (group-by #(distance given (plain %)) ks)
        least (apply min (keys from))]
    (when (<= least (max 1 (quot (count given) 3)))
      (from least))))

(defn- with-its-word
  "Returns those of ks that have a word which begins as k does, or that k begins with. Two letters
  are too few for it."
  [k ks]
  (let [given (plain k)]
    (when (< 2 (count given))
      (filter #(or (str/includes? (str "-" (plain %)) (str "-" given))
                   (str/starts-with? given (str (plain %) "-")))
              ks))))

(defn hint
  "Returns what a message says of the keys among ks that an unknown key may have meant, or nil."
  [k ks]
  (when (and (keyword? k) (<= (count (name k)) (long longest-name)) (seq ks))
    (when-let [alike (seq (or (seq (spelled-alike k ks)) (with-its-word k ks)))]
      (str ", did you mean "
           (str/join " or " (remove empty? [(str/join ", " (butlast alike)) (str (last alike))]))
           (when-not (str/ends-with? (name (last alike)) "?") "?")))))
