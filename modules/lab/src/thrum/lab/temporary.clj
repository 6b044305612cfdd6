(ns thrum.lab.temporary
  "Folders that are deleted again: by who created them, or at the end of a run that is over before
  that."
  (:import
   (java.nio.file FileVisitOption Files NoSuchFileException Path)
   (java.nio.file.attribute FileAttribute)
   (java.util Set)
   (java.util.concurrent ConcurrentHashMap)))

(set! *warn-on-reflection* true)

(def ^:private ^Set folders "Those that are not deleted yet." (ConcurrentHashMap/newKeySet))

(defn folder!
  "Creates an empty folder, whose name begins with prefix, and returns its path; delete! it."
  [prefix]
  (let [folder (str (Files/createTempDirectory prefix (make-array FileAttribute 0)))]
    (.add folders folder)
    folder))

(defn- inside-out
  "Returns the paths of all that is in a folder and of itself, the deepest first. Follows no link."
  [folder]
  (with-open [paths (Files/walk (Path/of folder (make-array String 0))
                                (make-array FileVisitOption 0))]
    (reverse (iterator-seq (.iterator paths)))))

(defn delete!
  "Deletes a folder and all that is in it, where it is still there."
  [folder]
  (try
    (run! Files/deleteIfExists (inside-out folder))
    (catch NoSuchFileException _))
  (.remove folders folder))

(defn delete-all!
  "Deletes the folders that are still there."
  []
  (run! delete! folders))
