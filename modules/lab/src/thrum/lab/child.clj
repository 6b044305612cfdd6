(ns thrum.lab.child
  "Starts JVMs of the lab's own and ends them. A child watches its standard input: it ends when that
  does, so it never outlives its parent."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [thrum.lab.temporary :as temporary])
  (:import
   (java.io BufferedReader IOException)
   (java.lang ProcessBuilder$Redirect ProcessHandle)
   (java.util List)
   (java.util.concurrent LinkedBlockingQueue TimeUnit)))

(set! *warn-on-reflection* true)

(def ^:private grace-ms "How long a child may take to end by itself." 2000)

(defn class-path
  "Returns the class path of this JVM."
  []
  (System/getProperty "java.class.path"))

(def http-server-opts
  "Flags of a JVM with the JDK's server: without them that closes idle connections beyond 200, which
  a client sees as a reset, and delays small writes."
  ["-Dsun.net.httpserver.maxIdleConnections=100000"
   "-Dsun.net.httpserver.idleInterval=600"
   "-Dsun.net.httpserver.nodelay=true"])

(def ^:private quiet
  "Leaves out the warning that SLF4J, by which Jetty and HikariCP log, has no provider."
  "-Dslf4j.internal.verbosity=ERROR")

(defn java-command
  "Returns the command line of a JVM like this one, whose main namespace is `main`, on another class
  path, or the same where that is nil."
  ([jvm-opts main] (java-command jvm-opts main nil))
  ([jvm-opts main another]
   (-> [(str (io/file (System/getProperty "java.home") "bin" "java"))]
       (conj (temporary/jvm-opt) quiet)
       (into jvm-opts)
       (conj "-cp" (or another (class-path)) "clojure.main" "-m" (str main)))))

(defn under-file-limit
  "Returns command, run by a shell with a hard limit of n open files. HotSpot raises a soft one to
  the hard one."
  [n command]
  (into ["/bin/sh" "-c" (str "ulimit -n " n " && exec \"$0\" \"$@\"")] command))

(defn leashed
  "Returns command, run by a shell that kills it when standard input ends: for a program that does
  not watch its own. Ctrl-C is for the parent to answer."
  [command]
  (into ["/bin/sh" "-c" "trap '' INT
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
  "Reads the child's output on a thread of its own, so that a thread that waits for it can be
  interrupted. Returns the queue of its lines, with ::end after the last."
  [out]
  (let [lines (LinkedBlockingQueue.)]
    (-> (Thread/ofVirtual) (.name "lab-child-output") (.start #(drain-into lines out)))
    lines))

(defn- launch!
  "Starts what a ProcessBuilder describes. Throws ex-info of :type :thrum/lab-child where there is
  no such program."
  ^Process [^ProcessBuilder builder]
  (try
    (.start builder)
    (catch IOException e
      (throw
        (ex-info (str (first (.command builder)) " cannot be run: "
                   (ex-message (or (ex-cause e) e)))
                 {:type :thrum/lab-child, :command (vec (.command builder))}
                 e)))))

(defn start!
  "Starts command and returns the child: {:process :lines}. Its standard error is ours. Throws
  ex-info of :type :thrum/lab-child if it cannot be run."
  [command]
  (let [process (launch! (.redirectError (ProcessBuilder. ^List command)
                                         ProcessBuilder$Redirect/INHERIT))]
    {:process process, :lines (pump (io/reader (.getInputStream process)))}))

(defn- ended-early []
  (ex-info "A process of the lab ended early" {:type :thrum/lab-child}))

(defn send!
  "Sends the child one line of EDN. Throws ex-info when the child has ended."
  [{:keys [^Process process]} value]
  (try
    (doto (io/writer (.getOutputStream process))
      (.write (prn-str value))
      (.flush))
    (catch IOException _ (throw (ended-early)))))

(defn- kill! [^Process process]
  (run! ProcessHandle/.destroyForcibly (iterator-seq (.iterator (.descendants process))))
  (.destroyForcibly process))

(defn stop!
  "Closes the child's standard input, waits for its end, and kills it and what it started if that
  takes longer than two seconds."
  [{:keys [^Process process]}]
  (let [interrupted? (Thread/interrupted)]
    (try
      (.close (.getOutputStream process))
      (catch IOException _))
    (when-not (.waitFor process grace-ms TimeUnit/MILLISECONDS)
      (.waitFor ^Process (kill! process)))
    (when interrupted?
      (.interrupt (Thread/currentThread)))))

(defn ready!
  "Returns what (f child) returns, which waits until the child is ready; stops the child where that
  throws."
  [child f]
  (try
    (f child)
    (catch Throwable t
      (stop! child)
      (throw t))))

(defn- silent
  [timeout-ms]
  (ex-info (str "A process of the lab said nothing for " timeout-ms " ms")
           {:type :thrum/lab-child, :timeout-ms timeout-ms}))

(defn- answer
  "Returns what a line says: a map, a number."
  [line]
  (try
    (edn/read-string line)
    (catch RuntimeException e
      (throw (ex-info (str "A process of the lab said what is no EDN: "
                           (subs line 0 (min 200 (count line))))
                      {:type :thrum/lab-child}
                      e)))))

(defn read-answer
  "Returns the next line of EDN that the child prints, blocking for at most timeout-ms.
  Throws ex-info when it ends, prints nothing in time, or prints what is no EDN."
  [{:keys [^LinkedBlockingQueue lines]} timeout-ms]
  (let [line (.poll lines timeout-ms TimeUnit/MILLISECONDS)]
    (cond
      (string? line) (answer line)
      line (throw (ended-early))
      :else (throw (silent timeout-ms)))))

(defn ask
  "As read-answer, and throws ex-info with the :problem of an answer, a sentence, that has one; see
  thrum.lab.in-child."
  [child timeout-ms]
  (let [{:keys [problem] :as answer} (read-answer child timeout-ms)]
    (when problem
      (throw (ex-info problem {:type :thrum/lab-child})))
    answer))

(defn await-match
  "Reads the child's lines up to one in which pattern is found, and returns the match, blocking for
  at most timeout-ms. Throws ex-info when the child ends before that, or does not say it in time."
  [{:keys [^LinkedBlockingQueue lines]} pattern timeout-ms]
  (let [end (+ (System/nanoTime) (* 1000000 timeout-ms))]
    (loop []
      (let [line (.poll lines (- end (System/nanoTime)) TimeUnit/NANOSECONDS)]
        (cond
          (nil? line) (throw (silent timeout-ms))
          (not (string? line)) (throw (ended-early))
          :else (or (re-find pattern line) (recur)))))))

(defn- builder ^ProcessBuilder [command {:keys [environment folder errors-apart?]}]
  (let [builder (ProcessBuilder. ^List command)]
    (some->> environment (.putAll (.environment builder)))
    (some->> folder io/file (.directory builder))
    (if errors-apart?
      (.redirectError builder ProcessBuilder$Redirect/DISCARD)
      (.redirectErrorStream builder true))))

(defn run-to-end!
  "Runs command to its end and returns {:exit n :output text}; no text where what it has started
  holds that open for two seconds longer. options are :environment, more of it; :folder, to run it
  in; and :errors-apart?, to leave standard error out of the text. Kills it and throws ex-info if
  that takes longer than timeout-ms, kills it as well when the calling thread is interrupted."
  [command options timeout-ms]
  (let [process (launch! (builder command options))
        text (future (slurp (.getInputStream process)))]
    (try
      (when-not (.waitFor process timeout-ms TimeUnit/MILLISECONDS)
        (throw (ex-info (str (first command) " did not end within " timeout-ms " ms")
                        {:type :thrum/lab-silent, :command command})))
      {:exit (.exitValue process), :output (deref text grace-ms "")}
      (finally
        (kill! process)))))

(defn output!
  "Returns what command prints, on standard error too; see run-to-end!."
  [command timeout-ms]
  (:output (run-to-end! command {} timeout-ms)))
