(ns thrum.watch.impl.scheduler
  "The scheduler of virtual threads: its figures, and whether it starts what it is given."
  {:no-doc true}
  (:import
   (java.lang.management ManagementFactory)
   (java.util.concurrent.atomic AtomicLong)
   (javax.management InstanceNotFoundException ObjectName)))

(set! *warn-on-reflection* true)

(def ^:private scheduler-bean (ObjectName. "jdk.management:type=VirtualThreadScheduler"))

(defn- attribute [name]
  (.getAttribute (ManagementFactory/getPlatformMBeanServer) scheduler-bean name))

(defn figures
  "Returns {:parallelism, :mounted, :queued}, as the JDK has them since 24; before, :parallelism
  alone."
  []
  (try
    {:parallelism (attribute "Parallelism")
     :mounted (attribute "MountedVirtualThreadCount")
     :queued (attribute "QueuedVirtualThreadCount")}
    (catch InstanceNotFoundException _
      {:parallelism (or (Long/getLong "jdk.virtualThreadScheduler.parallelism")
                        (.availableProcessors (Runtime/getRuntime)))})))

;; One thread at a time is under way: while the scheduler is stuck, none is added.
(deftype Probe [^AtomicLong begun ^AtomicLong started])

(defn probe
  "Returns a probe of the scheduler: a virtual thread that notes when it starts, time and again."
  []
  (Probe. (AtomicLong.) (AtomicLong.)))

(def ^:private ^:const probe-ns 100000000)

(defn- send! [^Probe probe]
  (-> (Thread/ofVirtual)
      (.name "thrum-watch-probe")
      (.start (fn [] (.set ^AtomicLong (.-started probe) (System/nanoTime))))))

(defn late-ms
  "Returns for how many ms the scheduler has not started the probe's thread; 0 where it has, and
  then sends another, at most ten a second. at: now, a value of System/nanoTime."
  ([probe] (late-ms probe (System/nanoTime)))
  ([^Probe probe ^long at]
   (let [^AtomicLong begun (.-begun probe)
         last-begun (.get begun), started (.get ^AtomicLong (.-started probe))]
     (cond
       (neg? (- started last-begun)) (quot (- at last-begun) 1000000)
       (and (pos? last-begun) (< (- at last-begun) (long probe-ns))) 0
       :else (do (when (.compareAndSet begun last-begun at) (send! probe)) 0)))))
