(ns thrum.watch.doctor.process
  "Another JVM of this machine, reached by the attach API: its dumps and its recordings. What it is
  not, or not for this user, is said in a sentence."
  {:no-doc true}
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.watch.impl.dump :as dump]
   [thrum.watch.impl.environment :as environment])
  (:import
   (com.sun.tools.attach VirtualMachine)
   (java.io File IOException InputStream)
   (java.lang ProcessHandle)
   (java.lang.reflect InaccessibleObjectException InvocationTargetException Method)
   (java.nio.file Files Path)
   (java.nio.file.attribute FileAttribute)))

(set! *warn-on-reflection* true)

(defn refuse
  "Throws ex-info of :type ::refused, with this sentence."
  [& sentence]
  (throw (ex-info (apply str sentence) {:type ::refused})))

(def ^:private least-java 21)

(defn- text-of
  "Returns the text of a file of the process below /proc, or nil where it cannot be read."
  [pid file]
  (try (Files/readString (Path/of "/proc" (into-array [(str pid) file]))) (catch IOException _)))

(defn- linux? []
  (.isDirectory (io/file "/proc/self")))

(defn- stopped?
  "True if the process is stopped, by a signal or a debugger, as far as /proc says."
  [pid]
  (boolean (some->> (text-of pid "stat") (re-find #"(?s).*\) [tT] "))))

(defn- owner [pid]
  (let [^ProcessHandle process (.orElse (ProcessHandle/of (long pid)) nil)]
    (some-> process .info .user (.orElse nil))))

;; An attach sends SIGQUIT, which ends a process that is no JVM: it is found out before.
(defn- check-jvm! [pid]
  (when-not (.isPresent (ProcessHandle/of (long pid)))
    (refuse "There is no process " pid))
  (when (linux?)
    (let [maps (text-of pid "maps")]
      (cond
        (str/blank? maps) (refuse "Process " pid " cannot be read: it belongs to "
                                  (or (owner pid) "another user") ", or has ended")
        (not (str/includes? maps "libjvm")) (refuse "Process " pid " is not a JVM")
        (stopped? pid) (refuse "Process " pid " is stopped, by SIGSTOP or a debugger: it answers "
                               "when it goes on, by kill -CONT " pid)))))

(def ^:private ^:const attach-seconds "The JDK's own bound is 10." 30)
(def ^:private ^:const answer-seconds "For the dump of very many threads." 180)

(defn- answered
  "Returns the value of (f), a question to the process. Throws ::refused where that takes longer
  than so many seconds: an interrupt does not end the JDK's read of the answer."
  [pid seconds f]
  (let [answer (promise)]
    (doto (Thread. #(deliver answer (try {:value (f)} (catch Throwable t {:thrown t}))))
      (.setDaemon true)
      (.start))
    (let [{:keys [value thrown] :as result} (deref answer (* 1000 (long seconds)) nil)]
      (cond
        (nil? result) (refuse "Process " pid " has not answered for " seconds " s")
        thrown (throw thrown)
        :else value))))

(defn- command ^Method [vm]
  (try
    (doto (.getMethod (class vm) "executeJCmd" (into-array Class [String]))
      (.setAccessible true))
    (catch InaccessibleObjectException _
      (refuse "The doctor's own JVM has to be started with "
              "--add-exports=jdk.attach/sun.tools.attach=ALL-UNNAMED"))))

(defn- run-command
  "Has the JVM run a command of jcmd; returns what it printed. Throws IOException where it does not
  answer."
  [vm text]
  (answered (.id ^VirtualMachine vm) answer-seconds
    #(with-open [^InputStream in (try
                                   (.invoke (command vm) vm (object-array [text]))
                                   (catch InvocationTargetException e (throw (ex-cause e))))]
       (slurp in))))

(defn- check-version! [pid vm]
  (let [version (environment/version (.getProperty (.getSystemProperties ^VirtualMachine vm)
                                                   "java.version"))]
    (when (< (long (first version)) (long least-java))
      (.detach ^VirtualMachine vm)
      (refuse "Process " pid " runs Java " (str/join "." version) ", which has no virtual threads; "
              least-java " or newer is needed"))))

(defn attach!
  "Returns the JVM of that process, a VirtualMachine. Throws ::refused."
  ^VirtualMachine [pid]
  (check-jvm! pid)
  (let [vm (try
             (answered pid attach-seconds #(VirtualMachine/attach (str pid)))
             (catch clojure.lang.ExceptionInfo e (throw e))
             (catch Exception e
               (refuse "Process " pid " does not let itself be attached to: " (ex-message e))))]
    (check-version! pid vm)
    vm))

(defn- at-exit
  "Returns the value of (f). Where this JVM is to end meanwhile, by a signal, (end!) is called."
  [^Runnable end! f]
  (let [hook (Thread. end!), runtime (Runtime/getRuntime)]
    (.addShutdownHook runtime hook)
    (try
      (f)
      (finally
        (try (.removeShutdownHook runtime hook) (catch IllegalStateException _))))))

;; The process may have another /tmp than this one: a container, or PrivateTmp of systemd. On Linux
;; each has a /tmp, by which it is attached to, and it is seen here below /proc.
(defn- root [vm]
  (let [root (str "/proc/" (.id ^VirtualMachine vm) "/root")]
    (if (Files/isWritable (Path/of root (into-array ["tmp"]))) root "")))

(def ^:private own-name
  "That of this doctor's recording, and what its folders' names begin with."
  (str "thrum-doctor-" (.pid (ProcessHandle/current))))

(defn- new-folder ^File [root]
  (let [prefix (str own-name "-"), attributes (make-array FileAttribute 0)]
    (.toFile (if (= "" root)
               (Files/createTempDirectory prefix attributes)
               (Files/createTempDirectory (Path/of root (into-array ["tmp"])) prefix
                                          attributes)))))

(defn- with-file
  "Returns the value of (f file path), where the process can write a file at that path, in quotes,
  which is read here as file. It is then deleted; where this JVM is to end before, (end!) is called
  first."
  [vm suffix end! f]
  (let [root (root vm)
        folder (new-folder root)
        file (io/file folder (str "file" suffix))
        delete! #(do (io/delete-file file true) (io/delete-file folder true))]
    (at-exit #(try (end!) (finally (delete!)))
             #(try
                (f file (str \" (subs (.getPath file) (count root)) \"))
                (finally (delete!))))))

(defn- carrying
  "Returns by virtual thread's id the name of its carrier, of what Thread.print says before JDK 25."
  [text]
  (loop [[^String line & lines] (str/split-lines text), carrier nil, found {}]
    (if (nil? line)
      found
      (let [[_ name] (re-find #"^\"([^\"]*)\"" line)
            [_ tid] (re-find #"Carrying virtual thread #(\d+)" line)]
        (recur lines (or name carrier) (cond-> found tid (assoc (parse-long tid) carrier)))))))

(defn- waits-on-carrier? [{:keys [stack]}]
  (some (fn [[class method]]
          (or (= "parkOnCarrierThread" method)
              (and (= "java.lang.Object" class) (= "wait" method))))
        (take 6 stack)))

(defn- with-carriers
  "Adds what the dump of an older JDK does not say: the carriers, and the states that follow."
  [threads carriers]
  (mapv (fn [{:keys [tid virtual? state stack] :as thread}]
          (if (or state (not virtual?))
            thread
            (let [carrier (carriers tid)]
              (assoc thread
                     :carrier carrier
                     :state (cond
                              (and carrier (not (waits-on-carrier? thread))) :runnable
                              (empty? stack) :runnable
                              :else :parked)))))
        threads))

(defn- check-dump! [vm text]
  (when-not (str/starts-with? text "Created")
    (refuse "Process " (.id ^VirtualMachine vm) " cannot write its dump: " (str/trim text)
            (when (str/includes? text "IllegalFormatConversionException")
              "; the JDK fails so at a thread whose name has a control character"))))

(defn threads
  "Returns the threads of the JVM; see thrum.watch.impl.dump/parse. Throws ::refused where the JDK's
  dump fails."
  [vm]
  (let [threads (with-file vm ".json" (fn [])
                  (fn [file path]
                    (check-dump! vm
                                 (run-command vm (str "Thread.dump_to_file -format=json " path)))
                    (with-open [reader (io/reader file)] (dump/parse reader))))]
    (if (some :state threads)
      threads
      (with-carriers threads (carrying (run-command vm "Thread.print"))))))

(defn environment
  "Returns the facts of thrum.watch.impl.environment of the JVM."
  [^VirtualMachine vm]
  (let [properties (.getSystemProperties vm)]
    (environment/facts-of (.getProperty properties "java.version")
                          (.getProperty properties "java.class.path"))))

(def ^:private own-events
  "Thrum's own, which are off by default; + also for a JVM that does not know them yet."
  (str/join " " (map #(str "+thrum." % "#enabled=true") ["Task" "Scope" "Request"])))

;; It ends by itself where this JVM is killed, and cannot end it.
(def ^:private ^:const grace-seconds 10)

(defn- start-recording!
  "Returns false where the JVM has no recorder."
  [vm seconds path]
  (try
    (run-command vm (str "JFR.start name=" own-name " settings=default duration="
                         (+ (long seconds) (long grace-seconds)) "s filename=" path " "
                         own-events))
    true
    (catch IOException _ false)))

(defn- stop-recording! [vm]
  (run-command vm (str "JFR.stop name=" own-name)))

(defn- stop-if-recording! [vm]
  (try (stop-recording! vm) (catch IOException _)))

(def ^:private ^:const least-free-mb 100)

(defn- seen-from-here
  "Returns the folder of the JVM; one that is not absolute is below where the JVM was started."
  ^File [^VirtualMachine vm folder]
  (if (.isAbsolute (io/file folder))
    (io/file (str (root vm) folder))
    (io/file "/proc" (.id vm) "cwd" folder)))

(defn- free-mb
  "Returns how much is free for a folder, which need not be there yet, or nil where nothing says."
  [folder]
  (when-some [^File there (->> (iterate #(.getParentFile ^File %) folder)
                               (take-while some?)
                               (filter #(.isDirectory ^File %))
                               first)]
    (quot (.getUsableSpace there) 1000000)))

(defn- check-room!
  "Throws ::refused where little is left for the recorder's own files, which are in java.io.tmpdir:
  where it cannot write them, HotSpot ends the process."
  [^VirtualMachine vm]
  (let [folder (.getProperty (.getSystemProperties vm) "java.io.tmpdir")
        free-mb (free-mb (seen-from-here vm folder))]
    (when (and free-mb (< (long free-mb) (long least-free-mb)))
      (refuse "Process " (.id vm) " has " free-mb " MB left in " folder ", and the Flight Recorder "
              "ends a process whose disk is full: it needs " least-free-mb ". Examine it with "
              "--no-recording"))))

(defn recorded
  "Calls during, which takes so many seconds at most, and returns the value of (f file), where the
  file has what was recorded meanwhile, of Thrum's own events too; nil where nothing could be
  recorded. The file is then deleted. Nothing is left in the JVM, also where this one is ended.
  Throws ::refused where the JVM's disk is nearly full."
  [vm seconds during f]
  (check-room! vm)
  (with-file vm ".jfr" #(stop-if-recording! vm)
    (fn [^File file path]
      (let [recording? (start-recording! vm seconds path)]
        (try
          (during)
          (finally (when recording? (stop-recording! vm))))
        (when (pos? (.length file)) (f file))))))
