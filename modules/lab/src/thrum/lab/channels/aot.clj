(ns thrum.lab.channels.aot
  "Compiles what the other jobs are made of.")

(set! *warn-on-reflection* true)

(def ^:private namespaces
  "What is compiled, with all that it needs."
  '[thrum.lab.job.child thrum.lab.experiments.go-blocks.requests thrum.lab.experiments.go-blocks.go
    thrum.lab.channels.pipeline thrum.lab.contender thrum.async.executor])

(defn sample
  "Compiles the namespaces into folder, which is on the class path."
  [{:keys [folder]}]
  (binding [*compile-path* folder]
    (run! compile namespaces))
  {:compiled (count namespaces)})
