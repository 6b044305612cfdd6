(ns thrum.impl.callers
  "Platform threads, kept for a while, for calls that may block. Where virtual threads compute and
  keep every carrier, a virtual one would never run."
  {:no-doc true}
  (:require
   [thrum.impl.jdk])
  (:import
   (java.lang Thread$Builder$OfPlatform)
   (java.util.concurrent ExecutorService Executors)))

(set! *warn-on-reflection* true)

(defn daemon
  "Returns a builder of daemon platform threads of that name that inherit nothing."
  ^Thread$Builder$OfPlatform [name]
  (-> (Thread/ofPlatform)
      (.name ^String name)
      (.daemon)
      (.inheritInheritableThreadLocals false)))

;; No delay: one that has thrown, on a full stack for instance, throws for ever.
(def ^:private ^ExecutorService threads
  (Executors/newCachedThreadPool (.factory (daemon "thrum-alarm"))))

(defn call!
  "Has f called on a platform thread. Throws where none can be started."
  [^Runnable f]
  (.execute threads f))
