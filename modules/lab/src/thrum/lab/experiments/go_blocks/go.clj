(ns thrum.lab.experiments.go-blocks.go
  "Blocking calls in core.async's own words. Needs nothing of a release but what all since
  1.9.829-alpha2 have."
  (:require
   [clojure.core.async :as a]))

(set! *warn-on-reflection* true)

(defn- take-all [ch n]
  (dotimes [_ n]
    (a/<!! ch)))

(defn go-blocks
  "Calls f on each item in a go block of its own, all at once; returns when all have ended. f must
  not throw."
  [f coll]
  (let [done (a/chan)]
    (doseq [x coll]
      (a/go (f x) (a/>! done true)))
    (take-all done (count coll))))

(defn io-threads
  "Calls f on each item in an io-thread of its own, all at once; returns when all have ended. f must
  not throw."
  [f coll]
  (let [done (a/chan)]
    (doseq [x coll]
      (a/io-thread (f x) (a/>!! done true)))
    (take-all done (count coll))))
