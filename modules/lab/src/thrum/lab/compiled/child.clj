(ns thrum.lab.compiled.child
  "The JVM that compiles what others load.")

(set! *warn-on-reflection* true)

(defn- compiled? [namespace]
  (try
    (compile namespace)
    ;; It may need what is not on the class path.
    (catch Exception _ nil)))

(defn sample
  "Compiles the namespaces into folder, which is on the class path; returns how many it could."
  [{:keys [folder namespaces]}]
  (binding [*compile-path* folder]
    {:compiled (count (filter compiled? namespaces))}))
