(ns build
  "Builds and installs the jars, and writes the wrapper's lock file: ./cljw -T:build jars | install
  | clean | lock-tools."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.tools.build.api :as b])
  (:import
   (java.io File)
   (java.nio.file Files)
   (java.security MessageDigest)
   (java.util HexFormat)))

(set! *warn-on-reflection* true)

(def version
  "The version of every jar; the only place that has it."
  "0.1.0")

(def published
  "The modules that become jars. test-kit is not among them."
  [{:module "core"
    :lib 'io.github.thrum-clj/thrum
    :description
    "Virtual threads for Clojure: plain blocking code that scales, bounded, cancelled and watched."}
   {:module "async"
    :lib 'io.github.thrum-clj/thrum-async
    :description
    (str "core.async on virtual threads: pipelines, takes and puts that can be interrupted, and "
         "executors.")}
   {:module "server"
    :lib 'io.github.thrum-clj/thrum-server
    :description
    (str "Ring servers on virtual threads: one contract over proven engines, bounded, with "
         "deadlines and drain.")}
   {:module "server-tck"
    :lib 'io.github.thrum-clj/thrum-server-tck
    :description "The contract of a Ring server as cases over raw sockets, for any server."}
   {:module "server-http1"
    :lib 'io.github.thrum-clj/thrum-server-http1
    :description "HTTP/1.1 for the engines of thrum-server that bring none of their own."}
   {:module "server-jetty"
    :lib 'io.github.thrum-clj/thrum-server-jetty
    :description "Jetty 12.1 as an engine of thrum-server."}
   {:module "server-tomcat"
    :lib 'io.github.thrum-clj/thrum-server-tomcat
    :description "Tomcat 11's connector as an engine of thrum-server."}
   {:module "server-http-kit"
    :lib 'io.github.thrum-clj/thrum-server-http-kit
    :description
    "http-kit as an engine of thrum-server; http-kit itself is to be added by the user."}
   {:module "server-helidon"
    :lib 'io.github.thrum-clj/thrum-server-helidon
    :description "Helidon 4 SE as an engine of thrum-server."}
   {:module "java"
    :lib 'io.github.thrum-clj/thrum-java
    :description
    (str "Thrum for Java: a bounded parallel map, scopes and deadlines on virtual threads, "
         "without a Clojure type in sight.")}
   {:module "lab"
    :lib 'io.github.thrum-clj/thrum-lab
    :description "Measures, on your machine and your code, what virtual threads buy."}])

(def ^:private home "https://github.com/thrum-clj/thrum")

(defn- pom-data
  [description]
  [[:description description]
   [:url home]
   [:licenses [:license [:name "MIT"] [:url "https://opensource.org/license/mit"]]]])

;; Jars

(defn- as-published
  "Returns a coordinate as a user of the jar has it: a sibling is a version, not a folder."
  [lib coord]
  (if (some #(= lib (:lib %)) published)
    {:mvn/version version, :deps/manifest :mvn}
    coord))

(defn- pom-basis
  "Returns the basis of a module, for its POM. The repositories are left out: all is on Maven
  Central."
  [module]
  (let [basis (b/with-project-root (str "modules/" module)
                                   (b/create-basis {:project "deps.edn", :user nil}))]
    (-> basis
        (update :libs #(into {} (map (fn [[lib coord]] [lib (as-published lib coord)])) %))
        (assoc :mvn/repos {}))))

(defn- paths
  [module]
  (filterv #(.isDirectory (io/file %))
           [(str "modules/" module "/src") (str "modules/" module "/resources")]))

(defn- jar-file
  [target lib]
  (str target "/" (name lib) "-" version ".jar"))

(defn- java?
  [folder]
  (some #(str/ends-with? (str %) ".java") (file-seq (io/file folder))))

(defn- compile-java
  "Compiles a module's Java for the oldest JDK that Thrum runs on. Needs a JDK; a JRE has no
  compiler."
  [module class-dir]
  (b/javac {:src-dirs (paths module)
            :class-dir class-dir
            :javac-opts ["--release" "21" "-Xlint:all,-path"]
            :basis (b/with-project-root (str "modules/" module)
                                        (b/create-basis {:project "deps.edn", :user nil}))}))

(defn- build-jar
  [target {:keys [module lib description]}]
  (let [class-dir (str target "/classes/" module)]
    (b/delete {:path class-dir})
    (b/copy-dir {:src-dirs (paths module), :target-dir class-dir, :ignores [#".*\.java"]})
    (when (some java? (paths module))
      (compile-java module class-dir))
    (b/copy-file {:src "LICENSE", :target (str class-dir "/META-INF/LICENSE")})
    (b/write-pom {:class-dir class-dir, :lib lib, :version version, :basis (pom-basis module)
                  :scm {:url home, :tag (str "v" version)}, :pom-data (pom-data description)})
    (b/jar {:class-dir class-dir, :jar-file (jar-file target lib)})
    (println (jar-file target lib))))

(defn jars
  "Writes the jars into :target (target). Slow: a second a jar."
  [{:keys [target] :or {target "target"} :as opts}]
  (run! #(build-jar (str target) %) published)
  opts)

(defn install
  "Builds the jars and puts them into the local Maven repository, or into the folder that
  :repository names."
  [{:keys [target repository], :or {target "target"}, :as opts}]
  (jars opts)
  (doseq [{:keys [module lib]} published]
    (b/install
      {:class-dir (str target "/classes/" module)
       :lib lib
       :version version
       :jar-file (jar-file target lib)
       :basis (cond-> (pom-basis module)
                repository (assoc :mvn/local-repo (.getAbsolutePath (io/file (str repository)))))}))
  opts)

(defn clean
  "Deletes what was built."
  [opts]
  (b/delete {:path "target"})
  opts)

;; The wrapper's lock file

(def ^:private lock-file "script/cljw/tools-deps.lock")

(def ^:private tools
  "What ./cljw computes a classpath with: tools.deps without Amazon's client, and a logger that is
  silent."
  '{:paths []
    :deps {org.clojure/clojure {:mvn/version "1.12.6"}
           org.clojure/tools.deps {:mvn/version "0.31.1646"
                                   :exclusions [org.clojure/tools.deps.maven-s3-transporter]}
           org.slf4j/slf4j-nop {:mvn/version "1.7.36"}}})

(defn- sha256
  [^File file]
  (.formatHex (HexFormat/of)
              (.digest (MessageDigest/getInstance "SHA-256") (Files/readAllBytes (.toPath file)))))

(defn- lock-line
  [jar]
  (let [repository (str (System/getProperty "user.home") "/.m2/repository/")]
    (str (sha256 (io/file jar)) "  " (str/replace jar repository ""))))

(defn tools-jars
  "Returns the paths of the jars that ./cljw computes a classpath with, sorted."
  []
  (sort (mapcat :paths (vals (:libs (b/create-basis {:project tools, :user nil}))))))

(defn lock-tools
  "Rewrites script/cljw/tools-deps.lock from the versions above."
  [opts]
  (spit lock-file (str/join (map #(str (lock-line %) "\n") (tools-jars))))
  (println lock-file)
  opts)
