(ns thrum.faults.main
  "Twelve seeded faults and a healthy control, each in a JVM of its own: what thrum.watch finds,
  after how many ms and at which line, and what the doctor finds from outside. Prints a table.

      ./cljw -M:faults [JAVA_HOME [fault ...]]"
  (:require
   [clojure.edn :as edn]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.watch.doctor :as doctor])
  (:import
   (java.util List)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(def ^:private rules
  "In the order of the table: fault, and the rules that name it."
  [["monitor pin" #{:pinned}]
   ["native pin" #{:pinned}]
   ["class initialiser" #{:pinned :carrier-held}]
   ["FIFO read" #{:carrier-held}]
   ["CPU hog" #{:carrier-held}]
   ["cycle of locks" #{:cycle}]
   ["pool exhausted" #{:crowded}]
   ["leaked take" #{:leaked}]
   ["stuck scope" #{:stuck-scope}]
   ["deadline ignored" #{:deadline-passed}]
   ["known hang" #{:jdk-hang}]
   ["starved probe" #{:starved}]
   ["healthy" #{}]])

(def ^:private ^:const watched-ms 6000)

(defn- child ^Process [home fault]
  (let [^List command [(str home "/bin/java") "-Xmx256m" "-Djdk.reflect.useNativeAccessorOnly=true"
                       (str "-Djdk.trackAllThreads=" (not= "leaked take" fault))
                       "-cp" (System/getProperty "java.class.path")
                       "clojure.main" "-m" "thrum.faults.child" fault]]
    (.start (doto (ProcessBuilder. command)
              (.redirectErrorStream true)))))

(defn- read-form
  "Returns what a line says; nil for others, and for one that was cut off."
  [line]
  (when (re-find #"^(?::begun|\{.*\})$" line)
    (edn/read-string line)))

(defn- collect!
  "Adds what the child prints to the atom, until its output ends."
  [^Process child printed]
  (with-open [lines (io/reader (.getInputStream child))]
    (run! #(swap! printed conj %) (keep read-form (line-seq lines)))))

(defn- await-begun [printed]
  (loop [tries 1200]
    (when (and (pos? tries) (not-any? #{:begun} @printed))
      (Thread/sleep 50)
      (recur (dec tries)))))

(defn- by-doctor [^Process child]
  (try
    (:lints (doctor/examine (.pid child) {:no-recording true}))
    (catch Exception e [{:rule :failed, :sentence (ex-message e)}])))

(defn- observe
  "Returns [lints of the watch, lints of the doctor] of the fault on that JDK."
  [home fault]
  (let [child (child home fault), printed (atom [])
        reader (Thread. ^Runnable #(collect! child printed))]
    (try
      (.start reader)
      (await-begun printed)
      (Thread/sleep (long watched-ms))
      [(filterv map? @printed) (by-doctor child)]
      (finally
        (.destroyForcibly child)
        (.waitFor child 10 TimeUnit/SECONDS)
        (.join reader 10000)))))

(defn- cell [expected lints]
  (let [found (first (filter (comp expected :rule) lints))]
    (if found
      (str "yes" (when (:ms found) (str ", " (:ms found) " ms"))
           (when (:frame found) (str ", " (:frame found))))
      "no")))

(defn- others [expected lints]
  (str/join ", " (sort (map name (disj (into #{} (map :rule) (remove (comp expected :rule) lints))
                                       :jdk-hang)))))

(defn- row [home [fault expected]]
  (let [[watch doctor] (observe home fault)]
    (str "| " fault " | " (cell expected watch) " | " (cell expected doctor)
         " | " (others expected (concat watch doctor)) " |")))

(defn -main
  "Prints the table for the JDK of this home, or of this process; of these faults, or of all."
  [& [home & faults]]
  (let [home (or home (System/getProperty "java.home"))]
    (println (str "| fault | watch | doctor | besides |\n|---|---|---|---|"))
    (doseq [r rules :when (or (empty? faults) (some #{(first r)} faults))]
      (println (row home r))
      (flush))
    (System/exit 0)))
