(ns thrum.jdk
  "What differs from JDK to JDK and from one operating system to the next; no other namespace asks."
  (:import
   (java.lang.management ManagementFactory)
   (javax.management ObjectName)))

(set! *warn-on-reflection* true)

(defn virtual-thread
  "Returns an unstarted virtual thread of that name (JEP 444)."
  ^Thread [^String name ^Runnable body]
  (-> (Thread/ofVirtual) (.name name) (.unstarted body)))

(defn- file-descriptors
  "Returns {:open n, :max n} for this process, or nil where the operating system does not tell."
  []
  (try
    (let [server (ManagementFactory/getPlatformMBeanServer)
          system (ObjectName. ManagementFactory/OPERATING_SYSTEM_MXBEAN_NAME)]
      {:open (.getAttribute server system "OpenFileDescriptorCount")
       :max (.getAttribute server system "MaxFileDescriptorCount")})
    (catch javax.management.AttributeNotFoundException _ nil)))

(defn spare-descriptors
  "Returns how many more descriptors this process may use, less a reserve of a tenth and at least 16; from 1 to 4096."
  ^long []
  (if-some [{:keys [open max]} (file-descriptors)]
    (let [reserve (clojure.core/max 16 (quot max 10))]
      (clojure.core/max 1 (min 4096 (- max open reserve))))
    4096))
