(ns thrum.one-carrier
  "The program of turn-test: threads that each start another, and one that the main thread starts."
  (:require
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent CountDownLatch)))

(set! *warn-on-reflection* true)

(defn -main
  "Prints the name of the main thread's, or that it got no turn."
  []
  (let [turns (CountDownLatch. 10000), other (promise)]
    (letfn [(turn []
              (.countDown turns)
              (spi/give-way!)
              (.start (spi/virtual-thread "turn" turn)))]
      (turn))
    (.await turns)
    (.start (spi/virtual-thread "other" #(deliver other (.getName (Thread/currentThread)))))
    (println (deref other 10000 "starved"))
    (flush)
    (.halt (Runtime/getRuntime) 0)))
