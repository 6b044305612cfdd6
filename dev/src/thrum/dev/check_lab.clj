(ns thrum.dev.check-lab
  "The gate behind a run of the lab: ./cljw -M:check-lab FILE."
  (:require
   [clojure.edn :as edn]
   [thrum.lab.check :as check]))

(set! *warn-on-reflection* true)

(defn -main
  "Prints what the lab complains of in the result in file; ends the JVM with 1 if that is anything."
  [file]
  (let [found (check/complaints (edn/read-string (slurp file)))]
    (run! println found)
    (println (str file ": " (count found) " complaints"))
    (flush)
    (System/exit (if (seq found) 1 0))))
