(ns thrum.impl.starter
  "Executors that run each task on a fresh virtual thread, also where the JDK has one carrier.

  A carrier looks at what other threads have started when nothing is left that was started on it:
  virtual threads that each start another would have it to themselves. So a scout is started by a
  platform thread every few ms; until it has had its turn, platform threads start all others as
  well, and the carrier comes to an end of its own. See decision 60."
  {:no-doc true}
  (:require
   [thrum.impl.callers :as callers]
   [thrum.impl.jdk :as jdk])
  (:import
   (java.util.concurrent Executor LinkedBlockingQueue ThreadFactory ThreadPoolExecutor TimeUnit)
   (java.util.concurrent.atomic AtomicBoolean AtomicLong)))

(set! *warn-on-reflection* true)

;; No delay: see thrum.impl.callers.
(def ^:private ^Executor starters
  (doto (ThreadPoolExecutor. 4 4 10 TimeUnit/SECONDS (LinkedBlockingQueue.)
                             (.factory (callers/daemon "thrum-starter")))
    (.allowCoreThreadTimeOut true)))

(defn- start-elsewhere!
  "Has a platform thread start the thread; starts it here where there is none to be had."
  [^Thread thread]
  (try
    (.execute starters #(.start thread))
    (catch Throwable _
      (.start thread))))

(def ^:private pause-ns "From one scout to the next." 2000000)

(def ^:private ^AtomicBoolean scouting (AtomicBoolean.))
(def ^:private ^AtomicLong returned-ns (AtomicLong. (System/nanoTime)))

(defn- return! []
  (.set returned-ns (System/nanoTime))
  (.set scouting false))

(defn- send-scout!
  "Returns true when it is on its way. One that cannot be started is back: while it is awaited, all
  others start elsewhere."
  []
  (try
    (.execute starters #(try
                          (.start (jdk/clean-thread "thrum-scout" return!))
                          (catch Throwable _ (return!))))
    true
    (catch Throwable _
      (return!)
      false)))

(defn- others-wait?
  "True until the scout has had its turn; sends it where it is time to."
  []
  (or (.get scouting)
      (and (< (long pause-ns) (- (System/nanoTime) (.get returned-ns)))
           (.compareAndSet scouting false true)
           (send-scout!))))

(defn- start-in-turn! [^Thread thread]
  (if (others-wait?)
    (start-elsewhere! thread)
    (.start thread)))

(defn clean-executor
  "Returns an executor of threads as jdk/clean-threads makes them."
  ^Executor [thread-name]
  (let [^ThreadFactory threads (jdk/clean-threads thread-name)]
    (if (= 1 (jdk/carriers))
      (reify
        Executor
        (execute [_ task]
          (start-in-turn! (.newThread threads task))))
      (reify
        Executor
        (execute [_ task]
          (.start (.newThread threads task)))))))
