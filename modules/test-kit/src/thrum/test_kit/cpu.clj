(ns thrum.test-kit.cpu
  "The CPU time that this JVM has taken."
  (:require
   [clojure.string :as str])
  (:import
   (com.sun.management OperatingSystemMXBean)
   (java.lang.management ManagementFactory)
   (java.nio.file Files LinkOption Path)))

(set! *warn-on-reflection* true)

(defn ticks
  "Returns the CPU time in the text of Linux's /proc/PID/stat, in ticks of 10 ms: of the process,
  and of its children that have ended."
  [stat]
  (->> (str/split (subs stat (+ 2 (long (str/last-index-of stat ")")))) #" ")
       (drop 11)
       (take 4)
       (transduce (map parse-long) +)))

(defn ms
  "Returns the CPU time that this JVM has taken, in ms; on Linux with that of the processes it has
  started and that have ended."
  []
  (let [stat (Path/of "/proc/self/stat" (make-array String 0))
        ^OperatingSystemMXBean machine (ManagementFactory/getOperatingSystemMXBean)]
    (if (Files/exists stat (make-array LinkOption 0))
      (* 10 (long (ticks (Files/readString stat))))
      (quot (.getProcessCpuTime machine) 1000000))))
