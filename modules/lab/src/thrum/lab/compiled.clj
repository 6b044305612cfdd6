(ns thrum.lab.compiled
  "Compiles namespaces once, for the JVMs of many samples: to load them from source takes longer
  than most samples."
  (:require
   [clojure.string :as str]
   [thrum.lab.child :as child]
   [thrum.lab.job :as job]
   [thrum.lab.temporary :as temporary])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(defn class-path
  "Returns a class path, that of this JVM where it is nil, with the folder before it; itself for no
  folder."
  ([folder] (class-path folder nil))
  ([folder others]
   (str/join File/pathSeparator (remove nil? [folder (or others (child/class-path))]))))

(defn folder!
  "Compiles the namespaces, with all that they need, into a folder of its own, which ends with this
  process, and returns its path. options are those of job/sample!. Takes some seconds. What cannot
  be compiled is left to be loaded from its source. Throws InterruptedException."
  [options namespaces]
  (let [folder (temporary/folder! "thrum-lab-classes")
        options (update options :class-path #(class-path folder %))
        job {:call 'thrum.lab.compiled.child/sample, :folder folder, :namespaces namespaces}]
    (when (:interrupted? (job/sample! options job))
      (throw (InterruptedException.)))
    folder))
