(ns thrum.test-kit.release
  "Other releases of a library, for child JVMs. Needs tools.deps on the classpath, and loads it when
  it is asked."
  (:require
   [clojure.java.basis :as basis]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.test-kit.ahead :as ahead])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(defn- jar
  "Returns the path of the library's jar, downloaded where it is missing; what it depends on is left
  out."
  [lib version exclusions]
  (let [resolve-deps (requiring-resolve 'clojure.tools.deps/resolve-deps)
        coordinates {:mvn/version version, :exclusions (vec exclusions)}
        project (assoc (select-keys (basis/initial-basis) [:mvn/repos :mvn/local-repo])
                       :deps
                       {lib coordinates})]
    (first (get-in (resolve-deps project nil) [lib :paths]))))

(defn- release-of? [lib entry]
  (re-matches (re-pattern (str (name lib) "-\\d.*\\.jar")) (.getName (io/file entry))))

(defn replaced
  "Returns class-path with new-jar in place of the jar of the library; throws ex-info where it has
  none, or several."
  [class-path lib new-jar]
  (let [entries (str/split class-path (re-pattern File/pathSeparator))
        found (filter #(release-of? lib %) entries)]
    (when (not= 1 (count found))
      (throw (ex-info (str "One jar of " lib " is needed on the classpath")
                      {:lib lib, :found (vec found)})))
    (str/join File/pathSeparator (map #(if (release-of? lib %) new-jar %) entries))))

(def ^:private added-ms "How long it may take to resolve, and to download, one small jar." 40000)

(defn- jar-in-time [lib version exclusions]
  (let [found (future (jar lib version exclusions))]
    (try
      (deref found added-ms nil)
      (finally (future-cancel found)))))

(defn class-path-with
  "Returns the classpath of this JVM and behind it the library that an alias of the project's
  deps.edn adds; nil where no repository that answers within 40 s has it. exclusions as for
  class-path."
  [alias lib exclusions]
  (let [version (get-in (basis/initial-basis) [:aliases alias :extra-deps lib :mvn/version])]
    (when-let [jar (try (jar-in-time lib version exclusions) (catch Exception _))]
      (str/join File/pathSeparator [(System/getProperty "java.class.path") jar]))))

(defn class-path
  "Returns the classpath of this JVM with this release of the library; where it is another one,
  without classes that were compiled ahead with its own, but for core's. exclusions: libraries that
  it need not bring, because this classpath has them."
  [lib version exclusions]
  (let [own (System/getProperty "java.class.path")
        path (replaced own lib (jar lib version exclusions))]
    (if (= own path) path (ahead/core-alone path))))
