(ns thrum.lab.experiments.spring-tomcat.application
  "The Spring Boot application of examples/spring-boot: where it is, how it is compiled, without
  Maven, and how it is started, in a JVM of its own."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.lab.checkout :as checkout]
   [thrum.lab.child :as child]
   [thrum.lab.temporary :as temporary])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(def ^:private jars
  "The alias of the checkout with what the application is made of."
  "-A:spring-boot")

(def ^:private main-class "io.github.thrumclj.example.App")
(def ^:private sources
  "The folders of a checkout whose Java the application is made of."
  ["examples/spring-boot/src/main/java" "modules/java/src"])
(def ^:private resources "examples/spring-boot/src/main/resources")

(def ^:private download-ms
  "How long it may take to resolve the class path, and to download what is on it."
  300000)

(def ^:private compile-ms "How long it may take to compile." 180000)
(def ^:private start-ms "How long the application may take to start." 180000)

(def ^:private backlog
  "As Thrum's default: with less, a burst of connections waits for retransmission."
  4096)

(def ^:private jvm-opts
  "The flags of every application's JVM, so that all have the same."
  ["-Xmx512m"])

(defn- program
  "Returns the path of a program of this Java."
  [name]
  (str (io/file (System/getProperty "java.home") "bin" name)))

(defn facts
  "Returns {:folder :compiler?}: the checkout that has the application, nil outside of one, and
  whether this Java can compile it. Runs nothing."
  []
  (let [folder (checkout/folder)]
    {:folder (when (and folder (.isDirectory (io/file folder (first sources)))) folder)
     :compiler? (.canExecute (io/file (program "javac")))}))

;; How it is compiled

(defn- java-files
  [folder]
  (for [source sources
        ^File file (file-seq (io/file folder source))
        :when (str/ends-with? (.getName file) ".java")]
    (str file)))

(defn- compile!
  "Compiles the application into a folder of classes, as Spring Boot's Maven parent does. Returns
  what the compiler complained about, nil where it did not."
  [folder class-path classes]
  (let [command (into [(program "javac") "-parameters" "-proc:none" "--release" "21" "-cp"
                       class-path "-d" classes]
                      (java-files folder))
        {:keys [exit output]} (child/run-to-end! command {} compile-ms)]
    (when-not (zero? exit) (or (first (str/split-lines output)) "javac says nothing"))))

(defn- compiled [folder class-path]
  (let [classes (temporary/folder! "thrum-lab-spring")]
    (if-let [complaint (compile! folder class-path classes)]
      {:problem (str "examples/spring-boot does not compile: " complaint)}
      {:class-path (str/join File/pathSeparator [classes (io/file folder resources) class-path])})))

(defn build!
  "Compiles the application of the checkout in folder, into one that ends with this process, and
  returns it as {:class-path text}; {:problem words} where its jars cannot be had, which are
  downloaded the first time, or it does not compile."
  [folder]
  (let [{:keys [class-path problem]} (checkout/class-path! folder jars download-ms)]
    (if problem
      {:problem (str "Spring Boot's jars could not be had: " problem)}
      (compiled folder class-path))))

;; How it is started

(defn- arguments [{:keys [threads profile]}]
  (cond-> ["--server.port=0"
           "--server.address=127.0.0.1"
           "--spring.main.banner-mode=off"
           (str "--server.tomcat.threads.max=" threads)
           (str "--server.tomcat.accept-count=" backlog)]
    profile (conj (str "--spring.profiles.active=" profile))))

(defn start!
  "Starts an application that was built, with Tomcat's :threads and under a :profile, nil for none,
  on a free port, and returns it, a thrum.lab.child with its :url. Throws ex-info of :type
  :thrum/lab-child if it does not start."
  [{:keys [class-path]} configuration]
  (child/ready! (child/start! (child/leashed (-> [(program "java") (temporary/jvm-opt)]
                                                 (into jvm-opts)
                                                 (conj "-cp" class-path main-class)
                                                 (into (arguments configuration)))))
    (fn [app]
      (let [[_ port] (child/await-match app #"Tomcat started on port (\d+)" start-ms)]
        (assoc app :url (str "http://127.0.0.1:" port))))))

(defn hello
  "Returns the URL of a request that waits for ms."
  [{:keys [url]} ms]
  (str url "/hello?ms=" ms))
