(ns thrum.lab.proc
  "Reads the files of /proc, on systems that have them."
  (:import
   (java.io IOException)
   (java.nio.file Files Path)))

(set! *warn-on-reflection* true)

(defn text
  "Returns the text of a file of /proc, nil where there is none. Not by slurp: these files have no
  length, and some kernels refuse to say how much is available."
  [path]
  (try
    (Files/readString (Path/of path (make-array String 0)))
    (catch IOException _)))
