(ns thrum.impl.starter
  "Executors that run each task on a fresh virtual thread.

  Where the JDK has one carrier, a few platform threads start them. A carrier looks at what others
  have started when it has nothing left that was started on it: virtual threads that each start
  another would have it to themselves. See decision 60."
  {:no-doc true}
  (:require
   [thrum.impl.callers :as callers]
   [thrum.impl.jdk :as jdk])
  (:import
   (java.util.concurrent Executor LinkedBlockingQueue ThreadFactory ThreadPoolExecutor TimeUnit)))

(set! *warn-on-reflection* true)

;; No delay: see thrum.impl.callers.
(def ^:private ^Executor starters
  (doto (ThreadPoolExecutor. 4 4 10 TimeUnit/SECONDS (LinkedBlockingQueue.)
                             (.factory (callers/daemon "thrum-starter")))
    (.allowCoreThreadTimeOut true)))

(defn clean-executor
  "Returns an executor of threads as jdk/clean-threads makes them."
  ^Executor [thread-name]
  (let [^ThreadFactory threads (jdk/clean-threads thread-name)]
    (if (= 1 (jdk/carriers))
      (reify
        Executor
        (execute [_ task]
          ;; Made here: where memory is out, its caller learns of it.
          (let [thread (.newThread threads task)]
            (.execute starters #(.start thread)))))
      (reify
        Executor
        (execute [_ task]
          (.start (.newThread threads task)))))))
