(ns thrum.build.assemble
  "The files of an artifact: POM, jar, and the jars of its sources and of its documentation."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.tools.build.api :as b]
   [thrum.build.artifacts :as artifacts]
   [thrum.build.jar :as jar])
  (:import
   (java.util Locale)
   (java.util.spi ToolProvider)))

(set! *warn-on-reflection* true)

(defn- paths [module]
  (filterv #(.isDirectory (io/file %))
           [(str "modules/" module "/src") (str "modules/" module "/resources")]))

(defn- java-sources [module]
  (->> (mapcat (comp file-seq io/file) (paths module))
       (map str)
       (filter #(str/ends-with? % ".java"))
       sort))

(defn- compile-java
  "Compiles a module's Java for the oldest JDK that Thrum runs on. Needs a JDK; a JRE has no
  compiler."
  [module class-dir]
  (b/javac {:src-dirs (paths module)
            :class-dir class-dir
            :javac-opts ["--release" "21" "-g" "-parameters" "-Xlint:all,-path"]
            :basis (artifacts/basis module)}))

(defn- fill
  "Makes folder anew, with the licence and what f adds."
  [folder f]
  (b/delete {:path folder})
  (f)
  (b/copy-file {:src "LICENSE", :target (str folder "/META-INF/LICENSE")})
  folder)

(defn- classes [target {:keys [module] :as artifact}]
  (let [folder (str target "/classes/" module)]
    (fill folder
          (fn []
            (b/copy-dir {:src-dirs (paths module), :target-dir folder, :ignores [#".*\.java"]})
            (when (seq (java-sources module)) (compile-java module folder))
            (artifacts/write-pom folder artifact)))))

(defn- sources [target {:keys [module]}]
  (let [folder (str target "/sources/" module)]
    (fill folder #(b/copy-dir {:src-dirs (paths module), :target-dir folder}))))

(defn- javadoc [module folder]
  (let [tool ^ToolProvider (.orElseThrow (ToolProvider/findFirst "javadoc"))
        path (str/join ":" (keys (:classpath (artifacts/basis module))))
        locale (Locale/getDefault)
        args (into ["-quiet" "-notimestamp" "-Xdoclint:all,-missing" "-d" folder "-cp" path]
                   (java-sources module))]
    (try
      ;; With its option -locale alone, it falls back to the texts of this locale.
      (Locale/setDefault Locale/ENGLISH)
      (when-not (zero? (.run tool
                             System/out
                             System/err
                             ^"[Ljava.lang.String;" (into-array String args)))
        (throw (ex-info (str "javadoc fails for " module) {:module module})))
      (finally
        (Locale/setDefault locale)))))

(defn- documents
  "Javadoc for Java. For Clojure, whose docstrings are in the jar, the README alone: repositories
  ask for the file."
  [target {:keys [module]}]
  (let [folder (str target "/documents/" module)]
    (fill folder
          #(if (seq (java-sources module))
             (javadoc module folder)
             (b/copy-file {:src "README.md", :target (str folder "/README.md")})))))

(defn- path [target {:keys [lib]} ending]
  (str target "/" (name lib) "-" artifacts/version ending))

(defn- write-jar [folder path]
  (jar/write folder artifacts/date path))

(defn jar
  "Writes the artifact's jar into target, and returns its path."
  [target artifact]
  (write-jar (classes target artifact) (path target artifact ".jar")))

(defn pom
  "Returns the path of the POM that `jar` has written."
  [target {:keys [module lib]}]
  (str target "/classes/" module "/META-INF/maven/" (namespace lib) "/" (name lib) "/pom.xml"))

(defn all
  "Writes all files of an artifact into target. Returns a seq of {:classifier string, :extension
  string, :file path}."
  [target artifact]
  (let [jar (jar target artifact)]
    [{:classifier "", :extension "jar", :file jar}
     {:classifier "", :extension "pom", :file (pom target artifact)}
     {:classifier "sources", :extension "jar"
      :file (write-jar (sources target artifact) (path target artifact "-sources.jar"))}
     {:classifier "javadoc", :extension "jar"
      :file (write-jar (documents target artifact) (path target artifact "-javadoc.jar"))}]))
