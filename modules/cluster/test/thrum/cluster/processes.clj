(ns thrum.cluster.processes
  "Members that are JVMs of their own, on loopback."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str])
  (:import
   (java.io File)
   (java.lang Process ProcessBuilder ProcessBuilder$Redirect)
   (java.net InetAddress ServerSocket)
   (java.nio.file Files)
   (java.nio.file.attribute FileAttribute)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(defn- free? [port]
  (try
    (with-open [_ (ServerSocket. (int port) 1 (InetAddress/getByName "127.0.0.1"))] true)
    (catch java.io.IOException _ false)))

(defn free-ports
  "Returns n ports that are free, with those 10000 above them."
  [n]
  (into []
        (comp (filter #(and (free? %) (free? (+ 10000 (long %))))) (take n))
        (repeatedly #(+ 10000 (rand-int 10000)))))

(def ^:private java
  (str (io/file (System/getProperty "java.home") "bin" "java")))

(def ^:private quick
  ["-Xmx256m" "-XX:TieredStopAtLevel=1" "-XX:+UseSerialGC" "-XX:+ExitOnOutOfMemoryError"])

(def ^:private class-path (atom (System/getProperty "java.class.path")))

(defn start!
  "Starts a JVM with the tests' class path; returns {:process p, :output file}. prefix: the command
  that runs it, if any."
  [arguments & {:keys [prefix]}]
  (let [output (doto (File/createTempFile "thrum-cluster" ".log") (.deleteOnExit))
        command (concat prefix [java] quick ["-cp" @class-path "clojure.main"] arguments)
        builder (doto (ProcessBuilder. ^java.util.List (vec command))
                  (.redirectErrorStream true)
                  (.redirectOutput (ProcessBuilder$Redirect/to output)))]
    {:process (.start builder), :output output}))

(defn alive? [{:keys [^Process process]}] (.isAlive process))

(defn pid [{:keys [^Process process]}] (.pid process))

(defn await!
  "Waits until the predicate holds, at most 100 s; returns what it returned."
  [pred]
  (let [end (+ (System/nanoTime) 100000000000)]
    (loop []
      (or (pred)
          (when (< (System/nanoTime) end) (Thread/sleep 20) (recur))))))

(defn printed?
  "Returns whether the process has printed the text."
  [{:keys [output]} text]
  (str/includes? (slurp output) text))

(defn await-line!
  "Waits until the process has printed the text. Throws with its output where it has not."
  [{:keys [output] :as started} text]
  (when-not (= :printed (await! #(cond (printed? started text) :printed
                                       (not (alive? started)) :dead)))
    (throw (ex-info (str "Not printed: " text "\n" (slurp output)) {}))))

(defn signal!
  "Sends the signal, as in -9."
  [started signal]
  (.waitFor (.start (ProcessBuilder. ^"[Ljava.lang.String;"
                                     (into-array ["kill" signal (str (pid started))])))))

(defn kill! [{:keys [^Process process]}]
  (.destroyForcibly process)
  (.waitFor process 10 TimeUnit/SECONDS))

(def ^:private namespaces
  '[thrum.cluster.main thrum.cluster.engine.infinispan thrum.cluster.jvm-work])

(defn- compile-namespaces! []
  (let [folder (str (Files/createTempDirectory "thrum-classes" (make-array FileAttribute 0)))
        {:keys [^Process process output]}
        (start! ["-e" (pr-str `(binding [*compile-path* ~folder] (run! compile '~namespaces)))])]
    (when-not (and (.waitFor process 120 TimeUnit/SECONDS) (zero? (.exitValue process)))
      (.destroyForcibly process)
      (throw (ex-info (str "Not compiled:\n" (slurp output)) {})))
    (swap! class-path #(str folder File/pathSeparator %))))

(def ^:private compiled (delay (compile-namespaces!)))

(defn compile!
  "Compiles, once, what members need into a folder that the JVMs to come have on their class path:
  they start in a third of the time."
  []
  @compiled)

(defn start-member!
  "Starts a member on the port; does not wait until it has joined."
  [port seeds arguments]
  (assoc (start! (concat ["-m" "thrum.cluster.main" "member" "--allow" "thrum.cluster.jvm-work"
                          "--cluster" "jvms" "--name" (str "m" port) "--port" (str port)
                          "--seeds" (str/join "," seeds)]
                         arguments))
         :port port))
