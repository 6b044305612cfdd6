(ns thrum.lab.benchmarks.faults.experiment
  "Twelve seeded faults and a healthy control, each in a JVM of its own: which of jstack, the JDK's
  dump, Micrometer's binder, thrum.watch and the doctor find them, and whether they name the line.
  On this JDK, and on the one that THRUM_JDK21 names."
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.benchmarks.faults.tools :as tools]
   [thrum.watch.doctor :as doctor])
  (:import
   (java.io IOException Writer)
   (java.util List)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(def faults
  "In the order of the table: the fault; the rules that name it; the function, as Clojure munges it,
  whose frame is the line to look at."
  [["monitor pin" #{:pinned} "deaf_sleep"]
   ["native pin" #{:pinned} "deaf_sleep"]
   ["class initialiser" #{:pinned :carrier-held} "deaf_sleep"]
   ["FIFO read" #{:carrier-held} "fifo_read"]
   ["CPU hog" #{:carrier-held} "spin"]
   ["cycle of locks" #{:cycle} "cycle_of_locks"]
   ["pool exhausted" #{:crowded} "query"]
   ["leaked take" #{:leaked} "take_alone"]
   ["stuck scope" #{:stuck-scope} "deaf_sleep"]
   ["deadline ignored" #{:deadline-passed} "deaf_sleep"]
   ["known hang" #{:jdk-hang} nil]
   ["starved probe" #{:starved} "spin"]
   ["healthy" #{} nil]])

(defn- jobs
  "Returns a job for each fault and JDK; the quick form has one."
  [size]
  (if (= :quick size)
    [{:fault "stuck scope", :jdk :own}]
    (for [jdk (cond-> [:own] (System/getenv "THRUM_JDK21") (conj :jdk21)), [fault] faults]
      {:fault fault, :jdk jdk})))

;; In the child of the benchmark, which starts the faulty JVM

(defn- home [jdk]
  (if (= :jdk21 jdk) (System/getenv "THRUM_JDK21") (System/getProperty "java.home")))

(def ^:private ^:const watched-ms 6000)

(defn- start! ^Process [home fault]
  (let [^List command [(str home "/bin/java") "-Xmx256m" "-Djdk.reflect.useNativeAccessorOnly=true"
                       (str "-Djdk.trackAllThreads=" (not= "leaked take" fault))
                       "-cp" (System/getProperty "java.class.path")
                       "clojure.main" "-m" "thrum.lab.benchmarks.faults.child" fault]]
    (.start (doto (ProcessBuilder. command)
              (.redirectErrorStream true)))))

(defn- read-form
  "Returns what a line says; nil for others, and for one that was cut off."
  [line]
  (when (re-find #"^(?::begun|\{.*\})$" line)
    (edn/read-string line)))

(defn- collect!
  "Adds what the process prints to the atom, until its output ends, or the process is destroyed."
  [^Process process printed]
  (with-open [lines (io/reader (.getInputStream process))]
    (try
      (run! #(swap! printed conj %) (keep read-form (line-seq lines)))
      ;; Its streams are closed when it is destroyed.
      (catch IOException _))))

(defn- await-printed
  "Returns the first of what was printed that f takes; nil after a minute."
  [printed f]
  (loop [tries 1200]
    (or (some f @printed)
        (when (pos? tries)
          (Thread/sleep 50)
          (recur (dec tries))))))

(defn- read-meters [^Process process printed]
  (doto ^Writer (io/writer (.getOutputStream process))
    (.write "\n")
    (.flush))
  (await-printed printed :meters))

(defn- examined [^Process process]
  (try
    (doctor/examine (.pid process) {:no-recording true})
    (catch Exception e {:lints [{:rule :failed, :sentence (ex-message e)}]})))

(defn- found
  "Returns {:found, :ms, :frame, :besides} of lints; expected: the rules that name the fault."
  [expected lints]
  (let [{:keys [ms frame] :as lint} (first (filter (comp expected :rule) lints))]
    {:found (some? lint), :ms ms, :frame frame
     :besides (vec (sort (disj (into #{} (map :rule) (remove (comp expected :rule) lints))
                           :jdk-hang)))}))

(defn- look [home ^Process process printed expected function]
  (let [pid (.pid process), in? #(and function (tools/frame? % function))
        watch (filterv :rule (filter map? @printed)), {:keys [jdk lints]} (examined process)]
    {:jdk jdk
     :watch (found expected watch)
     :doctor (found expected lints)
     :jstack (in? (tools/jstack home pid))
     :dump (in? (tools/dump home pid))
     :meters (read-meters process printed)}))

(defn measure
  "Returns what each of the tools says of the job's fault."
  [{:keys [fault jdk]}]
  (let [[_ expected function] (first (filter (comp #{fault} first) faults))
        home (home jdk), process (start! home fault), printed (atom [])
        reader (Thread. ^Runnable #(collect! process printed))]
    (try
      (.start reader)
      (await-printed printed #{:begun})
      (Thread/sleep (long watched-ms))
      (look home process printed expected function)
      (finally
        (.destroyForcibly process)
        (.waitFor process 10 TimeUnit/SECONDS)
        (.join reader 10000)))))

;; In the parent

(defn- rows [results]
  (for [{:keys [job runs]} results]
    (merge job {:version (:jdk (first runs))} (dissoc (first runs) :jdk))))

(defn- finding [{:keys [found ms frame]}]
  (if found
    (str/join ", " (remove nil? ["yes" (when ms (str ms " ms")) (when-not frame "no line")]))
    "no"))

;; Where nothing is wrong too.
(def ^:private always
  (into #{} (map #(str "jvm.threads.virtual." %)) ["live" "parallelism" "pool.size"]))

(defn- moved
  "Returns the meters that are not 0, without those that never are."
  [meters]
  (if meters
    (str/join ", " (for [[name value] (sort meters)
                         :when (and (pos? (double value))
                                    (not (always name)))]
                     (str (str/replace name "jvm.threads.virtual." "") " " (long value))))
    "not on the class path"))

(def ^:private columns
  [{:heading "fault", :left? true, :show :fault}
   {:heading "JDK", :left? true, :show :version}
   {:heading "jstack", :left? true, :show #(if (:jstack %) "its stack" "")}
   {:heading "dump_to_file", :left? true, :show #(if (:dump %) "its stack" "")}
   {:heading "Micrometer", :left? true, :show (comp moved :meters)}
   {:heading "watch", :left? true, :show (comp finding :watch)}
   {:heading "doctor", :left? true, :show (comp finding :doctor)}
   {:heading "besides", :left? true
    :show #(str/join ", " (map name (distinct (mapcat :besides ((juxt :watch :doctor) %)))))}])

(def experiment
  (benchmark/experiment
    {:name :bench/faults
     :doc "which tools find twelve seeded faults, and name the line"
     :title "Faults"
     :about (str "Twelve seeded faults, each in a JVM of its own, and a healthy control; ms from "
                 "the fault's begin to the watch's sentence. jstack and the dump print stacks, and "
                 "say nothing of what is wrong.")
     :jvm-opts ["-Xmx512m" "--add-exports=jdk.attach/sun.tools.attach=ALL-UNNAMED"]
     :jobs jobs
     :jvms 1
     :only-by-name? true
     :measure `measure
     :rows rows
     :columns columns}))
