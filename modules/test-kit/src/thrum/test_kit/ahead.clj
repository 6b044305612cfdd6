(ns thrum.test-kit.ahead
  "Compiles the sources on a classpath once, for all child JVMs: each would take seconds to load
  them. A folder whose name is a hash of all that they are made of has them in three jars, tools,
  core and ours, and those of the tools in an archive that a JVM maps when it starts."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.runner :as runner])
  (:import
   (java.io File)
   (java.lang ProcessHandle)
   (java.nio.file Files)
   (java.nio.file.attribute FileTime)
   (java.security MessageDigest)
   (java.util HexFormat)
   (java.util.jar JarOutputStream)
   (java.util.zip ZipEntry)))

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

(def ^:private tools
  "The namespaces that run tests and compile for them, and that no test is about: their classes
  serve any JDK, and beside any release of core.async."
  '[clojure.tools.analyzer.jvm thrum.test-kit.leak thrum.test-kit.main])

(defn- source-folders
  "Returns the folders of a classpath that are named src. One JVM alone loads most tests: to compile
  them ahead would not pay. What is in others is for tests to load, and need not even compile."
  [class-path]
  (filter #(and (.isDirectory ^File %) (= "src" (.getName ^File %))) (entries class-path)))

(defn- core? [^File folder]
  (= "core" (runner/module (.getAbsoluteFile folder))))

(defn- into-folder [folder & forms]
  `(binding [*compile-path* ~(str folder), *compile-files* true, *warn-on-reflection* true]
     ~@forms))

;; For a JVM that has loaded nothing of what is to be compiled.
(defn- compiling
  "Returns the form that compiles the tools, core and the namespaces in the other folders, with all
  that they need."
  [folder tools {core true, others false}]
  `(do
     ~(into-folder (io/file folder "tools")
        '(require 'clojure.core.specs.alpha :reload)
        `(run! require '~tools))
     ~(into-folder (io/file folder "core") `(run! require '~(runner/find-namespaces core)))
     ~(into-folder (io/file folder "ours") `(run! require '~(runner/find-namespaces others)))
     (shutdown-agents)))

(defn- clojures-jars [class-path]
  (filter #(re-matches #"(clojure|spec\.alpha|core\.specs\.alpha)-\d.*\.jar" (.getName ^File %))
          (entries class-path)))

(defn- path [entries]
  (str/join File/pathSeparator entries))

;; An archive serves each classpath that begins with the one it was made with, of jars alone.
(defn- archived-path [folder class-path]
  (path (concat (clojures-jars class-path) [(io/file folder "tools.jar")])))

(def ^:private kinds ["tools" "core" "ours"])

(def ^:private jars
  "Those of our classes, by what they are made for."
  {:tools [], :core ["core.jar"], :all ["core.jar" "ours.jar"]})

(defn in-front
  "Returns a classpath with classes in folder before it: the :tools' alone; also those of :core,
  which needs Clojure alone; or :all."
  [folder kind class-path]
  (path (concat [(archived-path folder class-path)]
                (map #(io/file folder %) (jars kind))
                [class-path])))

(defn- compile!
  "Compiles the sources of a classpath into folder, in a JVM of its own; throws ex-info where they
  do not compile."
  [^File folder tools class-path]
  (run! #(.mkdirs (io/file folder %)) kinds)
  (let [form (compiling folder tools (group-by core? (source-folders class-path)))
        class-path (path (concat (map #(io/file folder %) kinds) [class-path]))
        command (conj (jvm/clojure-main (jvm/this-home) jvm/exports class-path) "-e" (pr-str form))
        {:keys [exit lines]} (jvm/quietly command limit-ms jvm/quick)]
    (when-not (= 0 exit)
      (throw (ex-info (str "exit code " exit ": " (str/join "\n" lines)) {:exit exit})))
    (spit (io/file folder "printed") (str/join "\n" lines))))

;; The archive

(defn- jar!
  "Makes a jar of the files below folder; they keep their times, which Clojure compares."
  [^File folder jar]
  (with-open [out (doto (JarOutputStream. (io/output-stream jar)) (.setLevel 0))]
    (doseq [^File file (files folder)]
      (.putNextEntry out
        (doto (ZipEntry. (str (.relativize (.toURI folder) (.toURI file))))
          (.setLastModifiedTime (FileTime/fromMillis (.lastModified file)))))
      (io/copy file out))))

(defn- archive!
  "Makes the archive of what a JVM has loaded that has the tools. Where there is none, JVMs load
  the classes one by one."
  [folder tools class-path]
  (let [part (str (io/file folder (str "tools-" (.pid (ProcessHandle/current)) ".jsa")))
        options [(str "-XX:ArchiveClassesAtExit=" part) "-Xlog:disable"]
        class-path (archived-path folder class-path)]
    (-> (jvm/clojure-main (jvm/this-home) (into options jvm/exports) class-path)
        (conj "-e" (pr-str `(run! require '~tools)))
        (jvm/quietly limit-ms jvm/quick))
    (.renameTo (io/file part) (io/file folder "tools.jsa"))))

(defn environment
  "Returns the environment of JVMs that use the archive in folder where their classpath allows it."
  [folder environment]
  (update environment
          "JDK_JAVA_OPTIONS"
          str
          (format " -XX:SharedArchiveFile=\"%s\" -Xlog:cds*=off" (io/file folder "tools.jsa"))))

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
  [^File folder tools class-path]
  (let [part (io/file (str folder "-" (.pid (ProcessHandle/current))))]
    (try
      (compile! part tools class-path)
      (run! #(jar! (io/file part %) (io/file part (str % ".jar"))) kinds)
      (when-not (or (.renameTo part folder) (.isDirectory folder))
        (throw (ex-info (str part " cannot be renamed") {:folder folder})))
      (delete-others! folder)
      (finally (delete! part)))))

(defn folder!
  "Returns the path of the folder with the classes of a classpath, below cache, and compiles them if
  they are not there; see in-front. Its file printed has what the compiler printed, of reflection
  too. Where that fails it prints a sentence and returns nil."
  ([class-path] (folder! cache tools class-path))
  ([^File cache tools class-path]
   (try
     (let [folder (io/file (.getAbsoluteFile cache) (hash-of class-path))]
       (when-not (.isDirectory folder)
         (build! folder tools class-path)
         (archive! folder tools class-path))
       (str folder))
     (catch Exception e
       (println "Sources are loaded, since compiling them ahead failed:" (ex-message e))))))

(defn- compiled-ahead
  "Returns the name of the jar in the cache that an entry of a classpath is, or nil."
  [entry]
  (let [file (io/file entry)]
    (when (= (.getAbsoluteFile cache) (some-> (.getParentFile file) .getParentFile))
      (.getName file))))

(defn own-folder!
  "Returns the folder! of this JVM's classpath, also where its classes are in front of it."
  []
  (let [class-path (System/getProperty "java.class.path")]
    (if-let [ours (first (filter #(= "ours.jar" (compiled-ahead %)) (entries class-path)))]
      (.getParent (io/file ours))
      (folder! class-path))))

(defn- without [jars class-path]
  (path (remove (comp (set jars) compiled-ahead) (entries class-path))))

(defn sources-alone
  "Returns a classpath without our classes that were compiled ahead; those of the tools stay."
  [class-path]
  (without ["core.jar" "ours.jar"] class-path))

(defn core-alone
  "Returns a classpath without our classes that were compiled ahead, but for those of core."
  [class-path]
  (without ["ours.jar"] class-path))
