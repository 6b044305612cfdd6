(ns thrum.build.jar
  "Jars that are the same, byte for byte, whenever and wherever they are built."
  (:require
   [clojure.java.io :as io])
  (:import
   (java.io File)
   (java.nio.file Files)
   (java.time LocalDate LocalDateTime)
   (java.util.zip ZipEntry ZipOutputStream)))

(set! *warn-on-reflection* true)

(def ^:private manifest "Manifest-Version: 1.0\r\nCreated-By: Thrum\r\n\r\n")

(defn- entries
  "Returns [path file] of the files below folder, sorted by path."
  [^File folder]
  (->> (file-seq folder)
       (filter #(.isFile ^File %))
       (map (fn [^File file] [(str (.relativize (.toPath folder) (.toPath file))) file]))
       (sort-by first)))

(defn- add! [^ZipOutputStream out ^LocalDateTime time ^String path ^bytes content]
  (.putNextEntry out (doto (ZipEntry. path) (.setTimeLocal time)))
  (.write out content)
  (.closeEntry out))

(defn write
  "Writes the files below folder, with the date as the time of each, into a jar, and returns its
  path."
  [folder ^LocalDate date path]
  (io/make-parents path)
  ;; A local time: it is written as it is, in any time zone.
  (let [time (.atStartOfDay date)]
    (with-open [out (ZipOutputStream. (io/output-stream path))]
      (add! out time "META-INF/MANIFEST.MF" (.getBytes ^String manifest))
      (doseq [[entry ^File file] (entries (io/file folder))]
        (add! out time entry (Files/readAllBytes (.toPath file))))))
  path)
