(ns thrum.repo.jars-test
  "The jars hold what their users need, and their POMs name it."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [clojure.xml :as xml]
   [thrum.build.artifacts :as artifacts]
   [thrum.build.assemble :as assemble]
   [thrum.build.jar :as jar]
   [thrum.build.lock :as lock])
  (:import
   (java.io DataInputStream File)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)
   (java.util Locale TimeZone)
   (java.util.jar JarFile)
   (java.util.zip ZipEntry)))

(set! *warn-on-reflection* true)

(def ^:private ^:dynamic ^File *target* nil)

(use-fixtures :once
  (fn [f]
    (binding [*target* (.toFile (Files/createTempDirectory "jars" (make-array FileAttribute 0)))]
      (run! #(assemble/jar (str *target*) %) artifacts/published)
      (f)
      (run! io/delete-file (reverse (file-seq *target*))))))

(defn- jar
  ^JarFile [artifact]
  (JarFile. (io/file *target* (str artifact "-" artifacts/version ".jar"))))

(defn- entries
  [artifact]
  (with-open [jar (jar artifact)]
    (into #{} (map str) (enumeration-seq (.entries jar)))))

(defn- pom
  [artifact]
  (with-open [jar (jar artifact)
              in (.getInputStream
                   jar
                   (.getEntry jar (str "META-INF/maven/io.github.thrum-clj/" artifact "/pom.xml")))]
    (xml/parse in)))

(defn- at
  "Returns the elements under element along tags."
  [element & tags]
  (reduce (fn [elements tag] (filter #(= tag (:tag %)) (mapcat :content elements))) [element] tags))

(defn- text
  [element & tags]
  (first (:content (first (apply at element tags)))))

(defn- coordinate
  [element]
  [(text element :groupId) (text element :artifactId) (text element :version)])

(defn- dependencies
  [artifact]
  (set (map coordinate (at (pom artifact) :dependencies :dependency))))

(deftest core-needs-clojure-alone
  (is (= #{["org.clojure" "clojure" "1.12.6"]} (dependencies "thrum"))))

(deftest a-sibling-is-a-real-coordinate
  (is (contains? (dependencies "thrum-lab") ["io.github.thrum-clj" "thrum" artifacts/version]))
  (is (contains? (dependencies "thrum-lab") ["org.webjars.npm" "d3" "7.9.0"])))

(deftest the-test-kit-is-in-no-pom
  (doseq [artifact ["thrum" "thrum-lab" "thrum-java"]]
    (is (not-any? #(str/includes? (second %) "test-kit") (dependencies artifact)))))

(deftest poms-say-who-and-under-which-licence
  (doseq [artifact ["thrum" "thrum-lab" "thrum-java"] :let [pom (pom artifact)]]
    (is (= ["io.github.thrum-clj" artifact artifacts/version] (coordinate pom)))
    (is (= "MIT" (text pom :licenses :license :name)))
    (is (= [] (at pom :repositories :repository)) "all is on Maven Central")
    (is (seq (text pom :description)))))

(deftest jars-hold-sources-and-nothing-of-the-tests
  (is (contains? (entries "thrum") "thrum/core.clj"))
  (is (contains? (entries "thrum") "META-INF/LICENSE"))
  (is (contains? (entries "thrum-lab") "thrum/lab/main.clj"))
  (doseq [artifact ["thrum" "thrum-lab"]]
    (is (not-any? #(re-find #"test|\.edn$" %)
                  (remove #(str/starts-with? % "clj-kondo.exports/") (entries artifact))))))

(deftest the-contract-is-an-artifact-of-its-own
  (is (= #{["org.clojure" "clojure" "1.12.6"]} (dependencies "thrum-server-tck")))
  (is (contains? (entries "thrum-server-tck") "thrum/server/tck.clj"))
  (is (not-any? #(re-find #"soak|_test" %) (entries "thrum-server-tck")))
  (is (not-any? #(re-find #"tck" %) (entries "thrum-server"))))

(deftest javas-jar-holds-classes-for-the-oldest-jdk
  (is (contains? (dependencies "thrum-java") ["io.github.thrum-clj" "thrum" artifacts/version]))
  (is (= #{} (into #{} (filter #(re-find #"\.(?:java|clj)$|[Ss]amples" %)) (entries "thrum-java"))))
  (with-open [jar (jar "thrum-java")
              in (DataInputStream.
                   (.getInputStream jar (.getEntry jar "io/github/thrumclj/Thrum.class")))]
    (is (= [0xcafebabe 0 65]
           [(bit-and 0xffffffff (.readInt in)) (.readUnsignedShort in) (.readUnsignedShort in)]))))

(deftest core-exports-its-clj-kondo-configuration
  (is (contains? (entries "thrum") "clj-kondo.exports/io.github.thrum-clj/thrum/config.edn")))

(deftest the-readme-names-every-artifact-and-this-version
  (let [readme (slurp "README.md")]
    (is (= (set (map :name artifacts/published))
           (set (map second (re-seq #"(?m)^\| `(thrum[a-z0-9-]*)` \|" readme)))))
    (is (= #{artifacts/version} (set (map second (re-seq #":mvn/version \"([^\"]+)\"" readme)))))))

(deftest the-lock-file-names-the-tools-jars
  (is (= (map #(last (str/split % #"/")) (lock/jars))
         (map #(last (str/split % #"/")) (str/split-lines (slurp lock/path))))))

(defn- bytes-of [folder modified zone]
  (let [before (TimeZone/getDefault)]
    (run! #(.setLastModified ^File % modified) (file-seq (io/file folder)))
    (try
      (TimeZone/setDefault (TimeZone/getTimeZone ^String zone))
      (let [jar (jar/write folder artifacts/date (str *target* "/again.jar"))]
        (vec (Files/readAllBytes (.toPath (io/file jar)))))
      (finally
        (TimeZone/setDefault before)))))

(deftest a-jar-has-the-same-bytes-whenever-and-wherever-it-is-built
  (let [folder (str *target* "/classes/java")]
    (is (= (bytes-of folder 1000000000000 "Pacific/Kiritimati")
           (bytes-of folder 1700000000000 "America/Lima")))))

(deftest documentation-is-in-english-wherever-it-is-built
  (let [before (Locale/getDefault)
        java (first (filter #(= "java" (:module %)) artifacts/published))]
    (try
      (Locale/setDefault Locale/GERMAN)
      (assemble/all (str *target*) java)
      (finally
        (Locale/setDefault before)))
    (let [page (slurp (io/file *target* "documents/java/io/github/thrumclj/Thrum.html"))]
      (is (= ["lang=\"en\"" "Method Summary"]
             [(re-find #"lang=\"\w+\"" page) (re-find #"Method Summary" page)])))))

(deftest a-jars-files-are-of-the-day-of-the-release
  (with-open [jar (jar "thrum")]
    (is (= #{artifacts/date}
           (into #{}
                 (map #(.toLocalDate (.getTimeLocal ^ZipEntry %)))
                 (enumeration-seq (.entries jar)))))))

(deftest the-changelog-names-the-day-of-the-release
  (let [[_ version day] (re-find #"(?m)^## ([^,]+), (.+)$" (slurp "CHANGELOG.md"))]
    (is (= artifacts/version version))
    (is (contains? #{"unreleased" (str artifacts/date)} day))))
