(ns thrum.lab.json
  "Writes EDN data as JSON that is safe inside a script element: nothing in it can end the element or start a comment."
  (:require
   [clojure.string :as str]))

(set! *warn-on-reflection* true)

(defn- unicode-escape [c]
  (format "\\u%04x" (int c)))

(defn- escape-char [c]
  (case c
    \" "\\\""
    \\ "\\\\"
    \newline "\\n"
    (\< \> \& \u2028 \u2029) (unicode-escape c)
    (when (< (int c) 32) (unicode-escape c))))

(defn- text [s] (str \" (str/escape s escape-char) \"))

(defn- key-text [k]
  (text (if (keyword? k) (subs (str k) 1) (str k))))

(declare write)

(defn- object [m]
  (str "{" (str/join "," (map (fn [[k v]] (str (key-text k) ":" (write v))) m)) "}"))

(defn- number [x]
  (cond
    (integer? x) (str x)
    (Double/isFinite (double x)) (str (double x))
    :else "null"))

(defn write
  "Returns value as JSON. Keywords and symbols become strings, keys lose their colon, anything unknown is its str."
  [value]
  (cond
    (nil? value) "null"
    (boolean? value) (str value)
    (number? value) (number value)
    (keyword? value) (key-text value)
    (map? value) (object value)
    (coll? value) (str "[" (str/join "," (map write value)) "]")
    :else (text (str value))))
