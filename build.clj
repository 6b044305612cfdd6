(ns build
  "Builds, installs, releases: ./cljw -T:build jars | install | deploy | check-release | clean |
  lock-tools. What is published stands in artifacts.edn."
  (:require
   [clojure.java.io :as io]
   [clojure.tools.build.api :as b]
   [thrum.build.artifacts :as artifacts]
   [thrum.build.assemble :as assemble]
   [thrum.build.check :as check]
   [thrum.build.lock :as lock]
   [thrum.build.release :as release]))

(set! *warn-on-reflection* true)

(defn jars
  "Writes the jars into :target (target). Slow: a second a jar."
  [{:keys [target] :or {target "target"} :as opts}]
  (run! #(println (assemble/jar (str target) %)) artifacts/published)
  opts)

(defn install
  "Builds the jars and puts them into the local Maven repository, or into the folder that
  :repository names."
  [{:keys [target repository] :or {target "target"} :as opts}]
  (doseq [{:keys [module lib] :as artifact} artifacts/published
          :let [jar (assemble/jar (str target) artifact)]]
    (println jar)
    (b/install {:class-dir (str target "/classes/" module)
                :lib lib
                :version artifacts/version
                :jar-file jar
                :basis (if repository
                         {:mvn/local-repo (.getAbsolutePath (io/file (str repository)))}
                         {})}))
  (println (count artifacts/published) "artifacts," (str artifacts/version ",") "installed into"
           (if repository (str repository) "~/.m2/repository"))
  opts)

(defn- folder-url [folder]
  (str (.toURI (.getAbsoluteFile (io/file (str folder))))))

(defn- credentials []
  {:user (System/getenv "DEPLOY_USER"), :password (System/getenv "DEPLOY_PASSWORD")})

(defn deploy
  "Builds, signs and hands over a release of all artifacts: to the folder that :dry-run names, or to
  the repository at the URL :to, as DEPLOY_USER with DEPLOY_PASSWORD. gpg signs with its default
  key, or with :key."
  [{:keys [target dry-run to key] :or {target "target/release-build"} :as opts}]
  (when (= (nil? dry-run) (nil? to))
    (throw (ex-info "deploy needs one of :dry-run '\"FOLDER\"' and :to '\"URL\"'" {:opts opts})))
  (let [url (if dry-run (folder-url dry-run) (str to))
        files (release/files (str target) key)]
    (release/deploy url (if dry-run {} (credentials)) files)
    (println (count files) "files of" (count artifacts/published) "artifacts," artifacts/version
             "are at" url))
  opts)

(defn check-release
  "Checks the release that `deploy :dry-run` has written into :folder; prints what is wrong and
  throws if anything is. :write true writes doc/reference/dependencies.edn anew."
  [{:keys [folder write] :as opts}]
  (let [faults (check/faults (str folder) (boolean write))]
    (run! println faults)
    (when (seq faults)
      (throw (ex-info (str (count faults) " faults in the release in " folder) {})))
    (println "The release in" (str folder) "is whole:" (count artifacts/published) "artifacts"))
  opts)

(defn clean
  "Deletes what was built."
  [opts]
  (b/delete {:path "target"})
  opts)

(defn lock-tools
  "Rewrites the lock file of ./cljw."
  [opts]
  (lock/write)
  (println lock/path)
  opts)
