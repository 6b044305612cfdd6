(ns thrum.lab.main-test
  "Exit codes, what a run leaves behind, and Ctrl-C."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.lab.child :as child]
   [thrum.lab.goals :as goals]
   [thrum.lab.main :as main]
   [thrum.lab.store :as store]
   [thrum.lab.subject :as subject]
   [thrum.lab.temporary :as temporary]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.runner :as runner])
  (:import
   (java.io ByteArrayOutputStream File PrintStream StringWriter)
   (java.lang ProcessHandle)
   (java.nio.file Files)
   (java.util List)
   (java.util.concurrent BlockingQueue TimeUnit)))

(set! *warn-on-reflection* true)

(defn- temp-dir []
  (temporary/folder! "thrum-lab"))

(defn- run
  "Returns [exit-code stdout stderr] of the lab in this process."
  [& argv]
  (let [err (StringWriter.), code (volatile! nil)
        out (binding [*err* err] (with-out-str (vreset! code (main/run argv))))]
    [@code out (str err)]))

(defn- file-of [text]
  (str (doto (File/createTempFile "thrum-lab" ".edn") (.deleteOnExit) (spit text))))

(deftest wrong-arguments-are-one-sentence-and-exit-2
  (is (= [2 "" "There is no option --limt; the nearest one is --limit.\n"] (run "--limt" "3")))
  (is (= [2 "" "There is no experiment fan-uot; the nearest one is fan-out.\n"]
         (run "--only" "fan-uot")))
  (is (= 2 (first (run "compare" "/nowhere/a.edn" "/nowhere/b.edn"))))
  (is (= 2 (first (run "fan-out" "--urls" "/nowhere/urls.txt" "--out" (temp-dir)))))
  (let [damaged (file-of (pr-str {:thrum.lab/version 1, :machine {}, :experiments [{:parts 3}]}))]
    (is (= [2 "" (str damaged " and " damaged " cannot be compared: one of them is damaged.\n")]
           (run "compare" damaged damaged)))))

(deftest a-handler-that-is-not-there-is-wrong-arguments
  (is (= [2 "The namespace nowhere is not on the class path.\n"]
         ((juxt first (comp #(subs % (.lastIndexOf ^String % "The ")) peek))
          (run "handler" "nowhere/handler" "--out" (temp-dir))))))

(deftest an-engine-asked-for-by-name-that-cannot-be-had-exits-3
  (when (contains? (subject/engines) :http-kit) (runner/skip! "http-kit is to be had"))
  (with-redefs [subject/http-kit-class-path!
                (constantly {:problem "http-kit could not be had: no repository"})]
    (let [[code out] (run "ring-http-kit" "--out" (temp-dir))]
      (is (= 3 code))
      (is (str/includes? out "Skipped: http-kit could not be had: no repository.")))))

(deftest help-exits-0
  (is (= [0 ""] ((juxt first peek) (run "--help")))))

(deftest what-is-not-asked-for-is-not-loaded
  (let [home (jvm/this-home)
        classes (System/getProperty "java.class.path")
        code (pr-str '(do (require 'thrum.lab.main)
                          ((resolve 'thrum.lab.main/run) ["help"])
                          ((resolve 'thrum.lab.main/run) ["fan-uot"])
                          (println (keep #(re-find #"^(?:thrum.lab.benchmarks|clojure.core.async).*"
                                                   (str (ns-name %)))
                                         (all-ns)))))
        command (into (jvm/clojure-main home [] classes) ["-e" code])]
    (is (= "()" (jvm/last-line (:lines (jvm/quietly command 280000 jvm/quick)))))))

(deftest print-plan-prints-edn-and-runs-nothing
  (let [[code out] (run "--only" "many" "--print-plan")]
    (is (= [0 1 [:many]]
           [code (:thrum.lab/version (edn/read-string out)) (:asked (edn/read-string out))]))))

(deftest an-experiment-is-chosen-by-its-command
  (let [[code out] (run "scope" "--print-plan")]
    (is (= [0 [:scope] [:hangs :fails :deaf]]
           [code (map :experiment (:experiments (edn/read-string out)))
            (map :part (:parts (first (:experiments (edn/read-string out)))))]))))

(deftest a-chosen-experiment-runs-by-itself
  (let [dir (temp-dir), [code out] (run "scope" "--only" "fails" "--out" dir)]
    (is (= 0 code))
    (is (str/includes? out "One of four calls fails"))
    (is (= [:scope] (map :experiment (:experiments (store/read! (io/file dir "result.edn"))))))))

(defn twice "The user's function of these tests." [x] (* 2 x))

(deftest a-run-of-ones-own-writes-its-result-and-page
  (let [dir (temp-dir)
        [code out] (run "fan-out"
                        "--call"
                        (str `twice)
                        "--inputs"
                        (file-of "[1 2 :x]")
                        "--out"
                        dir
                        "--outcomes")]
    (is (= 0 code))
    (is (str/includes? out "3  ClassCastException"))
    (is (= ["report.html" "result.edn"] (sort (.list (io/file dir)))))
    (is (= 1 (:thrum.lab/version (store/read! (io/file dir "result.edn")))))
    (is (= 0 (first (run "compare" (str dir "/result.edn") (str dir "/result.edn")))))))

(deftest json-goes-to-standard-output-alone
  (let [[code out err] (run "fan-out"
                            "--call"
                            (str `twice)
                            "--inputs"
                            (file-of "[1]")
                            "--out"
                            (temp-dir)
                            "--json")]
    (is (= 0 code))
    (is (str/starts-with? out "{\"thrum.lab/version\":1"))
    (is (str/includes? err "Your function"))))

(defn noisy "A user's function that prints." [_]
  (println "noise")
  (.println System/out "noise by Java"))

(deftest what-the-users-function-prints-is-not-in-the-json
  (let [java-out (ByteArrayOutputStream.), before System/out]
    (System/setOut (PrintStream. java-out true))
    (try
      (let [[code out err] (run "fan-out" "--call" (str `noisy) "--inputs" (file-of "[1]")
                                "--contenders" "thrum-pmap,pool" "--out" (temp-dir) "--json")]
        (is (= 0 code))
        (is (not (str/includes? out "noise")))
        (is (= "" (str java-out)))
        (is (str/includes? err "noise")))
      (finally (System/setOut before)))))

(defn- ignores-interrupt?
  "True if this process was started with SIGINT ignored, in the background of a script say: its
  children ignore it too."
  []
  (let [status (io/file "/proc/self/status")]
    (if-let [[_ mask] (when (.exists status)
                        (re-find #"SigIgn:\s*(\w+)" (Files/readString (.toPath status))))]
      (bit-test (Long/parseUnsignedLong mask 16) 1)
      false)))

(defn- signal! [^Process process]
  (if (ignores-interrupt?)
    (.destroy process)
    (.waitFor (.start (ProcessBuilder. ^List (list "kill" "-INT" (str (.pid process))))))))

(defn- await-line
  [{:keys [^BlockingQueue lines]} pattern]
  (loop []
    (let [line (.poll lines 60 TimeUnit/SECONDS)]
      (cond (not (string? line)) (throw (ex-info "The lab ended, or said nothing for a minute"
                                                 {:waiting-for (str pattern)}))
            (re-find pattern line) line
            :else (recur)))))

(defn- below [^Process process]
  (vec (iterator-seq (.iterator (.descendants process)))))

(defn- ended? [^ProcessHandle handle]
  (.get (.onExit handle) 30 TimeUnit/SECONDS)
  (not (.isAlive handle)))

(deftest a-folder-that-cannot-be-written-into-is-wrong-arguments-before-the-run
  (let [file (file-of "")]
    (is (= [2 ""] (butlast (run "scope" "--out" file))))
    (is (re-find #"^The results cannot be written into .*--out"
                 (peek (run "scope" "--out" (str file "/below")))))))

(def ^:private quick-start ["-XX:+UseSerialGC" "-XX:TieredStopAtLevel=1"])

(deftest ctrl-c-keeps-what-was-measured-and-leaves-no-process
  (let [dir (temp-dir)
        command (into (child/java-command quick-start 'thrum.lab.main)
                      ["--only" "downloads" "--rate" "2000000" "--out" dir])
        {:keys [^Process process], :as lab} (child/start! command)]
    (try
      (await-line lab #"^downloads: clojure.core/map ")
      (let [servers (below process)]
        (signal! process)
        (is (.waitFor process 60 TimeUnit/SECONDS))
        (is (= (if (ignores-interrupt?) 143 130) (.exitValue process)))
        (is (seq servers))
        (is (every? ended? servers))
        (let [result (store/read! (io/file dir "result.edn"))]
          (is (true? (:interrupted? (first (:experiments result)))))
          (is (= 100 (get-in result [:experiments 0 :parts 0 :contenders 0 :samples 0 :ok]))))
        (is (str/includes? (slurp (io/file dir "report.html")) "Interrupted:")))
      (finally
        (.destroyForcibly process)))))

(deftest figures-are-judged-without-a-last-release-too
  (with-redefs [goals/figures (constantly [{:figure "left running", :value 0, :at-most 0}])]
    (is (re-find #"left running +0.00 +<= 0.00 +met" (#'main/goals-report {} {})))))
