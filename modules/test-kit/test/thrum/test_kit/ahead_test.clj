(ns thrum.test-kit.ahead-test
  "A folder of sources that is compiled ahead, or cannot be."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.test-kit.ahead :as ahead]
   [thrum.test-kit.jvm :as jvm])
  (:import
   (java.io File)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)))

(set! *warn-on-reflection* true)

(defn- folder ^File []
  (.toFile (Files/createTempDirectory "ahead" (make-array FileAttribute 0))))

(defn- delete! [folder]
  (run! io/delete-file (reverse (file-seq folder))))

(defn- source!
  "Writes the source of the namespace a.b-c, whose mark is what form returns when it is compiled."
  [sources form]
  (let [file (io/file sources "a" "b_c.clj")]
    (io/make-parents file)
    (spit file (pr-str '(ns a.b-c) (list 'defmacro 'marked [] form) '(def mark (marked))))
    file))

(defn- class-path
  "Returns a classpath of sources and Clojure."
  [sources]
  (->> (str/split (System/getProperty "java.class.path") (re-pattern File/pathSeparator))
       (filter #(re-find #"/org/clojure/(clojure|spec.alpha|core.specs.alpha)/" %))
       (cons (str sources))
       (str/join File/pathSeparator)))

(deftest each-change-has-another-hash
  (let [sources (io/file (folder) "src")
        hash-now #(ahead/hash-of (class-path sources))
        file (source! sources 1)
        time (.lastModified ^File file)
        before (hash-now)]
    (is (= before (hash-now)))
    (source! sources 2)
    (.setLastModified ^File file time)
    (is (not= before (hash-now)) "other content, of the same time and length")
    (source! sources 1)
    (.setLastModified ^File file (+ time 2000))
    (is (not= before (hash-now)) "another time")
    (.setLastModified ^File file time)
    (is (= before (hash-now)))
    (spit (io/file sources "more.txt") "")
    (is (not= before (hash-now)) "another file")
    (delete! (.getParentFile sources))))

(defn- mark-with
  "Returns the mark, as a JVM with these properties has it that loads a.b-c by this classpath."
  [properties class-path]
  (let [command (into (jvm/clojure-main (jvm/this-home) properties class-path)
                      ["-e" "(require 'a.b-c) (println a.b-c/mark)"])]
    (jvm/last-line (:lines (jvm/quietly command 60000 jvm/quick)))))

(deftest ^{:time-limit-ms 120000} what-was-compiled-is-loaded
  (let [top (folder)
        cache (io/file top "cache")
        sources (io/file top "src")
        class-path (do (source! sources '(System/getProperty "mark")) (class-path sources))
        classes (ahead/folder! cache class-path)]
    (is (= classes (ahead/folder! cache class-path)))
    (is (= [(.getName (io/file classes))] (seq (.list cache))))
    (is (= "nil" (mark-with ["-Dmark=x"] (str classes File/pathSeparator class-path))))
    (delete! top)))

(deftest ^{:time-limit-ms 60000} what-does-not-compile-is-a-sentence
  (let [top (folder)
        cache (io/file top "cache")
        sources (io/file top "src")
        said (do
               (source! sources '(throw (Exception. "on purpose")))
               (with-out-str (is (nil? (ahead/folder! cache (class-path sources))))))]
    (is (re-find #"^Sources are loaded, since compiling them ahead failed: exit code 1: " said))
    (is (str/includes? said "on purpose"))
    (is (empty? (.list cache)))
    (delete! top)))

(deftest a-classpath-of-sources-has-no-classes-of-ours
  (is (= (str/join File/pathSeparator ["src" "a.jar"])
         (ahead/sources-alone
           (str/join File/pathSeparator
                     [(.getAbsolutePath (io/file "target" "ahead" "0123")) "src" "a.jar"])))))
