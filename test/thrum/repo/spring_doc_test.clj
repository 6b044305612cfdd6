(ns thrum.repo.spring-doc-test
  "What doc/guides/java.md shows is out of code that is tested, and the Spring Boot application uses
  the jars of this version."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [clojure.xml :as xml]
   [thrum.build.artifacts :as artifacts]
   [thrum.repo.files :as files]))

(set! *warn-on-reflection* true)

(defn- unindented
  "Returns the lines of text without what stands before and after them, and without empty ones."
  [text]
  (str/join "\n" (remove str/blank? (map str/trim (str/split-lines text)))))

(defn- blocks
  "Returns the blocks of a language in Markdown."
  [language markdown]
  (map second (re-seq (re-pattern (str "(?s)```" language "\n(.*?)```")) markdown)))

(defn unknown-blocks
  "Returns the Java blocks of markdown that are in none of the sources."
  [markdown sources]
  (remove (fn [block] (some #(str/includes? (unindented %) (unindented block)) sources))
          (blocks "java" markdown)))

(defn- tested-java
  []
  (map slurp
       (filter #(re-matches #"(?:examples/spring-boot/src/main|modules/java/samples)/.*\.java" %)
               (files/committed))))

(deftest what-the-page-shows-is-tested-code
  (is (<= 3 (count (blocks "java" (slurp "doc/guides/java.md")))))
  (is (= [] (unknown-blocks (slurp "doc/guides/java.md") (tested-java))))
  (is (= ["  b();\n"]
         (unknown-blocks "```java\n  b();\n```\n```java\na();\n```" ["x {\n    a();\n}"]))))

(deftest the-property-of-the-page-is-that-of-the-profile
  (is
    (= (map unindented (blocks "properties" (slurp "doc/guides/java.md")))
       [(unindented (slurp (str "examples/spring-boot/src/main/resources/"
                                "application-virtual-threads-property.properties")))])))

(defn- coordinates
  "Returns [artifact version] of the dependencies on Thrum in XML."
  [root]
  (for [element (tree-seq :content :content root)
        :when (= :dependency (:tag element))
        :let [{:keys [groupId artifactId version]}
              (into {} (map (juxt :tag (comp first :content))) (:content element))]
        :when (= "io.github.thrum-clj" groupId)]
    [artifactId version]))

(deftest the-application-uses-this-version
  (is (= [["thrum-java" artifacts/version]]
         (coordinates (xml/parse (io/file "examples/spring-boot/pom.xml")))))
  (is (= [[["thrum-java" artifacts/version]]]
         (map #(coordinates (xml/parse (io/input-stream (.getBytes ^String %))))
              (blocks "xml" (slurp "doc/guides/java.md"))))))
