(ns thrum.cluster.trail
  "What the functions of jvm-work have noted on their members, in the files of a folder."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [is]]
   [thrum.cluster.history :as history])
  (:import
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)))

(set! *warn-on-reflection* true)

(defn folder
  "Returns a new folder."
  []
  (str (Files/createTempDirectory "thrum-cluster" (make-array FileAttribute 0))))

(defn events
  "Returns what was noted, [event item pid] each."
  [folder]
  (for [file (.listFiles (io/file folder)), line (str/split-lines (slurp file))
        :let [[event item pid] (str/split line #" ")]
        :when pid]                             ; a line may be there in part
    [(keyword event) (parse-long item) pid]))

(defn noted
  "Returns how often the event was noted."
  [folder event]
  (count (filter #(= event (first %)) (events folder))))

(defn items
  "Returns n arguments of `nap`."
  [folder n ms]
  (mapv #(vector folder % ms) (range n)))

(defn check!
  "Asserts that each of n items has its one result, and was started no more often than the losses
  allow."
  [folder n results losses]
  (is (empty? (history/violations {:trail (events folder), :items (range n), :results results
                                   :expected (mapv #(* 10 %) (range n)), :losses losses}))))
