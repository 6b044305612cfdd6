(ns thrum.lab.temporary-test
  "Folders that are deleted again."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.lab.child :as child]
   [thrum.lab.temporary :as temporary])
  (:import
   (java.io File)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)))

(set! *warn-on-reflection* true)

(defn- exists? [path]
  (.exists (io/file path)))

(defn- full-folder! []
  (let [folder (temporary/folder! "thrum-lab")]
    (io/make-parents folder "below" "file")
    (spit (io/file folder "below" "file") "x")
    folder))

(deftest a-folder-is-deleted-with-all-that-is-in-it
  (let [folder (full-folder!)]
    (dotimes [_ 2]
      (temporary/delete! folder)
      (is (not (exists? folder)) "which may be gone already"))))

(deftest what-a-link-leads-to-stays
  (let [[outside inside] (repeatedly 2 full-folder!)]
    (Files/createSymbolicLink (.toPath (io/file inside "link"))
                              (.toPath ^File (io/file outside))
                              (make-array FileAttribute 0))
    (temporary/delete! inside)
    (is (not (exists? inside)))
    (is (exists? (io/file outside "below" "file")))
    (temporary/delete! outside)))

(defn -main
  "What a child JVM runs: creates a folder and leaves it. Prints its path."
  []
  (prn (full-folder!))
  (shutdown-agents))

(deftest nothing-outlives-the-process-that-created-it
  (let [flags ["-XX:TieredStopAtLevel=1" "-XX:+UseSerialGC"]
        command (child/java-command flags 'thrum.lab.temporary-test)
        {:keys [output exit]} (child/run-to-end! command {:errors-apart? true} 280000)
        folder (edn/read-string output)]
    (is (= 0 exit))
    (is (str/starts-with? folder (subs (temporary/jvm-opt) (count "-Djava.io.tmpdir="))))
    (is (not (exists? folder)))))
