(ns thrum.test-kit.jvm
  "Starts child JVMs on this classpath, and finds other JDKs for them."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str])
  (:import
   (java.io BufferedReader File)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(def exports
  "The flags that the leak check, core's machine for tests and the doctor need."
  ["--add-exports=java.base/jdk.internal.vm=ALL-UNNAMED"
   "--add-opens=java.base/java.lang=ALL-UNNAMED"
   "--add-exports=jdk.attach/sun.tools.attach=ALL-UNNAMED"])

;; Finding a JDK

(defn release
  "Returns the major version in the release file of a Java home, or nil."
  [^File home]
  (let [file (io/file home "release")]
    (when (and (.isFile file) (.canExecute (io/file home "bin" "java")))
      (some-> (re-find #"(?m)^JAVA_VERSION=\"(?:1\.)?(\d+)" (slurp file)) second parse-long))))

(defn- usual-homes
  []
  (let [user (System/getProperty "user.home")]
    (->> ["/usr/lib/jvm" "/opt" "/usr/local" (str user "/.jdks")
          (str user "/.sdkman/candidates/java") "/Library/Java/JavaVirtualMachines"]
         (mapcat #(sort (.listFiles (io/file %))))
         (mapcat (fn [home] [home (io/file home "Contents" "Home")])))))

(defn find-home
  "Returns the home of a Java of this major version among the usual folders, or nil."
  [major]
  (first (filter #(= major (release %)) (usual-homes))))

(defn this-home
  "Returns the home of the running Java."
  []
  (io/file (System/getProperty "java.home")))

;; Running a child

(defn clojure-main
  "Returns the command line, up to the arguments of clojure.main, of the Java in home."
  [home jvm-opts class-path]
  (-> [(str (io/file home "bin" "java"))]
      (into jvm-opts)
      (conj "-cp" class-path "clojure.main")))

(defn command
  "Returns the command line that calls the main function of ns-sym on the Java in home, with this
  JVM's classpath or another."
  ([home jvm-opts ns-sym args]
   (command home jvm-opts (System/getProperty "java.class.path") ns-sym args))
  ([home jvm-opts class-path ns-sym args]
   (-> (clojure-main home jvm-opts class-path)
       (conj "-m" (str ns-sym))
       (into args))))

(defn- echo-lines
  "Prints each line of reader as it comes; returns all."
  [^BufferedReader reader]
  (loop [lines []]
    (if-let [line (.readLine reader)]
      (do (println line) (flush) (recur (conj lines line)))
      lines)))

(defn- kill-after
  "Kills process when it has not ended within ms; returns the thread that watches."
  [^Process process ms]
  (let [watch (bound-fn []
                (when-not (.waitFor process ms TimeUnit/MILLISECONDS)
                  (println "Killed a child JVM after" ms "ms.")
                  (.destroyForcibly process)))]
    (doto (Thread. ^Runnable watch "child-watch")
      (.setDaemon true)
      (.start))))

(def quick
  "The environment of a JVM, and of the JVMs below it, that ends before its optimising compiler
  would have paid."
  {"JDK_JAVA_OPTIONS" "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})

(defn- start-process
  ^Process [command environment]
  (let [builder (doto (ProcessBuilder. ^java.util.List command) (.redirectErrorStream true))]
    (.putAll (.environment builder) ^java.util.Map environment)
    (.start builder)))

(defn run
  "Runs a command, with more in its environment, printing its output as it comes; kills it after
  limit-ms. Returns {:exit code, :lines strings}."
  ([command limit-ms] (run command limit-ms {}))
  ([command limit-ms environment]
   (let [process (start-process command environment)]
     (.close (.getOutputStream process))
     (kill-after process limit-ms)
     (let [lines (echo-lines (.inputReader process))]
       {:exit (.waitFor process), :lines lines}))))

(defn quietly
  "As run, with the output kept and not printed."
  [command limit-ms & [environment]]
  (binding [*out* (java.io.StringWriter.)]
    (run command limit-ms (or environment {}))))

(defn last-line
  "Returns the last line of lines that is not blank, or nil."
  [lines]
  (last (remove str/blank? lines)))
