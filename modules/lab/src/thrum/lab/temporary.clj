(ns thrum.lab.temporary
  "Folders that are deleted again: by who created them, or at the latest at the end of the process.
  Those of the lab's own processes, which are killed, are below one of their parent's."
  (:import
   (java.io File)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)
   (java.util Set)
   (java.util.concurrent ConcurrentHashMap)))

(set! *warn-on-reflection* true)

(def ^:private ^Set folders "Those that are not deleted yet." (ConcurrentHashMap/newKeySet))

(defn- delete-tree!
  "Deletes what there is of a tree, without following links. Others may delete it too, or still
  write to it."
  [^File file]
  (when-not (Files/isSymbolicLink (.toPath file))
    (run! delete-tree! (.listFiles file)))
  (.delete file))

(defn delete!
  "Deletes a folder and all that is in it, as far as that is possible."
  [^String folder]
  (delete-tree! (File. folder))
  (when-not (.exists (File. folder))
    (.remove folders folder)))

(def ^:private ^:const tries "How often a folder is deleted that does not go." 20)
(def ^:private ^:const pause-ms "How long a process that was killed may still write to it." 20)

(defn delete-all!
  "Deletes the folders that are still there. Blocks for half a second at most where one does not
  go."
  []
  (loop [left tries]
    (run! delete! folders)
    (when-not (or (.isEmpty folders) (zero? left))
      (Thread/sleep pause-ms)
      (recur (dec left)))))

(def ^:private at-the-end
  (delay (.addShutdownHook (Runtime/getRuntime) (Thread. ^Runnable delete-all!))))

(defn folder!
  "Creates an empty folder, whose name begins with prefix, and returns its path; delete! it."
  [prefix]
  @at-the-end
  (let [folder (str (Files/createTempDirectory prefix (make-array FileAttribute 0)))]
    (.add folders folder)
    folder))

(def ^:private childrens (delay (folder! "thrum-lab")))

(defn jvm-opt
  "Returns the flag of a JVM that this process starts, whose temporary files end with this process."
  []
  (str "-Djava.io.tmpdir=" @childrens))
