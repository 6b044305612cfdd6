(ns thrum.java.compiler
  "Compiles Java sources for a test, and loads what comes out."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.runner :as runner])
  (:import
   (java.io ByteArrayOutputStream File OutputStream)
   (java.net URL URLClassLoader)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)
   (javax.tools JavaCompiler ToolProvider)))

(set! *warn-on-reflection* true)

(defn folder
  "Returns a new folder below that of the system's temporary files."
  ^File []
  (.toFile (Files/createTempDirectory "java" (make-array FileAttribute 0))))

(defn delete!
  "Deletes a folder with all that is in it."
  [folder]
  (run! io/delete-file (reverse (file-seq folder))))

(defn sources
  "Returns the paths of the Java files under a folder of the module, sorted; from the module's
  folder or the repository's."
  [name]
  (let [here (first (filter #(.isDirectory ^File %)
                            [(io/file "modules/java" name) (io/file name)]))]
    (sort (map str (filter #(str/ends-with? (str %) ".java") (file-seq here))))))

(defn- run-here
  [^JavaCompiler compiler args]
  (let [out (ByteArrayOutputStream.)]
    [(.run compiler nil (OutputStream/nullOutputStream) out (into-array String args)) (str out)]))

(defn- run-javac
  [javac args]
  (let [process (.start (doto (ProcessBuilder. ^java.util.List (into [javac] args))
                          (.redirectErrorStream true)))
        out (slurp (.getInputStream process))]
    [(.waitFor process) out]))

(defn- javac-of-another
  "Returns the path of a compiler for a Java that has none, the newest in the usual folders, or
  nil."
  []
  (->> (range 40 20 -1)
       (keep jvm/find-home)
       (map #(io/file % "bin" "javac"))
       (filter #(.canExecute ^File %))
       (map str)
       first))

(defn- run-compiler [args]
  (if-some [compiler (ToolProvider/getSystemJavaCompiler)]
    (run-here compiler args)
    (if-some [javac (javac-of-another)]
      (run-javac javac args)
      (runner/skip! "This Java has no compiler, and no JDK that has one was found"))))

(defn compile!
  "Compiles the files for JDK 21 into target; classpath: more folders. Returns what the compiler
  complained about, nil where it compiled without a warning. Where neither this Java nor another one
  in the usual folders has a compiler, the test is skipped."
  [target classpath files]
  (let [classpath (str/join File/pathSeparator
                            (into [(System/getProperty "java.class.path")] (map str) classpath))
        options ["-Xlint:all,-path" "-Werror" "--release" "21" "-proc:none" "-cp" classpath "-d"
                 (str target)]
        [exit out] (run-compiler (into options files))]
    (when-not (= [0 ""] [exit out]) (if (str/blank? out) (str "exit code " exit) out))))

(defn loader
  "Returns a class loader for a folder of classes."
  ^ClassLoader [^File folder]
  (URLClassLoader. (into-array URL [(.toURL (.toURI folder))])
                   (.getContextClassLoader (Thread/currentThread))))
