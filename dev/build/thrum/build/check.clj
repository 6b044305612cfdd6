(ns thrum.build.check
  "Looks at a release as its users will: sums, signatures, POMs, and a project that names one
  artifact alone."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.pprint :as pprint]
   [clojure.string :as str]
   [clojure.tools.build.api :as b]
   [clojure.tools.deps.util.maven :as mvn]
   [thrum.build.artifacts :as artifacts])
  (:import
   (java.io File)
   (java.nio.file Files)
   (java.security MessageDigest)
   (java.util HexFormat)
   (org.apache.maven.model Model)
   (org.apache.maven.model.building DefaultModelBuilderFactory DefaultModelBuildingRequest ModelBuildingException ModelBuildingRequest ModelProblem)))

(set! *warn-on-reflection* true)

(defn- files [folder]
  (filter #(.isFile ^File %) (file-seq (io/file folder))))

(defn- ends? [endings ^File file]
  (some #(str/ends-with? (.getName file) %) endings))

;; Sums and signatures

(def ^:private sums {".md5" "MD5", ".sha1" "SHA-1", ".sha256" "SHA-256", ".sha512" "SHA-512"})

(defn- released
  "Returns the files of a release that carry signature and sums."
  [folder]
  (filter #(ends? [".jar" ".pom"] %) (files folder)))

(defn- sum [algorithm ^File file]
  (.formatHex (HexFormat/of)
              (.digest (MessageDigest/getInstance algorithm) (Files/readAllBytes (.toPath file)))))

(defn- sum-faults [file]
  (for [[ending algorithm] sums
        :let [beside (io/file (str file ending))]
        :when (not (and (.exists beside) (= (sum algorithm file) (str/trim (slurp beside)))))]
    (str file " has no true " ending)))

(defn- signature-faults [file]
  (when-not (zero? (:exit (b/process {:command-args ["gpg" "--batch" "--verify" (str file ".asc")
                                                     (str file)]
                                      :err :ignore})))
    [(str file " has no true signature")]))

(def ^:private endings [".jar" ".pom" "-sources.jar" "-javadoc.jar"])

(defn- artifact-folder [folder {:keys [lib]}]
  (io/file folder (str/replace (namespace lib) "." "/") (name lib) artifacts/version))

(defn- missing-files [folder {:keys [lib] :as artifact}]
  (for [ending endings
        :let [file (io/file (artifact-folder folder artifact)
                            (str (name lib) "-" artifacts/version ending))]
        :when (not (.exists file))]
    (str file " is missing")))

;; POMs

(defn- model
  "Returns the effective model of a POM; throws ModelBuildingException where Maven refuses it."
  ^Model [^File pom]
  (.getEffectiveModel
    (.build (.newInstance (DefaultModelBuilderFactory.))
            (doto (DefaultModelBuildingRequest.)
              (.setPomFile pom)
              (.setSystemProperties (System/getProperties))
              (.setValidationLevel ModelBuildingRequest/VALIDATION_LEVEL_STRICT)))))

(def ^:private asked-for
  "What repositories ask a POM for."
  {"name" #(.getName ^Model %)
   "description" #(.getDescription ^Model %)
   "url" #(.getUrl ^Model %)
   "licenses" #(seq (.getLicenses ^Model %))
   "developers" #(seq (.getDevelopers ^Model %))
   "scm url" #(some-> (.getScm ^Model %) .getUrl)
   "scm connection" #(some-> (.getScm ^Model %) .getConnection)
   "scm developerConnection" #(some-> (.getScm ^Model %) .getDeveloperConnection)
   "scm tag" #(some-> (.getScm ^Model %) .getTag)})

(defn- pom-faults [pom]
  (try
    (let [model (model pom)]
      (for [[element value] asked-for :when (empty? (value model))]
        (str pom " names no " element)))
    (catch ModelBuildingException e
      (map #(str pom ": " (.getMessage ^ModelProblem %)) (.getProblems e)))))

;; A project that names one artifact

(defn- file-url [path]
  (str (.toURI (.getAbsoluteFile (io/file path)))))

(defn- alone
  "Returns the basis of an empty project that names the artifact alone. Its jars come out of the
  release, and the others out of this machine's Maven repository where it has them."
  [folder {:keys [lib]}]
  (b/create-basis
    {:root nil
     :user nil
     :project {:deps {lib {:mvn/version artifacts/version}}
               :mvn/local-repo (str (.getAbsoluteFile (io/file (str folder "-repository"))))
               :mvn/repos (assoc (select-keys mvn/standard-repos ["central"])
                                 "release" {:url (file-url folder)}
                                 "machine" {:url (file-url @mvn/cached-local-repo)})}}))

(def ^:private start-limit-ms 120000)

(defn- start
  "Runs code in a JVM with this class path; returns nil, or what it printed where it failed."
  [class-path code]
  (let [java (str (System/getProperty "java.home") "/bin/java")
        log (File/createTempFile "start" ".log")
        process (.start (doto (ProcessBuilder.
                                ^"[Ljava.lang.String;"
                                (into-array String [java "-cp" class-path "clojure.main" "-e"
                                                    (str "(do " code " (System/exit 0))")]))
                          (.redirectErrorStream true)
                          (.redirectOutput log)))]
    (try
      (when-not (and (.waitFor process start-limit-ms java.util.concurrent.TimeUnit/MILLISECONDS)
                     (zero? (.exitValue process)))
        (slurp log))
      (finally
        (.destroyForcibly process)
        (.delete log)))))

(defn- start-faults [{:keys [lib starts]} basis]
  (when-let [printed (start (str/join ":" (mapcat :paths (vals (:libs basis)))) starts)]
    [(str lib " alone does not start: " printed)]))

(defn- dependencies
  "Returns what a project gets that names the artifact alone: a sorted vector of [lib version]."
  [{:keys [lib]} basis]
  (vec (sort (for [[other {:keys [mvn/version]}] (:libs basis) :when (not= lib other)]
               [other version]))))

(def ^:private dependencies-path "doc/reference/dependencies.edn")

(def ^:private dependencies-head
  (str ";; By artifact: all that a project gets which names it alone.\n"
       ";; Written by -T:build check-release :write true.\n"))

(defn- write-dependencies [found]
  (binding [*print-namespace-maps* false]
    (spit dependencies-path (str dependencies-head (with-out-str (pprint/pprint found))))))

(defn- dependency-faults [found]
  (let [written (edn/read-string (slurp dependencies-path))]
    (for [[lib found] found :when (not= found (written lib))]
      (str lib " brings " found ", and " dependencies-path " has " (written lib)
           "; write it anew with check-release :write true"))))

(defn- alone-faults [folder write?]
  (let [bases (into {} (map (juxt identity #(alone folder %))) artifacts/published)
        found (into (sorted-map) (map (fn [[artifact basis]]
                                        [(:lib artifact) (dependencies artifact basis)]))
                    bases)]
    (when write? (write-dependencies found))
    (concat (dependency-faults found)
            (mapcat (fn [[artifact basis]] (start-faults artifact basis)) bases))))

(defn faults
  "Returns what is wrong with the release in folder, as sentences. Writes the list of dependencies
  anew where write? says so."
  [folder write?]
  (b/delete {:path (str folder "-repository")})
  (let [missing (mapcat #(missing-files folder %) artifacts/published)]
    (if (seq missing)
      missing
      (concat (mapcat sum-faults (released folder))
              (mapcat signature-faults (released folder))
              (mapcat pom-faults (filter #(ends? [".pom"] %) (files folder)))
              (alone-faults folder write?)))))
