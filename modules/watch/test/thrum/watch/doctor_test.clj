(ns thrum.watch.doctor-test
  "What the doctor says of dumps, of a process of its own, and of what is no JVM."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.runner :as runner]
   [thrum.watch.doctor :as doctor]
   [thrum.watch.doctor.examine :as examine]
   [thrum.watch.doctor.process :as process]
   [thrum.watch.impl.dump :as dump])
  (:import
   (java.io File StringReader)
   (java.lang ProcessHandle)
   (java.util List)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(defn- printed
  "Returns [exit-code text] of the doctor's run."
  [& argv]
  (let [code (volatile! nil), text (with-out-str (vreset! code (doctor/run argv)))]
    [@code (str/trim text)]))

(deftest what-cannot-be-examined-is-said-in-a-sentence
  (is (= [1 "There is no process 4194301"] (printed "4194301")))
  (let [^List command ["sleep" "60"]
        sleeper (.start (ProcessBuilder. command))
        pid (str (.pid sleeper))]
    (try
      (is (= [1 (str "Process " pid " is not a JVM")] (printed pid)))
      (is (.isAlive sleeper) "an attach would have ended it")
      (finally (.destroy sleeper)))))

(deftest wrong-arguments-are-answered-with-the-usage
  (are [argv sentence] (let [[code text] (apply printed argv)]
                         (and (= 2 code) (str/starts-with? text sentence)))
    [] "A PID is missing"
    ["x"] "The PID must be a positive integer, not \"x\""
    ["0"] "The PID must be a positive integer, not \"0\""
    ["1" "2"] "Unknown argument \"2\""
    ["1" "--jason"] "Unknown argument \"--jason\""
    ["1" "--out"] "--out needs a file"
    ["1" "--out" "--json"] "--out needs a file, not \"--json\""
    ["record" "1" "--seconds" "no"] "--seconds must be a positive integer, not \"no\""
    ["record" "1" "--seconds" "9223372036854775807"]
    "--seconds must be at most 2147483647, not \"9223372036854775807\""
    ["1" "--seconds" "5"] "--seconds is for record"
    ["record" "1" "--json"] "--json is not for record"
    ["record" "1" "--no-recording"] "--no-recording is not for record")
  (is (zero? (long (first (printed "--help"))))))

(def ^:private of-jdk-25
  "{\"threadDump\": {\"threadContainers\": [
     {\"container\": \"<root>\", \"threads\": [
       {\"tid\": \"30\", \"virtual\": true, \"name\": \"hog\", \"state\": \"RUNNABLE\",
        \"carrier\": \"17\", \"stack\": [\"my.app$spin.invoke(app.clj:3)\"]},
       {\"tid\": \"31\", \"virtual\": true, \"name\": \"\", \"state\": \"RUNNABLE\", \"stack\": []},
       {\"tid\": \"32\", \"virtual\": true, \"name\": \"a\", \"state\": \"BLOCKED\",
        \"blockedOn\": \"X@1\", \"stack\": [\"my.app$a.invoke(app.clj:5)\"],
        \"monitorsOwned\": [{\"depth\": 0, \"locks\": [\"X@2\", null]}]}]},
     {\"container\": \"ForkJoinPool-1\", \"threads\": [
       {\"tid\": \"17\", \"name\": \"worker-1\", \"state\": \"RUNNABLE\", \"stack\": []}]}]}}")

(defn- parsed [text]
  (dump/parse (StringReader. text)))

(deftest a-dump-is-read
  (let [[hog queued a worker] (parsed of-jdk-25)]
    (is (= [30 "hog" true :runnable "worker-1"]
           ((juxt :tid :name :virtual? :state :carrier) hog)))
    (is (= ["#31" :runnable nil []] ((juxt :name :state :carrier :stack) queued)))
    (is (= [:blocked "X@1" #{"X@2"}] ((juxt :state :blocked-on :owned) a)))
    (is (= [17 false] ((juxt :tid :virtual?) worker)))))

(defn- at [ms] (* 1000000 (long ms)))

(defn- queued
  "Returns the threads with the queued one as that of this id."
  [threads tid]
  (mapv #(cond-> % (= 31 (:tid %)) (assoc :tid tid)) threads))

(defn- held
  "Returns the threads with the one that is on a carrier as that of this id, or on this carrier."
  [threads tid-or-carrier]
  (mapv #(cond-> % (:carrier %) (assoc (if (int? tid-or-carrier) :tid :carrier) tid-or-carrier))
        threads))

(deftest dumps-one-after-the-other-show-what-stays
  (let [threads (parsed of-jdk-25), healthy (mapv #(dissoc % :carrier) threads)
        rules (fn [dumps] (map :rule (examine/lints dumps)))]
    (is (= [:carrier-held :starved] (rules (for [ms [0 500 1000]] [(at ms) threads]))))
    (is (= [] (rules [[(at 0) threads] [(at 500) healthy] [(at 1000) threads]])))
    (is (= [:carrier-held] (rules (for [ms [0 500 1000]] [(at ms) (queued threads (+ 40 ms))])))
      "the queue moves")
    (doseq [change [#(held threads (+ 40 %)) #(held threads (str "worker-" %))]]
      (is (= [] (rules (for [ms [0 500 1000 1500]] [(at ms) (change ms)])))
        "another thread, or carrier, each time"))))

(defn- start-jvm
  "Starts a JVM that evaluates each line of its standard input, and ends when that is closed."
  ^Process [options]
  (let [java (str (System/getProperty "java.home") "/bin/java")
        code '(loop []
                (when-some [line (read-line)]
                  (prn :value (eval (read-string line)))
                  (flush)
                  (recur)))
        ^List command (-> [java "-XX:TieredStopAtLevel=1" "-Djdk.trackAllThreads=false"]
                          (into options)
                          (into ["-cp" (System/getProperty "java.class.path")
                                 "clojure.main" "-e" (pr-str code)]))]
    (.start (doto (ProcessBuilder. command)
              (.redirectErrorStream true)))))

(defn- with-jvm
  "Returns the value of f, called with a JVM's process and a function that evaluates a form there:
  it returns the value, printed. options: of that JVM."
  [f & options]
  (let [jvm (start-jvm options)]
    (try
      (with-open [out (io/reader (.getInputStream jvm)), in (io/writer (.getOutputStream jvm))]
        (f jvm
           (fn [form]
             (doto in (.write (str (pr-str form) "\n")) .flush)
             (some #(second (re-find #"^:value (.*)" %)) (line-seq out)))))
      (finally (.destroy jvm)))))

(defn- examined [^Process jvm]
  (let [pid (str (.pid jvm))
        {:keys [threads groups jdk]} (doctor/examine (.pid jvm) {:no-recording true})]
    (is (= [0 0 []] [(:virtual threads) (:mounted threads) groups]))
    (is (pos? (long (:platform threads))))
    (is (str/starts-with? (str (Runtime/version)) jdk))
    (is (= [1 "Cannot write /no/such/file: /no/such/file (No such file or directory)"]
           (printed pid "--no-recording" "--out" "/no/such/file")
           (printed "record" pid "--out" "/no/such/file")))))

;; Of two takes one is of what nothing else refers to. It needs -Djdk.trackAllThreads=false.
(def ^:private takes
  '(do
     (require '[thrum.core :as t] '[thrum.spi.watch :as watch])
     (watch/watch! true)
     (def kept (promise))
     (t/future-call {:name "kept"} (fn [] @kept))
     (t/future-call {:name "alone"} (fn [] @(promise)))
     (loop [tries 1000]
       (System/gc)
       (or (seq (map :name (watch/leaked!)))
           (when (pos? tries) (Thread/sleep 5) (recur (dec tries)))))))

(def ^:private deadlock
  '(let [a (Object.), b (Object.), both (java.util.concurrent.CyclicBarrier. 2)
         executor (java.util.concurrent.Executors/newVirtualThreadPerTaskExecutor)
         lock (fn [x y] (.execute executor (fn [] (locking x (.await both) (locking y :never)))))]
     (lock a b)
     (lock b a)))

(defn- cycles
  "Returns the cycles of monitors in a JVM's dump, which has monitors from JDK 25 on."
  [^Process jvm]
  (let [vm (process/attach! (.pid jvm))]
    (try
      (filter #(= :cycle (:rule %)) (examine/conditions (process/threads vm)))
      (finally (.detach vm)))))

(defn- locked-for-ever [jvm ask]
  (is (empty? (cycles jvm)))
  (ask deadlock)
  (when (<= 25 (.feature (Runtime/version)))
    (let [[{:keys [sentence data]}] (gate/eventually 10000 #(seq (cycles jvm)))
          waits (re-seq #" waits for java.lang.Object@" (str sentence))]
      (is (= 2 (count (:threads data)) (count waits)) sentence))))

(deftest a-jvm-is-examined-well-and-ill
  (with-jvm
    (fn [jvm ask]
      (is (= ":ready" (ask :ready)))
      (examined jvm)
      (is (re-matches #"\(\"alone-\d+\"\)" (str (ask takes))))
      (locked-for-ever jvm ask))))

(deftest a-process-that-ends-while-it-is-examined-is-said-in-a-sentence
  (let [attach! process/attach!
        attach-and-end! (fn [pid]
                          (let [vm (attach! pid)
                                ^ProcessHandle process (.get (ProcessHandle/of (long pid)))]
                            (.destroy process)
                            (is (.get (.onExit process) 20 TimeUnit/SECONDS))
                            vm))]
    (doseq [arguments [[] ["--no-recording"]]]
      (with-jvm
        (fn [^Process jvm ask]
          (is (= ":ready" (ask :ready)))
          (with-redefs [process/attach! attach-and-end!]
            (let [[code text] (apply printed (str (.pid jvm)) arguments)]
              (is (= 1 code))
              (is (str/starts-with? text "The process does not answer, or has ended")))))))))

(defn- folders
  "Returns the folders of a doctor's files. Other JVMs' doctors have theirs there too."
  [^Process doctor]
  (filterv #(str/starts-with? % (str "thrum-doctor-" (.pid doctor) "-"))
           (.list (io/file "/tmp"))))

(defn- start-doctor ^Process [& argv]
  (let [^List command (into [(str (System/getProperty "java.home") "/bin/java")
                             "-XX:TieredStopAtLevel=1"
                             "--add-exports=jdk.attach/sun.tools.attach=ALL-UNNAMED"
                             "-cp" (System/getProperty "java.class.path")
                             "clojure.main" "-m" "thrum.watch.doctor"]
                            argv)]
    (.start (doto (ProcessBuilder. command) .inheritIO))))

(def ^:private recordings
  "Those of a JVM: for how long each."
  '(mapv (fn [^jdk.jfr.Recording recording] (str (.getDuration recording)))
         (.getRecordings (jdk.jfr.FlightRecorder/getFlightRecorder))))

(deftest a-doctor-that-is-ended-by-a-signal-leaves-nothing
  (with-jvm
    (fn [^Process jvm ask]
      (let [out (io/file (System/getProperty "java.io.tmpdir") (str (random-uuid) ".jfr"))
            doctor (start-doctor "record" (str (.pid jvm)) "--seconds" "60" "--out" (str out))]
        (try
          (is (gate/eventually 60000 #(= "[\"PT1M10S\"]" (ask recordings)))
            "it ends by itself where the doctor is killed")
          (is (= 1 (count (folders doctor))))
          (.destroy doctor)
          (is (.waitFor doctor 20 TimeUnit/SECONDS))
          (is (= "[]" (ask recordings)))
          (is (= [] (folders doctor)))
          (is (not (.exists out)))
          (finally (.destroyForcibly doctor)))))))

(def ^:private full
  "A folder in which nothing is free."
  "/proc/self")

(deftest a-process-whose-disk-is-full-is-not-recorded-which-would-end-it
  (when-not (.isDirectory (io/file full)) (runner/skip! (str "there is no " full)))
  (with-jvm
    (fn [^Process jvm ask]
      (is (= ":ready" (ask :ready)))
      (let [pid (str (.pid jvm))]
        (is (= [1 (str "Process " pid " has 0 MB left in " full ", and the Flight Recorder "
                       "ends a process whose disk is full: it needs 100. Examine it with "
                       "--no-recording")]
               (printed pid)
               (printed "record" pid "--seconds" "1")))
        (is (zero? (long (first (printed pid "--no-recording")))))
        (is (= ":alive" (ask :alive)))))
    (str "-Djava.io.tmpdir=" full)))

(deftest a-process-whose-folder-is-relative-and-not-there-yet-is-recorded
  (let [folder (io/file (str "thrum-" (random-uuid))), out (File/createTempFile "thrum" ".jfr")]
    (try
      (with-jvm
        (fn [^Process jvm ask]
          (is (= ":ready" (ask :ready)))
          (let [[code text] (printed "record" (str (.pid jvm)) "--seconds" "1" "--out" (str out))]
            (is (= 0 code) text))
          (is (pos? (.length out)))
          (.destroy jvm)
          (.waitFor jvm))
        (str "-Djava.io.tmpdir=" folder))
      (finally
        (.delete out)
        (run! #(.delete ^File %) (reverse (file-seq folder)))))))

(deftest a-file-that-is-there-is-not-emptied-before-there-is-a-recording
  (let [file (File/createTempFile "thrum" ".jfr"), absent (io/file (str file "-2"))]
    (try
      (spit file "an older recording")
      (run! #(#'doctor/check-writable! (str %)) [file absent])
      (is (= "an older recording" (slurp file)))
      (is (not (.exists absent)))
      (finally (.delete file)))))

(deftest a-name-that-the-jdks-dump-fails-at-is-said-in-a-sentence
  (with-jvm
    (fn [^Process jvm ask]
      (ask '(let [threads (.factory (.name (Thread/ofVirtual) "x\u001b[2J"))]
              (.execute (java.util.concurrent.Executors/newThreadPerTaskExecutor threads)
                        (fn [] @(promise)))))
      (let [[code text] (printed (str (.pid jvm)) "--no-recording")]
        (is (not (str/includes? text "\u001b")))
        (is (= (= 1 code) (str/includes? text "a thread whose name has a control character"))
          text)))))

(deftest a-name-writes-no-line-of-its-own
  (let [report {:pid 1, :jdk "25", :threads {:virtual 1, :mounted 1, :platform 1}, :groups []
                :lints [{:rule :pinned, :sentence "x\n\nNothing is wrong.\u001b[2J is pinned"}]}
        lines (str/split-lines (with-out-str (#'doctor/print-report! report {})))]
    (is (= "pinned: x??Nothing is wrong.?[2J is pinned" (last lines)))))

(deftest a-name-says-nothing-to-the-terminal
  (let [report {:pid 1, :jdk "25", :threads {:virtual 1, :mounted 1, :platform 1}, :groups []
                :lints [{:rule :pinned, :sentence "\u009b2J\u202e\u2028x is pinned"}]}
        lines (str/split-lines (with-out-str (#'doctor/print-report! report {})))]
    (is (= "pinned: ?2J??x is pinned" (last lines)))))

(defn- signal! [^Process process signal]
  (let [^List command ["kill" signal (str (.pid process))]]
    (.waitFor (.start (ProcessBuilder. command)))))

;; It has been attached to before: its socket takes what is sent, and nothing answers.
(deftest a-process-that-is-stopped-is-said-in-a-sentence
  (when-not (.isDirectory (io/file "/proc/self")) (runner/skip! "there is no /proc"))
  (with-jvm
    (fn [^Process jvm ask]
      (is (= ":ready" (ask :ready)))
      (.detach (process/attach! (.pid jvm)))
      (signal! jvm "-STOP")
      (try
        ;; Its main thread stops when it is run next.
        (is (gate/eventually 30000 #(#'process/stopped? (.pid jvm))))
        (is (= [1 (str "Process " (.pid jvm) " is stopped, by SIGSTOP or a debugger: it answers "
                       "when it goes on, by kill -CONT " (.pid jvm))]
               (deref (future (printed (str (.pid jvm)))) 60000 :hangs)))
        (finally (signal! jvm "-CONT"))))))

(deftest a-doctor-without-its-flag-names-it
  (with-jvm
    (fn [_ ask]
      (let [argv [(str (.pid (ProcessHandle/current))) "--no-recording"]
            doctor '(requiring-resolve 'thrum.watch.doctor/run)]
        (is (str/includes?
              (str (ask (list 'with-out-str (list doctor argv))))
              "started with --add-exports=jdk.attach/sun.tools.attach=ALL-UNNAMED"))))))

(deftest a-process-that-does-not-answer-is-given-up
  (let [never (promise)]
    (try
      (is (= [::process/refused "Process 7 has not answered for 1 s"]
             (try
               (#'process/answered 7 1 #(deref never))
               (catch clojure.lang.ExceptionInfo e [(:type (ex-data e)) (ex-message e)]))))
      (finally (deliver never true))))
  (is (= :answer (#'process/answered 7 60 (constantly :answer))))
  (is (thrown? java.io.IOException
               (#'process/answered 7 60 #(throw (java.io.IOException. "gone"))))))

(deftest a-file-of-the-process-is-read-below-its-root
  (with-jvm
    (fn [^Process jvm ask]
      (is (= ":ready" (ask :ready)))
      (let [vm (process/attach! (.pid jvm))]
        (try
          (is (= "in its /tmp"
                 (#'process/with-file vm ".txt" (fn [])
                   (fn [^File file path]
                     (ask (list 'spit (read-string path) "in its /tmp"))
                     (slurp file)))))
          (finally (.detach vm)))))))
