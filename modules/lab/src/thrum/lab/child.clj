(ns thrum.lab.child
  "Starts JVMs of the lab's own and ends them. A child watches its standard input: it ends when that does, so it
  never outlives its parent."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io])
  (:import
   (java.io BufferedReader IOException)
   (java.lang ProcessBuilder$Redirect ProcessHandle)
   (java.util List Map)
   (java.util.concurrent LinkedBlockingQueue TimeUnit)))

(set! *warn-on-reflection* true)

(def ^:private grace-ms "How long a child may take to end by itself." 2000)

(defn class-path
  "Returns the class path of this JVM."
  []
  (System/getProperty "java.class.path"))

(defn java-command
  "Returns the command line of a JVM like this one, whose main namespace is `main`, on the same class path or on another."
  ([jvm-opts main] (java-command jvm-opts main (class-path)))
  ([jvm-opts main class-path]
   (-> [(str (io/file (System/getProperty "java.home") "bin" "java"))]
       (into jvm-opts)
       (conj "-cp" class-path "clojure.main" "-m" (str main)))))

(defn under-file-limit
  "Returns command, run by a shell with a hard limit of n open files. HotSpot raises a soft one to the hard one."
  [n command]
  (into ["sh" "-c" (str "ulimit -n " n " && exec \"$0\" \"$@\"")] command))

(defn leashed
  "Returns command, run by a shell that kills it when standard input ends: for a program that does not watch its own. Ctrl-C is for the
  parent to answer."
  [command]
  (into ["sh" "-c" "trap '' INT
                    exec 3<&0 4>&2 2>/dev/null
                    \"$@\" </dev/null 2>&4 3<&- 4>&- & program=$!
                    { cat >/dev/null; kill -9 $program; } <&3 >/dev/null 4>&- &
                    wait $program" "leash"]
        command))

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

(defn- kill! [^Process process]
  (run! ProcessHandle/.destroyForcibly (iterator-seq (.iterator (.descendants process))))
  (.destroyForcibly process))

(defn stop!
  "Closes the child's standard input, waits for its end, and kills it and what it started if that takes longer than two seconds."
  [{:keys [^Process process]}]
  (let [interrupted? (Thread/interrupted)]
    (try
      (.close (.getOutputStream process))
      (catch IOException _))
    (when-not (.waitFor process grace-ms TimeUnit/MILLISECONDS)
      (.waitFor ^Process (kill! process)))
    (when interrupted?
      (.interrupt (Thread/currentThread)))))

(defn- silent [timeout-ms]
  (ex-info (str "A process of the lab said nothing for " timeout-ms " ms") {:type :thrum/lab-child, :timeout-ms timeout-ms}))

(defn- ended-early []
  (ex-info "A process of the lab ended early" {:type :thrum/lab-child}))

(defn ask
  "Returns the next line of EDN that the child prints, blocking for at most timeout-ms.
  Throws ex-info when it ends or says nothing in time."
  [{:keys [^LinkedBlockingQueue lines]} timeout-ms]
  (let [line (.poll lines timeout-ms TimeUnit/MILLISECONDS)]
    (cond
      (string? line) (edn/read-string line)
      line (throw (ended-early))
      :else (throw (silent timeout-ms)))))

(defn await-match
  "Reads the child's lines up to one in which pattern is found, and returns the match, blocking for at most timeout-ms.
  Throws ex-info when the child ends before that, or does not say it in time."
  [{:keys [^LinkedBlockingQueue lines]} pattern timeout-ms]
  (let [end (+ (System/nanoTime) (* 1000000 timeout-ms))]
    (loop []
      (let [line (.poll lines (- end (System/nanoTime)) TimeUnit/NANOSECONDS)]
        (cond
          (nil? line) (throw (silent timeout-ms))
          (not (string? line)) (throw (ended-early))
          :else (or (re-find pattern line) (recur)))))))

(defn run-to-end!
  "Runs command to its end, with more in its environment, and returns {:exit n :output text}, of standard error too. Kills it and throws
  ex-info if that takes longer than timeout-ms, kills it as well when the calling thread is interrupted."
  [command environment timeout-ms]
  (let [builder (-> (ProcessBuilder. ^List command) (.redirectErrorStream true))
        process (do (.putAll (.environment builder) ^Map environment) (.start builder))
        text (future (slurp (.getInputStream process)))]
    (try
      (when-not (.waitFor process timeout-ms TimeUnit/MILLISECONDS)
        (throw (silent timeout-ms)))
      {:exit (.exitValue process), :output @text}
      (finally (kill! process)))))

(defn output!
  "Returns what command prints, on standard error too; see run-to-end!."
  [command timeout-ms]
  (:output (run-to-end! command {} timeout-ms)))
