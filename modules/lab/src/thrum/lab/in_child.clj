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

(defn halt-with-parent!
  "Halts this JVM when its standard input ends: the parent has closed it or has died. On a platform
  thread, since a virtual one that reads a file holds on to its carrier."
  []
  (-> (Thread/ofPlatform)
      (.daemon)
      (.name "lab-parent")
      (.start #(do (while (nat-int? (.read System/in)))
                   (.halt (Runtime/getRuntime) 0)))))
