(ns thrum.lab.temporary
  "Folders that are deleted again."
  (:require
   [clojure.java.io :as io])
  (:import
   (java.io File)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)))

(set! *warn-on-reflection* true)

(defn folder!
  "Creates an empty folder, whose name begins with prefix, and returns its path; delete! it."
  [prefix]
  (str (Files/createTempDirectory prefix (make-array FileAttribute 0))))

(defn delete!
  "Deletes a folder and all that is in it."
  [folder]
  (run! File/.delete (reverse (file-seq (io/file folder)))))
