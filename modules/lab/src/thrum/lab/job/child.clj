(ns thrum.lab.job.child
  "A process of its own that does one job, a map whose :call names a function of it: the first line
  of standard input. Prints {:sample …}, what the function returns, or {:problem sentence}, and
  ends. It ends as well when standard input does. Nothing is loaded but what the function needs."
  (:require
   [clojure.edn :as edn]
   [thrum.lab.in-child :as in-child])
  (:import
   (java.io PushbackReader)))

(set! *warn-on-reflection* true)

(defn -main
  "Does the job and prints what came of it. Halts, since many threads may be parked."
  [& _]
  (in-child/run!
    #(let [job (edn/read (PushbackReader. *in*))]
       (in-child/halt-with-parent!)
       (in-child/say! {:sample ((requiring-resolve (:call job)) job)})))
  (.halt (Runtime/getRuntime) 0))
