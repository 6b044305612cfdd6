(ns thrum.lab.spring-boot-test
  "Where the application is, whether it must be built, and what is said of a build that failed."
  (:require
   [clojure.java.io :as io]
   [clojure.test :refer [are deftest is]]
   [thrum.lab.spring-boot :as spring-boot])
  (:import
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)))

(set! *warn-on-reflection* true)

(defn- file!
  "Writes a file that was changed so many seconds after the epoch."
  [folder path seconds]
  (let [file (io/file folder path)]
    (io/make-parents file)
    (spit file path)
    (.setLastModified file (* 1000 (long seconds)))))

(deftest a-jar-older-than-a-source-is-built-anew
  (let [root (str (Files/createTempDirectory "thrum-lab" (make-array FileAttribute 0))), folder (io/file root "examples" "spring-boot")
        jar "target/thrum-spring-boot-example.jar"]
    (file! folder "pom.xml" 100)
    (file! folder "src/main/java/App.java" 200)
    (is (nil? (spring-boot/fresh-jar folder)))
    (file! folder jar 199)
    (is (nil? (spring-boot/fresh-jar folder)))
    (file! (io/file root "target" "lab-spring-boot") jar 200)
    (is (= (.getCanonicalPath (io/file root "target" "lab-spring-boot" jar)) (spring-boot/fresh-jar folder)) "the lab's")
    (file! folder jar 201)
    (is (= (.getCanonicalPath (io/file folder jar)) (spring-boot/fresh-jar folder)) "the user's")
    (file! folder "pom.xml" 202)
    (is (nil? (spring-boot/fresh-jar folder)))))

(deftest this-checkout-has-the-application
  (is (.isFile (io/file ^String (:folder (spring-boot/facts)) "pom.xml"))))

(deftest a-failed-build-is-a-sentence
  (are [words output] (= words (spring-boot/complaint output))
    "Maven failed: No compiler is provided in this environment."
    "[INFO] x\n[ERROR] No compiler is provided in this environment.\n[ERROR] -> [Help 1]\n"
    "Maven finds none of Thrum's jars: ./cljw -T:build install puts them into the local repository"
    "[ERROR] Failed to execute goal: Could not find artifact io.github.thrum-clj:thrum-java:jar:0.1.0 in central\n"
    "Maven failed: mvn: bad interpreter" "mvn: bad interpreter\n"
    "Maven failed: it printed nothing" ""))
