(ns thrum.repo.jars-test
  "The jars hold what their users need, and their POMs name it."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [clojure.xml :as xml])
  (:import
   (java.io DataInputStream File)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)
   (java.util.jar JarFile)))

(set! *warn-on-reflection* true)

(def ^:private ^:dynamic ^File *target* nil)

(defn- build
  "Returns the var of build.clj with this name."
  [var-name]
  (when-not (find-ns 'build)
    (load-file "build.clj"))
  (ns-resolve 'build var-name))

(use-fixtures :once
  (fn [f]
    (binding [*target* (.toFile (Files/createTempDirectory "jars" (make-array FileAttribute 0)))]
      (with-out-str ((build 'jars) {:target (str *target*)}))
      (f)
      (run! io/delete-file (reverse (file-seq *target*))))))

(defn- jar
  ^JarFile [artifact]
  (JarFile. (io/file *target* (str artifact "-" @(build 'version) ".jar"))))

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
  (is (contains? (dependencies "thrum-lab") ["io.github.thrum-clj" "thrum" @(build 'version)]))
  (is (contains? (dependencies "thrum-lab") ["org.webjars.npm" "d3" "7.9.0"])))

(deftest the-test-kit-is-in-no-pom
  (doseq [artifact ["thrum" "thrum-lab" "thrum-java"]]
    (is (not-any? #(str/includes? (second %) "test-kit") (dependencies artifact)))))

(deftest poms-say-who-and-under-which-licence
  (doseq [artifact ["thrum" "thrum-lab" "thrum-java"] :let [pom (pom artifact)]]
    (is (= ["io.github.thrum-clj" artifact @(build 'version)] (coordinate pom)))
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
  (is (contains? (dependencies "thrum-java") ["io.github.thrum-clj" "thrum" @(build 'version)]))
  (is (= #{} (into #{} (filter #(re-find #"\.(?:java|clj)$|[Ss]amples" %)) (entries "thrum-java"))))
  (with-open [jar (jar "thrum-java")
              in (DataInputStream.
                   (.getInputStream jar (.getEntry jar "io/github/thrumclj/Thrum.class")))]
    (is (= [0xcafebabe 0 65]
           [(bit-and 0xffffffff (.readInt in)) (.readUnsignedShort in) (.readUnsignedShort in)]))))

(deftest core-exports-its-clj-kondo-configuration
  (is (contains? (entries "thrum") "clj-kondo.exports/io.github.thrum-clj/thrum/config.edn")))

(deftest the-lock-file-names-the-tools-jars
  (is (= (map #(last (str/split % #"/")) ((build 'tools-jars)))
         (map #(last (str/split % #"/")) (str/split-lines (slurp "script/cljw/tools-deps.lock"))))))
