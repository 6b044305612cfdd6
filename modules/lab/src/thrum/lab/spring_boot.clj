(ns thrum.lab.spring-boot
  "The Spring Boot application of examples/spring-boot: where it is, how it is built, and how it is started, in a JVM of its own."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.lab.child :as child]
   [thrum.lab.machine :as machine])
  (:import
   (java.io File)
   (java.nio.file CopyOption Files StandardCopyOption)))

(set! *warn-on-reflection* true)

(def ^:private jar-name "thrum-spring-boot-example.jar")
(def ^:private build-ms "How long a build may take that downloads all of Spring Boot." 600000)
(def ^:private start-ms "How long the application may take to start." 90000)
(def ^:private backlog "As Thrum's default: with less, a burst of connections waits for retransmission." 4096)

(def ^:private jvm-opts "The flags of every application's JVM, so that all have the same." ["-Xmx512m"])

(def ^:private repository-variable "Names a Maven repository other than the user's own." "THRUM_MAVEN_REPOSITORY")

;; Where it is

(defn- sources
  "Returns the files that the application is made of."
  [folder]
  (filter File/.isFile (cons (io/file folder "pom.xml") (file-seq (io/file folder "src" "main")))))

(defn- newer? [^File jar folder]
  (every? #(<= (File/.lastModified %) (.lastModified jar)) (sources folder)))

(defn- work-folder
  "Returns where the lab builds, outside of the application's own folder."
  [folder]
  (io/file folder ".." ".." "target" "lab-spring-boot"))

(defn fresh-jar
  "Returns the path of a built application that is not older than its sources, the user's build or the lab's; nil if there is none."
  [folder]
  (some (fn [built]
          (let [jar (io/file built "target" jar-name)]
            (when (and (.isFile jar) (newer? jar folder))
              (.getCanonicalPath jar))))
        [(io/file folder) (work-folder folder)]))

(defn- find-folder
  "Returns the application's folder in the checkout that `from` is in; nil where it is in none."
  [from]
  (->> (iterate File/.getParentFile (.getCanonicalFile (io/file from)))
       (take-while some?)
       (map #(io/file % "examples" "spring-boot"))
       (filter #(.isFile (io/file % "pom.xml")))
       first))

(defn facts
  "Returns {:folder :jar :maven?}: the application's folder, nil outside of a checkout; its jar, nil if it is yet to be built; and
  whether there is a Maven to build it with. Runs nothing."
  []
  (let [folder (find-folder (System/getProperty "user.dir"))]
    {:folder (some-> folder str)
     :jar (some-> folder fresh-jar)
     :maven? (machine/on-path? "mvn")}))

;; How it is built

(defn- copy! [folder ^File file ^File target]
  (let [to (io/file target (str (.relativize (.toPath (io/file folder)) (.toPath file))))]
    (io/make-parents to)
    (Files/copy (.toPath file) (.toPath to) ^CopyOption/1 (into-array CopyOption [StandardCopyOption/REPLACE_EXISTING]))))

(defn- copy-sources!
  "Makes target hold the application's sources and nothing else."
  [folder ^File target]
  (run! File/.delete (reverse (file-seq target)))
  (run! #(copy! folder % target) (sources folder)))

(defn- command [^File folder]
  (cond-> ["mvn" "-B" "-q" "-DskipTests" "-f" (str (io/file folder "pom.xml"))]
    (System/getenv repository-variable) (conj (str "-Dmaven.repo.local=" (System/getenv repository-variable)))
    :always (conj "package")))

(defn complaint
  "Returns, in words, why Maven failed, of what it printed: its first error."
  [output]
  (let [error (some->> (str/split-lines output) (some #(second (re-find #"^\[ERROR\] (.*)" %))) str/trim)]
    (if (and error (str/includes? error "io.github.thrum-clj:thrum-"))
      "Maven finds none of Thrum's jars: ./cljw -T:build install puts them into the local repository"
      (str "Maven failed: " (or error (not-empty (str/trim output)) "it printed nothing")))))

(defn build!
  "Builds the application of folder with the JDK of this JVM, in a folder of the lab's, and returns {:jar path}, or {:problem words}.
  The first build downloads Spring Boot. Throws ex-info of :type :thrum/lab-child after ten minutes; an interrupt ends Maven."
  [folder]
  (let [work (work-folder folder)]
    (copy-sources! folder work)
    (let [{:keys [exit output]} (child/run-to-end! (command work) {"JAVA_HOME" (System/getProperty "java.home")} build-ms)]
      (if (zero? exit)
        {:jar (fresh-jar folder)}
        {:problem (complaint output)}))))

;; How it is started

(defn- arguments [{:keys [threads profile]}]
  (cond-> ["--server.port=0"
           "--server.address=127.0.0.1"
           "--spring.main.banner-mode=off"
           (str "--server.tomcat.threads.max=" threads)
           (str "--server.tomcat.accept-count=" backlog)]
    profile (conj (str "--spring.profiles.active=" profile))))

(defn start!
  "Starts the application in jar, with Tomcat's :threads and under a :profile, nil for none, on a free port, and returns it, a
  thrum.lab.child with its :url. Throws ex-info of :type :thrum/lab-child if it does not start."
  [jar configuration]
  (let [java (str (io/file (System/getProperty "java.home") "bin" "java"))
        app (child/start! (child/leashed (-> [java] (into jvm-opts) (conj "-jar" jar) (into (arguments configuration)))))]
    (try
      (let [[_ port] (child/await-match app #"Tomcat started on port (\d+)" start-ms)]
        (assoc app :url (str "http://127.0.0.1:" port)))
      (catch Throwable t
        (child/stop! app)
        (throw t)))))

(defn hello
  "Returns the URL of a request that waits for ms."
  [{:keys [url]} ms]
  (str url "/hello?ms=" ms))
