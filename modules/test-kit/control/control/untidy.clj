(ns control.untidy
  (:require
   [clojure.edn :as edn]
   [clojure.set :as set :refer [difference union]]
   [clojure.string :as str]
   [clojure.walk])
  (:import
   (java.io File Reader)
   (java.util ArrayList Date)))

;; The control of the lint: it holds what must be found and what must not.

(def ^:private unused-constant 1)

(def ^:private used-constant 2)

(defn- unused-helper [x] x)

(defn undocumented
  [a b _c]
  (let [{:keys [d e]} a
        [f & g] (str/split b #",")]
    [d f used-constant ^File (identity nil)]))

(defn documented
  "Uses everything in the ways that a careless check calls unused."
  [coll]
  (loop [[x & more] coll, sum 0]
    (if x
      (recur more (+ sum x))
      (for [y coll :let [z (inc y)] :when (odd? z)]
        `(union ~z ::set/key ~#(inc %) ~(reify Runnable (run [this])))))))

(defn catches
  "Binds an exception that is not looked at."
  []
  (try (ArrayList.) (catch Exception e nil)))

(defprotocol Shape
  (area [shape]))

(defrecord Square [side]
  Shape
  (area [_] (* side side)))
