(ns cljw.make-classpath2
  "Resolves as the Clojure CLI does, by clojure.tools.deps.script.make-classpath2; once more, on one
  thread, where Maven's threads have met: its DefaultModelValidator has a HashSet that they all
  write, and now and then a resolution fails there."
  (:require
   [clojure.tools.deps.script.make-classpath2 :as script]))

(set! *warn-on-reflection* true)

(def ^:private validator "org.apache.maven.model.validation.DefaultModelValidator")

(defn- met? [t]
  (let [frames (mapcat Throwable/.getStackTrace (take-while some? (iterate ex-cause t)))]
    (some #(= validator (StackTraceElement/.getClassName %)) frames)))

(defn- again
  "Returns run, which is done once more where threads have met."
  [run]
  (fn [options]
    (try
      (run options)
      (catch Throwable t
        (when-not (met? t) (throw t))
        (binding [*out* *err*]
          (println "Two threads of Maven have met, as they do now and then: once more, on one."))
        (run (assoc options :threads "1"))))))

(alter-var-root #'script/run again)
(apply script/-main *command-line-args*)
