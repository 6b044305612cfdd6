(ns thrum.one-carrier
  "The program of starter-test: threads that each start another, and one that the main thread
  starts."
  (:require
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent CountDownLatch)))

(set! *warn-on-reflection* true)

(defn -main
  "Prints whether the main thread's got its turn, and the name of its thread."
  []
  (let [threads (spi/clean-executor "turn"), turns (CountDownLatch. 10000), other (promise)]
    (.execute threads
              (fn turn []
                (.countDown turns)
                (.execute threads turn)))
    (.await turns)
    (.start (spi/virtual-thread "other" #(deliver other (.getName (Thread/currentThread)))))
    (println (deref other 10000 "starved"))
    (flush)
    (.halt (Runtime/getRuntime) 0)))
