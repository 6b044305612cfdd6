(ns thrum.lab.in-child
  "What every process of the lab's own does around its work."
  (:refer-clojure :exclude [run!])
  (:require
   [thrum.lab.trouble :as trouble])
  (:import
   (java.io PrintStream)
   (sun.misc Signal SignalHandler)))

(set! *warn-on-reflection* true)

(def ^:private ^PrintStream answers "Standard output as the parent reads it." System/out)

(defn say!
  "Prints a line of EDN for the parent."
  [value]
  (let [line (pr-str value)]
    (locking answers
      (doto answers (.println line) .flush))))

(defn- print-apart!
  "Sends all else that is printed here, by the user's code say, to standard error."
  []
  (System/setOut System/err)
  (alter-var-root #'*out* (constantly *err*)))

(defn run!
  "Calls f. If it throws, says {:problem sentence}. Ctrl-C is for the parent to answer. Standard
  output is for say! alone: what is printed otherwise goes to standard error."
  [f]
  (Signal/handle (Signal. "INT") SignalHandler/SIG_IGN)
  (print-apart!)
  (try
    (f)
    (catch Throwable t
      (say! {:problem (trouble/sentence t)}))))

(defn halt-with-parent!
  "Halts this JVM when its standard input ends: the parent has closed it or has died. On a platform
  thread, since a virtual one that reads a file holds on to its carrier."
  []
  (-> (Thread/ofPlatform)
      (.daemon)
      (.name "lab-parent")
      (.start #(do (while (nat-int? (.read System/in)))
                   (.halt (Runtime/getRuntime) 0)))))
