(ns thrum.lab.cpu-time
  "The CPU time of this JVM's process. On Linux the JDK knows it in steps of 10 ms, the kernel in
  ns."
  (:import
   (com.sun.management OperatingSystemMXBean)
   (java.lang.foreign Arena FunctionDescriptor Linker Linker$Option MemoryLayout ValueLayout)
   (java.lang.invoke MethodHandle)
   (java.lang.management ManagementFactory)))

(set! *warn-on-reflection* true)

(def jvm-opts
  "The flags of a JVM that asks the kernel: without them JDK 24 and newer print a warning."
  ["--enable-native-access=ALL-UNNAMED"])

(def ^:private clock-process-cputime-id "Linux' CLOCK_PROCESS_CPUTIME_ID." (int 2))

(defn- clock-gettime
  "Returns the C library's function of that name: (int clock, struct timespec*) -> int."
  ^MethodHandle []
  (let [linker (Linker/nativeLinker)]
    (.downcallHandle
      linker
      (.get (.find (.defaultLookup linker) "clock_gettime"))
      (FunctionDescriptor/of ValueLayout/JAVA_INT
                             (into-array MemoryLayout [ValueLayout/JAVA_INT ValueLayout/ADDRESS]))
      (make-array Linker$Option 0))))

(defn- kernels-clock
  "Returns a function that asks the kernel, nil where that cannot be done."
  []
  (when (= "Linux" (System/getProperty "os.name"))
    (try
      (let [f (clock-gettime)
            ^java.lang.foreign.ValueLayout$OfLong long-layout ValueLayout/JAVA_LONG]
        (fn []
          (with-open [arena (Arena/ofConfined)]
            (let [^java.lang.foreign.MemorySegment timespec (.allocate arena 16 8)]
              (.invokeWithArguments f (object-array [clock-process-cputime-id timespec]))
              (+ (* 1000000000 (.get timespec long-layout 0)) (.get timespec long-layout 8))))))
      (catch Throwable _))))

(def ^:private ^OperatingSystemMXBean system (ManagementFactory/getOperatingSystemMXBean))

(def ^:private clock
  (delay (or (kernels-clock) #(.getProcessCpuTime system))))

(defn process-ns
  "Returns the CPU time that all threads of this process have used so far, in ns."
  ^long []
  (long (@clock)))
