(ns thrum.jdbc.uncaught
  "What comes to a thread's uncaught exception handler.")

(set! *warn-on-reflection* true)

(defn during
  "Calls f. Returns [its value, what came to the handler of this thread meanwhile]."
  [f]
  (let [seen (atom []), thread (Thread/currentThread)
        before (.getUncaughtExceptionHandler thread)]
    (.setUncaughtExceptionHandler thread
                                  (reify
                                    Thread$UncaughtExceptionHandler
                                    (uncaughtException [_ _ t] (swap! seen conj t))))
    (let [value (try (f) (finally (.setUncaughtExceptionHandler thread before)))]
      [value @seen])))
