(ns thrum.blocking
  "Work of tests that blocks."
  (:import
   (java.util.concurrent CountDownLatch)))

(set! *warn-on-reflection* true)

(defn sleep-until-interrupted
  "Delivers to running, blocks until it is interrupted, delivers to ended, and throws."
  [running ended]
  (try
    (deliver running true)
    (Thread/sleep 60000)
    (finally (deliver ended true))))

(defn await-anyway
  "Waits for the latch as no interrupt can end it."
  [^CountDownLatch latch]
  (when-not (try (.await latch) true (catch InterruptedException _ false))
    (recur latch)))
