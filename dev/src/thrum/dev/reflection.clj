(ns thrum.dev.reflection
  "Loads namespaces in a JVM of their own, and lets the compiler say where it reflects."
  (:require
   [clojure.java.io :as io]
   [clojure.tools.namespace.find :as find]))

(set! *warn-on-reflection* true)

(defn -main
  "Loads all namespaces under folders; the compiler's warnings go to stderr."
  [& folders]
  (binding [*warn-on-reflection* true]
    (run! require (mapcat #(find/find-namespaces-in-dir (io/file %)) folders))
    (shutdown-agents)))
