(ns thrum.build.jar
  "Jars that are the same, byte for byte, whenever and wherever they are built."
  (:require
   [clojure.java.io :as io])
  (:import
   (java.io File)
   (java.nio.file Files)
   (java.time LocalDateTime)
   (java.util.zip ZipEntry ZipOutputStream)))

(set! *warn-on-reflection* true)

(def ^:private ^LocalDateTime epoch
  "The time of every entry. A local time: it is written as it is, in any time zone."
  (LocalDateTime/of 1980 2 1 0 0))

(def ^:private manifest "Manifest-Version: 1.0\r\nCreated-By: Thrum\r\n\r\n")

(defn- entries
  "Returns [path file] of the files below folder, sorted by path."
  [^File folder]
  (->> (file-seq folder)
       (filter #(.isFile ^File %))
       (map (fn [^File file] [(str (.relativize (.toPath folder) (.toPath file))) file]))
       (sort-by first)))

(defn- add! [^ZipOutputStream out ^String path ^bytes content]
  (.putNextEntry out (doto (ZipEntry. path) (.setTimeLocal epoch)))
  (.write out content)
  (.closeEntry out))

(defn write
  "Writes the files below folder into a jar, and returns its path."
  [folder path]
  (io/make-parents path)
  (with-open [out (ZipOutputStream. (io/output-stream path))]
    (add! out "META-INF/MANIFEST.MF" (.getBytes ^String manifest))
    (doseq [[entry ^File file] (entries (io/file folder))]
      (add! out entry (Files/readAllBytes (.toPath file)))))
  path)
