(ns thrum.test-kit.ahead-test
  "A folder of sources that is compiled ahead, or cannot be."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing]]
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

(defn- older!
  "Makes the files in folder older than their classes, also where these are compiled within the same
  second: the times in a jar are in seconds."
  [folder]
  (doseq [^File file (.listFiles (io/file folder))]
    (.setLastModified file (- (System/currentTimeMillis) 10000))))

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

(defn- load-both
  "Returns the lines of a JVM that loads the tool and our source and prints where each class comes
  from, and the mark as it has it."
  [classes class-path]
  (let [class-path (ahead/in-front classes :all class-path)
        options ["-Dmark=x" "-Xlog:class+load"]
        command (into (jvm/clojure-main (jvm/this-home) options class-path)
                      ["-e" "(require 'a.tool 'a.b-c) (println \"mark:\" a.b-c/mark)"])]
    (:lines (jvm/quietly command 280000 (ahead/environment classes jvm/quick)))))

(defn- source-of [class-name lines]
  (some #(second (re-find (re-pattern (str " " class-name " source: (.*)")) %)) lines))

(defn- compiled? [classes folder file]
  (.isFile (io/file classes folder "a" (str file "__init.class"))))

(deftest what-was-compiled-is-loaded
  (let [top (folder)
        cache (io/file top "cache")
        sources (io/file top "src")
        class-path (do
                     (source! sources '(System/getProperty "mark"))
                     (spit (io/file sources "a" "tool.clj") "(ns a.tool)")
                     (older! (io/file sources "a"))
                     (class-path sources))
        classes (ahead/folder! cache '[a.tool] class-path)
        lines (load-both classes class-path)]
    (is (= classes (ahead/folder! cache '[a.tool] class-path)))
    (is (= [(.getName (io/file classes))] (seq (.list cache))))
    (is (some #{"mark: nil"} lines) "as the JVM had it that compiled")
    (is (= "shared objects file (top)" (source-of "a.tool__init" lines)) "in the archive")
    (is (str/includes? (source-of "a.b_c__init" lines) "/ours"))
    (testing "a tool and our source are compiled apart"
      (is (= [true false] (map #(compiled? classes "tools" %) ["tool" "b_c"])))
      (is (= [false true] (map #(compiled? classes "ours" %) ["tool" "b_c"]))))
    (delete! top)))

(deftest what-does-not-compile-is-a-sentence
  (let [top (folder)
        cache (io/file top "cache")
        sources (io/file top "src")
        said (do
               (source! sources '(throw (Exception. "on purpose")))
               (with-out-str (is (nil? (ahead/folder! cache [] (class-path sources))))))]
    (is (re-find #"^Sources are loaded, since compiling them ahead failed: exit code 1: " said))
    (is (str/includes? said "on purpose"))
    (is (empty? (.list cache)))
    (delete! top)))

(deftest a-classpath-of-sources-has-no-classes-of-ours
  (let [classes (io/file (.getAbsoluteFile (io/file "target")) "ahead" "0123")
        sources (str/join File/pathSeparator ["src" "a.jar"])
        ahead #(ahead/in-front classes % sources)]
    (is (= (ahead :tools) (ahead/sources-alone (ahead :core)) (ahead/sources-alone (ahead :all))))
    (is (= (ahead :core) (ahead/core-alone (ahead :all))))
    (is (= sources (ahead/sources-alone sources) (ahead/core-alone sources)))))
