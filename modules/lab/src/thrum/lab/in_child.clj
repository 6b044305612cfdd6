(ns thrum.lab.in-child
  "What every process of the lab's own does around its work."
  (:refer-clojure :exclude [run!])
  (:require
   [thrum.lab.trouble :as trouble])
  (:import
   (sun.misc Signal SignalHandler)))

(set! *warn-on-reflection* true)

(defn run!
  "Calls f. If it throws, prints {:problem sentence}. Ctrl-C is for the parent to answer."
  [f]
  (Signal/handle (Signal. "INT") SignalHandler/SIG_IGN)
  (try
    (f)
    (catch Throwable t
      (prn {:problem (trouble/sentence t)})
      (flush))))
