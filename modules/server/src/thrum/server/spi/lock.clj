(ns thrum.server.spi.lock
  "Locks around what may block, or waits for other locks."
  (:import
   (java.io InterruptedIOException)
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

(defn lock!
  "Takes the lock of those who read a request's body. Where the calling thread is interrupted as it
  waits, throws InterruptedIOException; it stays interrupted."
  [^Lock reading]
  (try
    (when-not (.tryLock reading) (.lockInterruptibly reading))
    (catch InterruptedException e
      (.interrupt (Thread/currentThread))
      (throw (doto (InterruptedIOException. "Another thread reads the request's body")
               (.initCause e))))))

(defmacro alone
  "Runs the body while no other thread reads the request's body; see lock!."
  [reading & body]
  `(let [^Lock lock# ~reading]
     (lock! lock#)
     (try
       ~@body
       (finally (.unlock lock#)))))
