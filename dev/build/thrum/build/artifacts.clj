(ns thrum.build.artifacts
  "What is published, as artifacts.edn says, and the POM of each artifact."
  (:require
   [clojure.edn :as edn]
   [clojure.tools.build.api :as b])
  (:import
   (java.time LocalDate)))

(set! *warn-on-reflection* true)

(def ^:private table (edn/read-string (slurp "artifacts.edn")))

(def version
  "The version of every artifact."
  (:version table))

(def date
  "The day of the release."
  (LocalDate/parse (:date table)))

(def published
  "The artifacts: {:module folder, :lib symbol, :description sentence, :starts code}."
  (mapv #(assoc % :lib (symbol (:group table) (:name %))) (:artifacts table)))

(def ^:private home "https://github.com/thrum-clj/thrum")

(defn- pom-data [description]
  [[:description description]
   [:url home]
   [:licenses [:license [:name "MIT"] [:url "https://opensource.org/license/mit"]]]
   [:developers [:developer [:name "The Thrum contributors"] [:organizationUrl home]]]])

(def ^:private scm
  {:url home
   :connection (str "scm:git:" home ".git")
   :developerConnection (str "scm:git:" home ".git")
   :tag (str "v" version)})

(defn- as-published
  "Returns a coordinate as a user of the jar has it: a sibling is a version, not a folder."
  [lib coord]
  (if (some #(= lib (:lib %)) published)
    {:mvn/version version, :deps/manifest :mvn}
    coord))

(defn basis
  "Returns the basis of a module's own deps.edn."
  [module]
  (b/with-project-root (str "modules/" module)
                       (b/create-basis {:project "deps.edn", :user nil})))

(defn- pom-basis
  "Returns the basis of a module, for its POM. The repositories are left out: all is on Maven
  Central."
  [module]
  (-> (basis module)
      (update :libs #(into {} (map (fn [[lib coord]] [lib (as-published lib coord)])) %))
      (assoc :mvn/repos {})))

(defn write-pom
  "Writes the artifact's POM into class-dir, under META-INF/maven, and returns its path. The
  properties beside it carry no date, so that two builds give the same bytes."
  [class-dir {:keys [module lib description]}]
  (b/write-pom {:class-dir class-dir, :lib lib, :version version, :basis (pom-basis module)
                :scm scm, :pom-data (pom-data description)})
  (let [folder (str class-dir "/META-INF/maven/" (namespace lib) "/" (name lib))]
    (spit (str folder "/pom.properties")
          (str "version=" version "\ngroupId=" (namespace lib) "\nartifactId=" (name lib) "\n"))
    (str folder "/pom.xml")))
