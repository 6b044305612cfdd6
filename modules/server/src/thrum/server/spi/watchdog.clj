(ns thrum.server.spi.watchdog
  "A thread that looks after clients: the one timer for all that are silent or slow."
  (:import
   (java.util Map)))

(set! *warn-on-reflection* true)

(defn period-ms
  "Returns how often to look so that no timeout, in ms, is late by more than a quarter of itself, or
  by more than 250."
  ^long [timeouts-ms]
  (-> (long (reduce min timeouts-ms)) (quot 4) (max 5) (min 250)))

(defn start
  "Calls (look) every period-ms, also after it has thrown. Returns the thread, which ends when it is
  interrupted. It is no virtual one: it looks also where every carrier is stuck."
  ^Thread [^String thread-name period-ms look]
  (-> (Thread/ofPlatform) .daemon (.name thread-name) (.inheritInheritableThreadLocals false)
      (.start #(try
                 (while true
                   (Thread/sleep (long period-ms))
                   ;; No thread or no memory may be had now: the next look may find some.
                   (try
                     (look)
                     (catch InterruptedException e (throw e))
                     (catch Throwable _)))
                 (catch InterruptedException _)))))

(defn stop!
  "Ends the thread, and returns when it has ended."
  [^Thread watchdog]
  (.interrupt watchdog)
  (.join watchdog))

(defn starting
  "Returns the value of (f), which starts what the watchdog (nil: none) looks after. Where f throws,
  the watchdog ends."
  [^Thread watchdog f]
  (try
    (f)
    (catch Throwable t
      (some-> watchdog .interrupt)
      (throw t))))

(defn unanswered-ms
  "Returns for how many ms the connection's client has sent what is no request, empty lines; nil
  where it has not. answered: a number that changes with each request. received: one that grows as
  bytes come. seen: a map of this function's, by connection: both, and since when there are more
  bytes, in ns."
  [^Map seen connection answered received]
  (let [now (System/nanoTime)
        [answered-then received-then since] (.get seen connection)]
    (cond
      (not= answered answered-then) (do (.put seen connection [answered received nil]) nil)
      since (quot (- now (long since)) 1000000)
      (< (long received-then) (long received))
      (do (.put seen connection [answered received now]) 0))))
