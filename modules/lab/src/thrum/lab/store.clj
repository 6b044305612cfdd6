(ns thrum.lab.store
  "Keeps results: versioned EDN, one file for each run."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.string :as str])
  (:import
   (java.io File IOException)
   (java.nio.file CopyOption Files StandardCopyOption)))

(set! *warn-on-reflection* true)

(def version "The version of the format that this lab writes and reads." 1)

(defn- lines [indent opening items closing]
  (str opening (str/join (str "\n" indent " ") items) closing))

(defn- layout
  "Returns value as EDN that a person can read and a diff can show: an entry of a map and a map in a
  vector take a line of their own, anything else, a curve say, one line as a whole."
  [value indent]
  (cond (and (map? value) (seq value))
        (lines indent
               "{"
               (map (fn [[k v]] (str (pr-str k) " " (layout v (str indent "  ")))) value)
               "}")
        (and (vector? value) (map? (first value)))
        (lines indent "[" (map #(layout % (str indent " ")) value) "]")
        :else (pr-str value)))

(defn- text [value]
  (binding [*print-length* nil, *print-level* nil, *print-namespace-maps* false]
    (str (layout value "") "\n")))

(defn- move!
  [^File from ^File to]
  (Files/move (.toPath from)
              (.toPath to)
              (into-array CopyOption
                          [StandardCopyOption/REPLACE_EXISTING StandardCopyOption/ATOMIC_MOVE])))

(defn write-text!
  "Writes a file as a whole: who reads it finds the old one or the new one, never half of it.
  Creates the folder. Returns the file's path."
  [dir file-name content]
  (let [target (io/file dir file-name), half (io/file dir (str file-name ".part"))]
    (io/make-parents target)
    (try
      (spit half content)
      (move! half target)
      (finally (.delete half)))
    (str target)))

(def ^:private trial
  "As long as a short run's result and page: an empty file fits on a disk that is full."
  (.repeat " " 400000))

(defn problem
  "Returns a sentence if no result can be written into the folder; nil if one can, which creates the
  folder."
  [dir]
  (try
    (io/delete-file (write-text! dir "result.edn.probe" trial))
    nil
    (catch IOException _
      (str
        "The results cannot be written into "
        dir
        ": name another folder by --out, or the space and the right to write there are missing."))))

(defn write!
  "Writes a result as EDN and returns the file's path."
  [dir file-name result]
  (write-text! dir file-name (text (assoc result :thrum.lab/version version))))

(defn- unreadable
  [file reason cause]
  (ex-info (str file " is not a result of this lab: " reason ".")
           {:type :thrum/lab-usage, :file (str file)}
           cause))

(defn- parse [file]
  (try
    (edn/read-string (slurp file))
    (catch IOException e (throw (unreadable file "it cannot be read" e)))
    (catch RuntimeException e (throw (unreadable file "it is no EDN" e)))))

(defn read!
  "Returns the result in file. Throws ex-info of :type :thrum/lab-usage if there is none, or one of
  another version."
  [file]
  (let [result (parse file)
        found (when (map? result) (:thrum.lab/version result))]
    (when-not (= version found)
      (throw (unreadable file
                         (if found (str "version " found ", not " version) "it has no version")
                         nil)))
    result))
