(ns thrum.lab.json
  "Writes EDN data as JSON that is safe inside a script element: nothing in it can end the element
  or start a comment."
  (:require
   [clojure.data.json :as json]
   [clojure.string :as str]
   [clojure.walk :as walk]))

(set! *warn-on-reflection* true)

(defn- plain [value]
  (cond
    (ident? value) (str (symbol value))
    (and (double? value) (not (Double/isFinite value))) nil
    :else value))

(defn write
  "Returns value as JSON. Keywords and symbols become strings without a colon, figures that are none
  null."
  [value]
  (-> (walk/postwalk plain value)
      (json/write-str {:escape-slash false, :escape-unicode false})
      (str/replace #"[<>&]" {"<" "\\u003c", ">" "\\u003e", "&" "\\u0026"})))
