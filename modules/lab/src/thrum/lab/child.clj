(ns thrum.lab.child
  "Starts JVMs of the lab's own and ends them. A child watches its standard input: it ends when that does, so it
  never outlives its parent."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io])
  (:import
   (java.io BufferedReader IOException)
   (java.lang ProcessBuilder$Redirect)
   (java.util List)
   (java.util.concurrent LinkedBlockingQueue TimeUnit)))

(set! *warn-on-reflection* true)

(def ^:private grace-ms "How long a child may take to end by itself." 2000)

(defn java-command
  "Returns the command line of a JVM like this one, on the same class path, whose main namespace is `main`."
  [jvm-opts main]
  (-> [(str (io/file (System/getProperty "java.home") "bin" "java"))]
      (into jvm-opts)
      (conj "-cp" (System/getProperty "java.class.path") "clojure.main" "-m" (str main))))

(defn under-file-limit
  "Returns command, run by a shell with a hard limit of n open files. HotSpot raises a soft one to the hard one."
  [n command]
  (into ["sh" "-c" (str "ulimit -n " n " && exec \"$0\" \"$@\"")] command))

(defn- drain-into [^LinkedBlockingQueue lines ^BufferedReader out]
  (try
    (run! (fn [line] (.put lines line)) (line-seq out))
    (catch IOException _)
    (finally (.put lines ::end))))

(defn- pump
  "Reads the child's output on a thread of its own, so that whoever waits for it can be interrupted.
  Returns the queue of its lines, with ::end after the last."
  [out]
  (let [lines (LinkedBlockingQueue.)]
    (-> (Thread/ofVirtual) (.name "lab-child-output") (.start #(drain-into lines out)))
    lines))

(defn start!
  "Starts command and returns the child: {:process :lines}. Its standard error is ours."
  [command]
  (let [process (-> (ProcessBuilder. ^List command)
                    (.redirectError ProcessBuilder$Redirect/INHERIT)
                    (.start))]
    {:process process, :lines (pump (io/reader (.getInputStream process)))}))

(defn tell!
  "Sends the child one line of EDN."
  [{:keys [^Process process]} value]
  (doto (io/writer (.getOutputStream process))
    (.write (prn-str value))
    (.flush)))

(defn stop!
  "Closes the child's standard input, waits for its end, and kills it if that takes longer than two seconds."
  [{:keys [^Process process]}]
  (let [interrupted? (Thread/interrupted)]
    (try
      (.close (.getOutputStream process))
      (catch IOException _))
    (when-not (.waitFor process grace-ms TimeUnit/MILLISECONDS)
      (.waitFor (.destroyForcibly process)))
    (when interrupted?
      (.interrupt (Thread/currentThread)))))

(defn- silent [timeout-ms]
  (ex-info (str "A process of the lab said nothing for " timeout-ms " ms") {:type :thrum/lab-child, :timeout-ms timeout-ms}))

(defn ask
  "Returns the next line of EDN that the child prints, blocking for at most timeout-ms.
  Throws ex-info when it ends or says nothing in time."
  [{:keys [^LinkedBlockingQueue lines]} timeout-ms]
  (let [line (.poll lines timeout-ms TimeUnit/MILLISECONDS)]
    (cond
      (string? line) (edn/read-string line)
      line (throw (ex-info "A process of the lab ended early" {:type :thrum/lab-child}))
      :else (throw (silent timeout-ms)))))

(defn output!
  "Runs command to its end and returns what it prints, on standard error too. Kills it and throws ex-info if that takes longer than
  timeout-ms, kills it as well when the calling thread is interrupted."
  [command timeout-ms]
  (let [process (-> (ProcessBuilder. ^List command) (.redirectErrorStream true) (.start))
        text (future (slurp (.getInputStream process)))]
    (try
      (when-not (.waitFor process timeout-ms TimeUnit/MILLISECONDS)
        (throw (silent timeout-ms)))
      @text
      (finally (.destroyForcibly process)))))
