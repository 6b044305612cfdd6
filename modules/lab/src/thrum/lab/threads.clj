(ns thrum.lab.threads
  "The threads of this JVM: a dump of all, and how many of them are not idle."
  (:require
   [clojure.java.io :as io]
   [thrum.lab.temporary :as temporary])
  (:import
   (com.sun.management HotSpotDiagnosticMXBean HotSpotDiagnosticMXBean$ThreadDumpFormat)
   (java.lang.management ManagementFactory)))

(set! *warn-on-reflection* true)

(defn- idle?
  "True of a pool's thread that waits for work, and of a carrier of virtual threads, which it is not
  for us to end."
  [^Thread thread stack]
  (or (= "jdk.internal.misc.CarrierThread" (.getName (class thread)))
      (some (fn [^StackTraceElement frame]
              (and (= "java.util.concurrent.ThreadPoolExecutor" (.getClassName frame))
                   (= "getTask" (.getMethodName frame))))
            stack)))

(defn- platform-threads []
  (count (remove (fn [[thread stack]] (idle? thread stack)) (Thread/getAllStackTraces))))

(defn dump
  "Returns a dump of all threads, virtual ones too. Nothing else shows those that no executor
  keeps."
  []
  (let [folder (temporary/folder! "thrum-lab")
        file (io/file folder "threads.txt")
        ^HotSpotDiagnosticMXBean bean (ManagementFactory/getPlatformMXBean HotSpotDiagnosticMXBean)]
    (try
      (.dumpThreads bean (str file) HotSpotDiagnosticMXBean$ThreadDumpFormat/TEXT_PLAIN)
      (slurp file)
      (finally (temporary/delete! folder)))))

(defn- virtual-threads []
  (count (re-seq #"(?m)^#\d+ \".*\" virtual" (dump))))

(defn busy
  "Returns {:platform n :virtual n}, the live threads. Of platform threads those of a pool that idle
  are left out, and carriers."
  []
  {:platform (platform-threads), :virtual (virtual-threads)})
