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
   (java.lang.reflect Method)
   (java.nio.file Files Path)
   (java.nio.file.attribute FileAttribute)))

(set! *warn-on-reflection* true)

(defn refuse
  "Throws ex-info of :type ::refused, with this sentence."
  [& sentence]
  (throw (ex-info (apply str sentence) {:type ::refused})))

(def ^:private least-java 21)

(defn- maps-of
  "Returns the text of what the process has mapped into memory, or nil where it cannot be read."
  [pid]
  (try (Files/readString (Path/of "/proc" (into-array [(str pid) "maps"]))) (catch IOException _)))

(defn- linux? []
  (.isDirectory (io/file "/proc/self")))

(defn- owner [pid]
  (let [user (.user (.info ^ProcessHandle (.get (ProcessHandle/of (long pid)))))]
    (.orElse user nil)))

;; An attach sends SIGQUIT, which ends a process that is no JVM: it is found out before.
(defn- check-jvm! [pid]
  (when-not (.isPresent (ProcessHandle/of (long pid)))
    (refuse "There is no process " pid))
  (when (linux?)
    (let [maps (maps-of pid)]
      (cond
        (str/blank? maps) (refuse "Process " pid " cannot be read: it belongs to "
                                  (or (owner pid) "another user") ", or has ended")
        (not (str/includes? maps "libjvm")) (refuse "Process " pid " is not a JVM")))))

(defn- command ^Method [vm]
  (doto (.getMethod (class vm) "executeJCmd" (into-array Class [String]))
    (.setAccessible true)))

(defn- run-command
  "Has the JVM run a command of jcmd; returns what it printed."
  [vm text]
  (with-open [^InputStream in (.invoke (command vm) vm (object-array [text]))]
    (slurp in)))

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
             (VirtualMachine/attach (str pid))
             (catch Exception e
               (refuse "Process " pid " does not let itself be attached to: " (ex-message e))))]
    (check-version! pid vm)
    vm))

(defn- with-file [suffix f]
  (let [folder (.toFile (Files/createTempDirectory "thrum-doctor" (make-array FileAttribute 0)))
        file (io/file folder (str "file" suffix))]
    (try
      (f file)
      (finally
        (io/delete-file file true)
        (io/delete-file folder true)))))

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

(defn threads
  "Returns the threads of the JVM; see thrum.watch.impl.dump/parse."
  [vm]
  (let [threads (with-file ".json"
                  (fn [^File file]
                    (run-command vm (str "Thread.dump_to_file -format=json " (.getPath file)))
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

(defn- start-recording! [vm name]
  (run-command vm (str "JFR.start name=" name " settings=default " own-events)))

(defn- stop-recording! [vm name ^File file]
  (run-command vm (str "JFR.stop name=" name " filename=" (.getAbsolutePath file))))

(defn- recording?
  "Starts a recording. Returns false where the JVM has no recorder."
  [vm name]
  (try
    (start-recording! vm name)
    true
    (catch IOException _ false)))

(defn recorded
  "Calls during, and returns the value of (f file), where the file has what was recorded meanwhile,
  of Thrum's own events too; nil where nothing could be recorded. The file is then deleted."
  [vm during f]
  (with-file ".jfr"
    (fn [^File file]
      (let [name (str "thrum-doctor-" (.pid (ProcessHandle/current)))
            recording (recording? vm name)]
        (try
          (during)
          (finally (when recording (stop-recording! vm name file))))
        (when (pos? (.length file)) (f file))))))
