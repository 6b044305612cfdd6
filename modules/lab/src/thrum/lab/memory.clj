(ns thrum.lab.memory
  "What this JVM uses: heap, resident memory, and the heap around each garbage collection."
  (:require
   [clojure.string :as str]
   [thrum.lab.proc :as proc])
  (:import
   (com.sun.management GarbageCollectionNotificationInfo GcInfo)
   (java.lang.management ManagementFactory MemoryPoolMXBean MemoryType MemoryUsage)
   (java.util.concurrent.atomic AtomicLong)
   (javax.management Notification NotificationEmitter NotificationListener)))

(set! *warn-on-reflection* true)

(defn- status-bytes
  "Returns a field of /proc/self/status in bytes, or nil."
  [field]
  (some->> (proc/text "/proc/self/status")
           str/split-lines
           (some #(re-matches (re-pattern (str field ":\\s+(\\d+) kB")) %))
           second
           parse-long
           (* 1024)))

(defn rss
  "Returns the resident memory in bytes; nil where the system does not say."
  []
  (status-bytes "VmRSS"))

(defn peak-rss
  "Returns the highest resident memory so far, in bytes; nil where the system does not say."
  []
  (status-bytes "VmHWM"))

(defn heap
  "Returns the bytes of heap in use, garbage included."
  []
  (.getUsed (.getHeapMemoryUsage (ManagementFactory/getMemoryMXBean))))

(defn settled
  "Collects garbage until the JVM has had the time to give pages back. Returns {:heap bytes, :rss
  bytes or nil}."
  []
  (dotimes [_ 3]
    (System/gc)
    (Thread/sleep 250))
  {:heap (heap), :rss (rss)})

;; The heap around each collection

(defn- heap-pools []
  (into #{}
        (comp (filter #(= MemoryType/HEAP (MemoryPoolMXBean/.getType %)))
              (map MemoryPoolMXBean/.getName))
        (ManagementFactory/getMemoryPoolMXBeans)))

(defn- used [pools usages]
  (transduce (comp (filter (comp pools key)) (map #(MemoryUsage/.getUsed (val %)))) + 0 usages))

(defn- raise! [^AtomicLong highest n]
  (.accumulateAndGet highest (long n) max))

(defn- gc-info ^GcInfo [^Notification notification]
  (.getGcInfo (GarbageCollectionNotificationInfo/from (.getUserData notification))))

(defn- listener
  [before after]
  (let [pools (heap-pools)]
    (reify
      NotificationListener
      (handleNotification [_ notification _]
        (when (= GarbageCollectionNotificationInfo/GARBAGE_COLLECTION_NOTIFICATION
                 (.getType notification))
          (let [info (gc-info notification)]
            (raise! before (used pools (.getMemoryUsageBeforeGc info)))
            (raise! after (used pools (.getMemoryUsageAfterGc info)))))))))

(defn watch-collections!
  "From now on notes the heap before and after each collection. Returns a function without arguments
  that returns the highest so far, {:before bytes, :after bytes}; 0 before the first collection."
  []
  (let [before (AtomicLong.), after (AtomicLong.), listener (listener before after)]
    (run! #(NotificationEmitter/.addNotificationListener % listener nil nil)
          (ManagementFactory/getGarbageCollectorMXBeans))
    (fn [] {:before (.get before), :after (.get after)})))
