(ns thrum.server.engine.jetty.lock
  "Locks around calls of Jetty's."
  (:import
   (java.util.concurrent.locks ReentrantLock)))

(set! *warn-on-reflection* true)

(defmacro holding
  "Runs the body with the lock held. Not a monitor: Jetty takes locks of its own in there, and
  before JDK 24 threads that wait for those inside a monitor keep their carriers, also from the
  thread whose turn it is."
  [lock & body]
  `(let [^ReentrantLock lock# ~lock]
     (.lock lock#)
     (try
       ~@body
       (finally (.unlock lock#)))))
