(ns thrum.cluster.engine.loops
  "Thread factories of JGroups whose threads run something else than the loops that it gives them."
  {:no-doc true}
  (:import
   (org.jgroups.util ThreadFactory)))

(set! *warn-on-reflection* true)

(defn threads
  "Returns the factory with (f loop), a Runnable, for the loop of each thread."
  ^ThreadFactory [^ThreadFactory factory f]
  (reify ThreadFactory
    (newThread [_ loop] (.newThread factory ^Runnable (f loop)))
    (newThread [_ loop name] (.newThread factory ^Runnable (f loop) name))
    (useVirtualThreads [_] (.useVirtualThreads factory))
    (setPattern [_ pattern] (.setPattern factory pattern))
    (setIncludeClusterName [_ include?] (.setIncludeClusterName factory include?))
    (setClusterName [_ name] (.setClusterName factory name))
    (setAddress [_ address] (.setAddress factory address))
    (renameThread [_ name thread] (.renameThread factory name thread))))
