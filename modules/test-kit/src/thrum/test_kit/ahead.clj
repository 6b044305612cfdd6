(ns thrum.test-kit.ahead
  "Compiles the sources on a classpath once, for all child JVMs: each would take seconds to load
  them. The classes are in a folder whose name is a hash of all that they are made of."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.runner :as runner])
  (:import
   (java.io File)
   (java.lang ProcessHandle)
   (java.nio.file Files)
   (java.security MessageDigest)
   (java.util HexFormat)))

(set! *warn-on-reflection* true)

(def ^:private ^File cache "Below the working directory." (io/file "target" "ahead"))

(def ^:private limit-ms "How long it may take, on a busy machine." 900000)

(def ^:private unused-ms
  "How long the classes of other sources are kept: a run beside this one may be using them."
  3600000)

(defn- entries
  [class-path]
  (map io/file (str/split class-path (re-pattern File/pathSeparator))))

;; The name of the folder

(defn- files [^File entry]
  (sort (filter #(.isFile ^File %) (file-seq entry))))

(defn- digest!
  "Adds a file's path, length and time, and what is in it unless it is a jar."
  [^MessageDigest digest ^File file]
  (.update digest (.getBytes (str/join "\n" [file (.length file) (.lastModified file) ""])))
  (when-not (str/ends-with? (.getName file) ".jar")
    (.update digest (Files/readAllBytes (.toPath file)))))

(defn hash-of
  "Returns a hash of the running Java and of all files on a classpath. Their times count, since
  Clojure loads a source that is newer than its class."
  [class-path]
  (let [digest (MessageDigest/getInstance "SHA-256")]
    (.update digest (.getBytes (str (Runtime/version))))
    (run! #(digest! digest %) (mapcat files (entries class-path)))
    (subs (.formatHex (HexFormat/of) (.digest digest)) 0 16)))

;; The classes

(defn- source-folders
  "Returns the folders of a classpath that are named src or test. What is in others is for tests to
  load, and need not even compile."
  [class-path]
  (filter #(and (.isDirectory ^File %) (#{"src" "test"} (.getName ^File %))) (entries class-path)))

;; A form for a JVM that has loaded nothing of what is to be compiled.
(defn- compiling
  "Returns the form that compiles namespaces, and all that they need, into folder."
  [folder namespaces]
  `(binding [*compile-path* ~(str folder), *compile-files* true]
     (require 'clojure.core.specs.alpha :reload)
     (run! require '~namespaces)
     (shutdown-agents)))

(defn- compile!
  "Compiles the sources of a classpath into folder, in a JVM of its own; throws ex-info where they
  do not compile."
  [^File folder class-path]
  (.mkdirs folder)
  (let [form (compiling folder (runner/find-namespaces (source-folders class-path)))
        class-path (str folder File/pathSeparator class-path)
        command (conj (jvm/clojure-main (jvm/this-home) jvm/exports class-path) "-e" (pr-str form))
        {:keys [exit lines]} (jvm/quietly command limit-ms jvm/quick)]
    (when-not (= 0 exit)
      (throw (ex-info (str "exit code " exit ": " (str/join "\n" lines)) {:exit exit})))))

(defn- delete! [folder]
  (run! #(io/delete-file % true) (reverse (file-seq folder))))

(defn- delete-others! [^File folder]
  (doseq [^File other (.listFiles (.getParentFile folder))
          :when (and (not= other folder)
                     (< (.lastModified other) (- (System/currentTimeMillis) unused-ms)))]
    (delete! other)))

(defn- build!
  "Fills folder with the classes. Where another run builds it at the same time, the first is in
  time."
  [^File folder class-path]
  (let [part (io/file (str folder "-" (.pid (ProcessHandle/current))))]
    (try
      (compile! part class-path)
      (when-not (or (.renameTo part folder) (.isDirectory folder))
        (throw (ex-info (str part " cannot be renamed") {:folder folder})))
      (delete-others! folder)
      (finally (delete! part)))))

(defn folder!
  "Returns the path of the folder with the classes of a classpath, below cache, and compiles them if
  they are not there. Where that fails it prints a sentence and returns nil."
  ([class-path] (folder! cache class-path))
  ([^File cache class-path]
   (try
     (let [folder (io/file (.getAbsoluteFile cache) (hash-of class-path))]
       (when-not (.isDirectory folder) (build! folder class-path))
       (str folder))
     (catch Exception e
       (println "Sources are loaded, since compiling them ahead failed:" (ex-message e))))))

(defn sources-alone
  "Returns a classpath without the classes that were compiled ahead."
  [class-path]
  (->> (str/split class-path (re-pattern File/pathSeparator))
       (remove #(= (.getAbsoluteFile cache) (.getParentFile (io/file %))))
       (str/join File/pathSeparator)))
