(ns thrum.lab.channels.threads
  "Counts the threads of this JVM that are about something."
  (:import
   (com.sun.management HotSpotDiagnosticMXBean HotSpotDiagnosticMXBean$ThreadDumpFormat)
   (java.lang.management ManagementFactory)
   (java.nio.file Files Path)
   (java.nio.file.attribute FileAttribute)))

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

(defn- dump
  "Returns a dump of all threads, virtual ones too: only by that the JDK tells of those that no
  executor keeps."
  []
  (let [folder (Files/createTempDirectory "thrum-lab" (make-array FileAttribute 0))
        ^Path file (.resolve folder "threads.txt")
        ^HotSpotDiagnosticMXBean bean (ManagementFactory/getPlatformMXBean HotSpotDiagnosticMXBean)]
    (try
      (.dumpThreads bean
                    (str (.toAbsolutePath file))
                    HotSpotDiagnosticMXBean$ThreadDumpFormat/TEXT_PLAIN)
      (Files/readString file)
      (finally
        (Files/deleteIfExists file)
        (Files/deleteIfExists folder)))))

(defn- virtual-threads []
  (count (re-seq #"(?m)^#\d+ \".*\" virtual" (dump))))

(defn busy
  "Returns {:platform n :virtual n}, the live threads. Of platform threads those of a pool that idle
  are left out, and carriers."
  []
  {:platform (platform-threads), :virtual (virtual-threads)})
