(ns thrum.lab.benchmarks.faults.tools
  "What the JDK's own tools say of a process: whether the stack of a fault is among what they print.
  None of them says that anything is wrong."
  (:require
   [clojure.java.io :as io])
  (:import
   (java.io File)
   (java.util List)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(defn- bounded
  "Returns what the command prints; what it has printed where it takes more than ten s."
  [& command]
  (let [^List command (mapv str command)
        file (File/createTempFile "faults" ".txt")
        process (.start (doto (ProcessBuilder. command)
                          (.redirectErrorStream true)
                          (.redirectOutput file)))]
    (try
      (.waitFor process 10 TimeUnit/SECONDS)
      (slurp file)
      (finally
        (.destroyForcibly process)
        (.delete file)))))

(defn jstack
  "Returns what jstack prints of the process, with the tools of the JDK at home."
  [home pid]
  (bounded (io/file home "bin" "jstack") "-l" pid))

(defn dump
  "Returns the JSON of jcmd's Thread.dump_to_file."
  [home pid]
  (let [file (File/createTempFile "faults" ".json")]
    (try
      (bounded (io/file home "bin" "jcmd")
               pid "Thread.dump_to_file" "-format=json" "-overwrite" file)
      (slurp file)
      (finally (.delete file)))))

(defn frame?
  "True if the text has a frame of the function, of that name as Clojure munges it."
  [text function]
  (some? (re-find (re-pattern (str "faults\\.child\\$" function "[.$]")) text)))
