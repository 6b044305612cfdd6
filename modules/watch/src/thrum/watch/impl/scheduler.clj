(ns thrum.watch.impl.scheduler
  "The scheduler of virtual threads: its figures, and whether it starts what it is given."
  {:no-doc true}
  (:import
   (java.lang.management ManagementFactory)
   (java.util.concurrent.atomic AtomicBoolean AtomicLong)
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

;; One thread at a time is under way: while the scheduler is stuck, none is added. went-on: when
;; other threads were last seen to start or end. unsent: true where its thread could not be started.
(deftype Probe [^AtomicLong begun ^AtomicLong started ^AtomicLong went-on ^AtomicBoolean unsent])

(defn probe
  "Returns a probe of the scheduler: a virtual thread that notes when it starts, time and again."
  []
  (Probe. (AtomicLong.) (AtomicLong.) (AtomicLong. (System/nanoTime)) (AtomicBoolean.)))

(def ^:private ^:const probe-ns 100000000)

(defn- start! [f]
  (.start (.name (Thread/ofVirtual) "thrum-watch-probe") f))

(defn- send! [^Probe probe]
  (try
    (start! #(.set ^AtomicLong (.-started probe) (System/nanoTime)))
    ;; No memory or no thread may be had now. It counts as late, and the next call tries again.
    (catch Throwable _ (.set ^AtomicBoolean (.-unsent probe) true))))

(defn- send-again! [^Probe probe]
  (when (.compareAndSet ^AtomicBoolean (.-unsent probe) true false)
    (send! probe)))

(defn went-on!
  "Notes that a carrier has become free by now: what is queued starts, if not yet the probe's
  thread, which waits behind the others."
  [^Probe probe]
  (.set ^AtomicLong (.-went-on probe) (System/nanoTime)))

(defn late-ms
  "Returns for how many ms the scheduler has started neither the probe's thread nor, as far as
  went-on! says, another; 0 where the probe's has started, and then sends another, at most ten a
  second. One that cannot be started is late until one can. at: now, a value of System/nanoTime."
  ([probe] (late-ms probe (System/nanoTime)))
  ([^Probe probe ^long at]
   (let [^AtomicLong begun (.-begun probe)
         last-begun (.get begun), started (.get ^AtomicLong (.-started probe))]
     (cond
       (neg? (- started last-begun))
       (let [went-on (.get ^AtomicLong (.-went-on probe))]
         (send-again! probe)
         (quot (max 0 (min (- at last-begun) (- at went-on))) 1000000))

       (and (pos? last-begun) (< (- at last-begun) (long probe-ns))) 0
       :else (do (when (.compareAndSet begun last-begun at) (send! probe)) 0)))))
