(ns thrum.lab.report.markup
  "HTML from nested vectors. Every string is escaped; only `raw` is not."
  (:require
   [clojure.string :as str]))

(set! *warn-on-reflection* true)

(def ^:private void-tags #{:meta :br})

(deftype Raw [text])

(defn raw
  "Marks text as markup to be written as it is. For texts of the lab's own, never for what came from
  outside."
  [text]
  (->Raw text))

(defn escape
  "Returns a value's text, safe between tags and in a quoted attribute."
  [value]
  (str/escape (if (keyword? value) (name value) (str value))
              {\< "&lt;", \> "&gt;", \& "&amp;", \" "&quot;", \' "&#39;"}))

(declare html)

(defn- attributes [m]
  (str/join (for [[k v] m :when (some? v)]
              (str " " (name k) "=\"" (escape v) "\""))))

(defn- element [[tag & more]]
  (let [[attrs children] (if (map? (first more)) [(first more) (rest more)] [{} more])]
    (str "<" (name tag) (attributes attrs) ">"
         (when-not (void-tags tag)
           (str (html children) "</" (name tag) ">")))))

(defn html
  "Returns the HTML of a node: [:tag {attributes} & children], text, Raw, nil, or a seq of nodes."
  [node]
  (cond
    (nil? node) ""
    (instance? Raw node) (.-text ^Raw node)
    (vector? node) (element node)
    (seq? node) (str/join (map html node))
    :else (escape node)))
