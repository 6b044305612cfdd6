(ns thrum.test-kit.dump
  "Thread dumps that hold the virtual threads too."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str])
  (:import
   (com.sun.management HotSpotDiagnosticMXBean HotSpotDiagnosticMXBean$ThreadDumpFormat)
   (java.io File)
   (java.lang.management ManagementFactory)))

(set! *warn-on-reflection* true)

(defn write!
  "Writes a dump of all threads to target/thread-dumps/ under the working directory; returns the
  File."
  ^File [title]
  (let [file (io/file "target"
                      "thread-dumps"
                      (str (str/replace title #"[^\w.-]" "_") "-" (System/nanoTime) ".txt"))
        ^HotSpotDiagnosticMXBean bean (ManagementFactory/getPlatformMXBean HotSpotDiagnosticMXBean)]
    (io/make-parents file)
    (.dumpThreads bean (.getAbsolutePath file) HotSpotDiagnosticMXBean$ThreadDumpFormat/TEXT_PLAIN)
    file))

(defn print!
  "Writes a dump and prints where it is, the stack of thread, and the first lines of the dump."
  [title ^Thread thread]
  (let [file (write! title)]
    (println "Thread dump:" (str file))
    (println "The test's thread is at:")
    (run! #(println "    at" (str %)) (.getStackTrace thread))
    (with-open [reader (io/reader file)]
      (run! println (take 300 (line-seq reader))))))
