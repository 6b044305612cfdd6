(ns thrum.test-kit.gate
  "Bounded waiting for tests: a test waits for what it expects, never for a time to pass.")

(set! *warn-on-reflection* true)

(defn eventually
  "Returns the first truthy value of (f), called every 2 ms for at most ms; its last, falsy one when
  there is none. From one call to the next at most a second counts, where the whole process stood
  still, but after three times ms it ends."
  [ms f]
  (let [begun (System/nanoTime), most (* 1000000 (long ms))]
    (loop [left most, at begun]
      (or (f)
          (if (and (pos? left) (< (- at begun) (* 3 most)))
            (do
              (Thread/sleep 2)
              (let [now (System/nanoTime)]
                (recur (- left (min 1000000000 (- now at))) now)))
            (f))))))

(defn start
  "Starts f on a daemon platform thread with the caller's bindings; returns [thread outcome], where
  outcome is a promise of {:value v} or {:thrown t}."
  [^String thread-name f]
  (let [outcome (promise)
        body (bound-fn [] (deliver outcome (try {:value (f)} (catch Throwable t {:thrown t}))))
        thread (doto (Thread. ^Runnable body thread-name) (.setDaemon true) (.start))]
    [thread outcome]))

(defn- late
  [^Thread thread ms]
  (ex-info (str "Not done within " ms " ms")
           {:type :thrum.test-kit/late, :ms ms, :stack (vec (.getStackTrace thread))}))

(defn in-time
  "Returns (f), called on a thread of its own, or throws what it threw. After ms the thread is
  interrupted and ex-info of :type :thrum.test-kit/late, with the :stack it was in, is thrown."
  [ms f]
  (let [[^Thread thread outcome] (start "in-time" f)
        {:keys [value thrown] :as done} (deref outcome ms nil)]
    (when-not done
      (let [e (late thread ms)] (.interrupt thread) (throw e)))
    (if thrown (throw thrown) value)))
