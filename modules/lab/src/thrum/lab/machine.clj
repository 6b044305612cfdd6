(ns thrum.lab.machine
  "Facts about the machine, the JVM and the source that a figure is worth nothing without."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.lab.child :as child]
   [thrum.lab.proc :as proc])
  (:import
   (clojure.lang ExceptionInfo)
   (com.sun.management OperatingSystemMXBean UnixOperatingSystemMXBean)
   (java.io File)
   (java.lang.management GarbageCollectorMXBean ManagementFactory)))

(set! *warn-on-reflection* true)

(defn- output
  "Returns what a command prints, trimmed; nil if it cannot be run, fails, or takes longer than two
  seconds."
  [& command]
  (try
    (let [{:keys [exit output]} (child/run-to-end! command {} 2000)]
      (when (zero? exit) (not-empty (str/trim output))))
    (catch ExceptionInfo _)))

(defn- os-bean ^OperatingSystemMXBean []
  (ManagementFactory/getOperatingSystemMXBean))

(defn cpus
  "Returns how many processors the JVM may use."
  []
  (.availableProcessors (Runtime/getRuntime)))

(defn max-files
  "Returns how many files and sockets this process may have open; nil where the OS has no such
  figure."
  []
  (let [bean (os-bean)]
    (when (instance? UnixOperatingSystemMXBean bean)
      (.getMaxFileDescriptorCount ^UnixOperatingSystemMXBean bean))))

(defn- cpu-model []
  (let [info (proc/text "/proc/cpuinfo")]
    (or (when info
          (second (re-find #"(?m)^model name\s*:\s*(.+)$" info)))
        (output "sysctl" "-n" "machdep.cpu.brand_string")
        (System/getProperty "os.arch"))))

(defn- gigabytes [bytes]
  (/ (Math/round (/ bytes 1e8)) 10.0))

(defn- git []
  (when-let [sha (output "git" "rev-parse" "--short=12" "HEAD")]
    {:sha sha, :changed? (some? (output "git" "status" "--porcelain"))}))

(defn- jdk
  []
  (let [runtime (ManagementFactory/getRuntimeMXBean)]
    {:version (System/getProperty "java.runtime.version")
     :vendor (System/getProperty "java.vendor")
     :vm (.getVmName runtime)
     :flags (vec (.getInputArguments runtime))
     :collectors (mapv GarbageCollectorMXBean/.getName
                       (ManagementFactory/getGarbageCollectorMXBeans))
     :max-heap-gb (gigabytes (.maxMemory (Runtime/getRuntime)))}))

(defn hard-file-limit?
  "True if a shell here can start a process with a hard limit of n open files."
  [n]
  (= (str n) (output "/bin/sh" "-c" (str "ulimit -n " n " && ulimit -Hn"))))

(defn on-path?
  "True if a program of that name can be run here: if a folder of the environment's path has it."
  [program]
  (boolean (some #(let [file (io/file % program)] (and (.isFile file) (.canExecute file)))
                 (remove str/blank?
                         (str/split (str (System/getenv "PATH"))
                                    (re-pattern File/pathSeparator))))))

(defn facts
  "Returns the facts as EDN: :cpu :cpus :memory-gb :load :os :jdk :clojure :ulimit {:open-files
  :hard} :git (nil without one). Runs a few small commands; takes some tens of ms."
  []
  {:cpu (cpu-model)
   :cpus (cpus)
   :memory-gb (gigabytes (.getTotalMemorySize (os-bean)))
   :load (.getSystemLoadAverage (os-bean))
   :os (str/join " " (map #(System/getProperty %) ["os.name" "os.version" "os.arch"]))
   :jdk (jdk)
   :clojure (clojure-version)
   :ulimit {:open-files (max-files), :hard (output "/bin/sh" "-c" "ulimit -Hn")}
   :git (git)})
