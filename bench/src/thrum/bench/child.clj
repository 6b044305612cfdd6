(ns thrum.bench.child
  "What runs in a child JVM: one job of one family."
  (:require
   [clojure.edn :as edn]
   [thrum.bench.jvm :as jvm]))

(set! *warn-on-reflection* true)

(defn- halt! [code]
  (flush)
  (.halt (Runtime/getRuntime) code))

(defn- end-with-parent!
  "Ends this JVM when its standard input does, so that it never outlives its parent."
  []
  (doto (Thread. ^Runnable #(do (while (nat-int? (.read System/in))) (halt! 3)) "end-with-parent")
    (.setDaemon true)
    .start))

(defn- family
  "Returns the family of that name; loads no other one."
  [name]
  @(requiring-resolve (symbol (str "thrum.bench.family." name) "family")))

(defn -main
  "Measures the job, EDN, of a family and prints the raw figures between two marks. Halts, since a
  million tasks may be parked."
  [name job]
  (end-with-parent!)
  (try
    (let [{:keys [measure]} (family name)
          figures (measure (edn/read-string job))]
      (println jvm/begin-mark)
      (prn figures)
      (println jvm/end-mark)
      (halt! 0))
    (catch Throwable t
      (.printStackTrace t)
      (halt! 1))))
