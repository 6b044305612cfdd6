(ns thrum.one-carrier
  "The program of turn-test: threads that each start another, and one that the main thread starts."
  (:require
   [thrum.core :as t]
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent CountDownLatch TimeUnit)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(def ^:private starts
  "By name: functions that start f on a virtual thread."
  {"give-way" (fn [f]
                (.start (spi/virtual-thread "turn" #(do (spi/give-way!) (f)))))
   "future" (fn [f] (t/future (f)))
   "thread" (fn [f] (t/thread (f)))
   "unpark" (fn [f] (LockSupport/unpark (t/thread (f))))
   "fork" (fn [f] (t/with-scope [s] (t/fork s (f))))
   "pmapv" (fn [f] (t/pmapv 2 (fn [_] (f)) [1]))})

(defn- hold-in-turn!
  "Has two threads come to a lock: one starts a thread while it holds it, one waits for it in
  synchronized."
  []
  (let [monitor (Object.), started (delay (t/future :started)), both (CountDownLatch. 2)]
    ;; A scout is due.
    (Thread/sleep 3)
    (.start (spi/virtual-thread "holds" #(do @started (.countDown both))))
    (.start (spi/virtual-thread "waits" #(do (locking monitor @started) (.countDown both))))
    (.await both 2 TimeUnit/SECONDS)))

(defn- start-for-ever!
  "Has so many threads each start another for ever, the way of that name."
  [way n]
  (let [start (starts way), turns (CountDownLatch. (max 1000 (* 2 (long n))))
        turn (fn turn [] (.countDown turns) (start turn))]
    (.start (spi/virtual-thread "turn" #(dotimes [_ n] (start turn))))
    (.await turns)))

(defn -main
  "Has threads start each other for ever, the way of that name, by \"future\" many: \"many\"; or
  come to a lock: \"lock\". Prints the name of the main thread's, or that it got no turn."
  [way]
  (case way
    "lock" (dotimes [_ 5] (hold-in-turn!))
    "many" (start-for-ever! "future" 30000)
    (start-for-ever! way 1))
  (let [other (promise)]
    (.start (spi/virtual-thread "other" #(deliver other (.getName (Thread/currentThread)))))
    (println (deref other 30000 "starved"))
    (flush)
    (.halt (Runtime/getRuntime) 0)))
