(ns thrum.server.spi.lock
  "Locks around what may block, or waits for other locks."
  (:import
   (java.util.concurrent.locks Lock)))

(defmacro holding
  "Runs the body with the Lock of java.util.concurrent.locks held. Not a monitor: before JDK 24 a
  thread that blocks inside one, or waits for one, keeps a carrier thread."
  [lock & body]
  `(let [^Lock lock# ~lock]
     (.lock lock#)
     (try
       ~@body
       (finally (.unlock lock#)))))
