(ns thrum.lab.experiments.cluster.aot
  "Compiles what the samples are made of, in a JVM that has loaded nothing of it.")

(set! *warn-on-reflection* true)

(def ^:private namespaces
  "What is compiled, with all that it needs."
  '[thrum.lab.job.child thrum.lab.experiments.cluster.calls thrum.cluster.main
    thrum.cluster.engine.infinispan])

(defn sample
  "Compiles the namespaces into folder, which is on the class path."
  [{:keys [folder]}]
  (binding [*compile-path* folder]
    (run! compile namespaces))
  {:compiled (count namespaces)})
