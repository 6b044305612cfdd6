(ns thrum.test-kit.uncaught
  "What no thread catches.")

(set! *warn-on-reflection* true)

(defn reporting
  "Returns (f), during which (report thread throwable) stands in place of the default uncaught
  exception handler."
  [report f]
  (let [before (Thread/getDefaultUncaughtExceptionHandler)]
    (Thread/setDefaultUncaughtExceptionHandler
      (reify Thread$UncaughtExceptionHandler (uncaughtException [_ thread t] (report thread t))))
    (try
      (f)
      (finally (Thread/setDefaultUncaughtExceptionHandler before)))))
