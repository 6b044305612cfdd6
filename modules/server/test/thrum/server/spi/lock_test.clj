(ns thrum.server.spi.lock-test
  "What a wait for a lock leaves behind."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.spi.lock :as lock]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.io InterruptedIOException)
   (java.util.concurrent.locks ReentrantLock)))

(set! *warn-on-reflection* true)

(deftest an-interrupt-that-ends-the-wait-for-a-body-stays
  (let [reading (doto (ReentrantLock.) .lock)
        wait! #(try
                 (lock/lock! reading)
                 (catch InterruptedIOException _ (.isInterrupted (Thread/currentThread))))
        [^Thread thread outcome] (gate/start "reader" wait!)]
    (.interrupt thread)
    (is (= {:value true} (deref outcome 5000 :late)))))
