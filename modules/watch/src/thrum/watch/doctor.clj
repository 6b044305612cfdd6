(ns thrum.watch.doctor
  "Examines any JVM of this machine from outside, also one that has never loaded Thrum:

      ./cljw -M:doctor PID [--json] [--out report.html] [--no-recording]
      ./cljw -M:doctor record PID [--seconds 30] [--out file.jfr]"
  (:require
   [clojure.data.json :as json]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.watch.doctor.examine :as examine]
   [thrum.watch.doctor.process :as process])
  (:import
   (com.sun.tools.attach VirtualMachine)
   (java.io File IOException)))

(set! *warn-on-reflection* true)

(def ^:private usage
  "Usage: ./cljw -M:doctor PID [--json] [--out report.html] [--no-recording]
       ./cljw -M:doctor record PID [--seconds 30] [--out file.jfr]

Prints where the virtual threads of a JVM wait, and what is wrong. It takes four dumps within two
seconds, and records what is pinned meanwhile, unless --no-recording.
Exit codes: 0 done, 1 the process could not be examined, 2 wrong arguments.")

;; Arguments

(defn- wrong [& sentence]
  (throw (ex-info (apply str sentence) {:type ::arguments})))

(defn- number [what text]
  (let [n (some-> text parse-long)]
    (when-not (and n (pos? (long n)))
      (wrong what " must be a positive integer, not " (pr-str text)))
    (when (< Integer/MAX_VALUE (long n))
      (wrong what " must be at most " Integer/MAX_VALUE ", not " (pr-str text)))
    n))

(defn- file-name [text]
  (cond
    (nil? text) (wrong "--out needs a file")
    (str/starts-with? text "-") (wrong "--out needs a file, not " (pr-str text))
    :else text))

(defn- checked
  "Returns the options. Throws ::arguments where one is missing, or does not go with another."
  [{:keys [pid record seconds json no-recording] :as options}]
  (cond
    (nil? pid) (wrong "A PID is missing")
    (and seconds (not record)) (wrong "--seconds is for record")
    (and record json) (wrong "--json is not for record")
    (and record no-recording) (wrong "--no-recording is not for record")
    :else options))

(defn arguments
  "Returns argv as a map. Throws ::arguments."
  [argv]
  (loop [[arg & more] argv, options {}]
    (case arg
      nil (checked options)
      "--help" {:help true}
      "--json" (recur more (assoc options :json true))
      "--no-recording" (recur more (assoc options :no-recording true))
      "--out" (recur (rest more) (assoc options :out (file-name (first more))))
      "--seconds" (recur (rest more) (assoc options :seconds (number "--seconds" (first more))))
      "record" (recur more (assoc options :record true))
      (if (or (:pid options) (str/starts-with? arg "-"))
        (wrong "Unknown argument " (pr-str arg))
        (recur more (assoc options :pid (number "The PID" arg)))))))

;; Examining

(def ^:private ^:const dumps 4)

(def ^:private ^:const most-seconds "For the dumps of very many threads." 60)

(def ^:private ^:const between-ms 500)

(defn- take-dumps! [vm]
  (mapv (fn [i]
          (when (pos? (long i)) (Thread/sleep (long between-ms)))
          [(System/nanoTime) (process/threads vm)])
        (range dumps)))

(defn examine
  "Returns {:pid, :jdk, :threads, :groups, :lints} of a JVM. Blocks for some two seconds. Throws
  ex-info of :type :thrum.watch.doctor.process/refused for what cannot be examined."
  [pid {:keys [no-recording]}]
  (let [vm (process/attach! pid)]
    (try
      (let [dumps (volatile! nil), look! #(vreset! dumps (take-dumps! vm))
            recorded (if no-recording
                       (do (look!) [])
                       (process/recorded vm most-seconds look! examine/of-recording))
            facts (process/environment vm)
            threads (second (peek @dumps))]
        {:pid pid
         :jdk (str/join "." (:jdk facts))
         :threads {:virtual (count (filter :virtual? threads))
                   :mounted (count (filter :carrier threads))
                   :platform (count (remove :virtual? threads))}
         :groups (examine/groups threads)
         :lints (into [] cat [(examine/of-environment facts) (examine/lints @dumps) recorded])})
      (finally (.detach ^VirtualMachine vm)))))

;; Printing

(defn- lines [{:keys [pid jdk threads groups lints]}]
  (concat
    [(str "Process " pid ", JDK " jdk ": " (:virtual threads) " virtual threads, "
          (:mounted threads) " on carriers, " (:platform threads) " platform threads")
     ""]
    (for [{:keys [count waits-at state frame]} (take 20 groups)]
      (format "%8d  %s, %s  [%s]" count waits-at (some-> state name) frame))
    [""]
    (if (seq lints)
      (map #(str (name (:rule %)) ": " (:sentence %)) lints)
      ["Nothing is wrong."])))

;; A thread may have any name.
(defn- printable [line]
  (str/replace line #"[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]" "?"))

(defn- escaped [x]
  (str/escape (str x) {\< "&lt;", \> "&gt;", \& "&amp;", \" "&quot;"}))

(defn- html [report]
  (str "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
       "content=\"width=device-width\"><title>Doctor</title><style>:root{color-scheme:light dark}"
       "body{font:15px/1.5 system-ui;max-width:70rem;margin:2rem auto;padding:0 1rem}"
       "pre{white-space:pre-wrap;overflow-wrap:anywhere}</style><h1>Doctor</h1><pre>"
       (escaped (str/join "\n" (map printable (lines report))))
       "</pre>"
       (str/join (for [{:keys [count waits-at stack]} (:groups report)]
                   (str "<details><summary>" count " " (escaped waits-at) "</summary><pre>"
                        (escaped (str/join "\n" stack)) "</pre></details>")))
       "</html>\n"))

(defn- write-out!
  "Calls (write! file). A failure is a sentence, not an exception of Java's."
  [out write!]
  (try
    (write! (io/file out))
    (catch IOException e (process/refuse "Cannot write " out ": " (ex-message e)))))

(defn- print-report! [report {:keys [json out]}]
  (when out (write-out! out #(spit % (html report))))
  (if json
    (json/write report *out* :key-fn name :escape-slash false)
    (run! println (map printable (lines report))))
  0)

;; Recording

(defn- check-writable!
  "Leaves no file where there was none."
  [out]
  (write-out! out
              (fn [^File file]
                (let [new? (not (.exists file))]
                  (spit file "" :append true)
                  (when new? (.delete file))))))

(defn- record! [{:keys [pid seconds out]}]
  (let [vm (process/attach! pid)
        seconds (or seconds 30)
        out (or out (str "thrum-" pid ".jfr"))
        write! (fn [file] (write-out! out #(io/copy file %)) true)]
    (try
      ;; Before the wait: a file that cannot be written is said at once.
      (check-writable! out)
      (or (process/recorded vm seconds #(Thread/sleep (* 1000 (long seconds))) write!)
          (process/refuse "Process " pid " has no Flight Recorder, or could not start it"))
      (println out)
      0
      (finally (.detach ^VirtualMachine vm)))))

(defn run
  "Does what argv asks for, and returns the exit code."
  [argv]
  (try
    (let [{:keys [help record pid] :as options} (arguments argv)]
      (cond
        help (do (println usage) 0)
        record (record! options)
        :else (print-report! (examine pid options) options)))
    ;; It ended meanwhile, or stopped to answer.
    (catch IOException e
      (println (str "The process does not answer, or has ended"
                    (some->> (ex-message e) (str ": "))))
      1)
    (catch clojure.lang.ExceptionInfo e
      (case (:type (ex-data e))
        ::arguments (do (println (str (ex-message e) "\n\n" usage)) 2)
        ::process/refused (do (println (ex-message e)) 1)
        (throw e)))))

(defn -main
  "Runs argv and ends the JVM with its exit code."
  [& argv]
  (let [code (run argv)]
    (flush)
    (System/exit code)))
