(ns thrum.one-carrier
  "The program of turn-test: threads that each start another, and one that the main thread starts."
  (:require
   [thrum.core :as t]
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent CountDownLatch)))

(set! *warn-on-reflection* true)

(def ^:private starts
  "By name: functions that start f on a virtual thread."
  {"give-way" (fn [f]
                (spi/give-way!)
                (.start (spi/virtual-thread "turn" f)))
   "future" (fn [f] (t/future (f)))
   "thread" (fn [f] (t/thread (f)))
   "fork" (fn [f] (t/with-scope [s] (t/fork s (f))))
   "pmapv" (fn [f] (t/pmapv 2 (fn [_] (f)) [1]))})

(defn -main
  "Has threads start each other for ever, the way of that name. Prints the name of the main
  thread's, or that it got no turn."
  [way]
  (let [start (starts way), turns (CountDownLatch. 1000), other (promise)
        turn (fn turn [] (.countDown turns) (start turn))]
    (.start (spi/virtual-thread "turn" turn))
    (.await turns)
    (.start (spi/virtual-thread "other" #(deliver other (.getName (Thread/currentThread)))))
    (println (deref other 10000 "starved"))
    (flush)
    (.halt (Runtime/getRuntime) 0)))
