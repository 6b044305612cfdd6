(ns thrum.virtual-clock
  "A machine for tests: virtual threads on one carrier, in an order that a seed determines, and a
  clock that jumps to the next event when no thread can run. The same seed gives the same run. Needs
  --add-opens=java.base/java.lang=ALL-UNNAMED."
  (:require
   [thrum.impl.clock :as clock]
   [thrum.impl.jdk :as jdk])
  (:import
   (java.util ArrayList Random TreeMap)
   (java.util.concurrent Executor)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(def ^:private ^java.lang.reflect.Method new-virtual-thread
  "JDK-internal: no public API gives a virtual thread a scheduler of its own (21 to 25)."
  (delay
    (doto (.getDeclaredMethod (Class/forName "java.lang.ThreadBuilders") "newVirtualThread"
                              (into-array Class [Executor String Integer/TYPE Runnable]))
      (.setAccessible true))))

(definterface IMachine
  (^Thread thread [^String name ^Runnable body])
  (^Object plan [^long nanos wake])
  (^Object unplan [event])
  (^Runnable nextRunnable [])
  (nextEvent [])
  (^long planned [])
  (^java.util.List threads []))

;; runnable: continuations of threads that can run. events: what happens when, by [nanos, number].
(deftype Machine [^Random random ^ArrayList runnable ^TreeMap events ^ArrayList threads
                  ^:volatile-mutable ^long now ^:unsynchronized-mutable ^long made]
  Executor
  (execute [_ continuation] (locking runnable (.add runnable continuation)))
  IMachine
  (thread [this name body]
    (let [thread (.invoke ^java.lang.reflect.Method @new-virtual-thread
                          nil
                          (object-array [this name (int 0) body]))]
      (.add threads thread)
      thread))
  (plan [_ nanos wake]
    (set! made (inc made))
    (doto [nanos made] (as-> event (.put events event wake))))
  (unplan [_ event] (.remove events event))
  (nextRunnable [_]
    (locking runnable
      (when-not (.isEmpty runnable) (.remove runnable (.nextInt random (.size runnable))))))
  (nextEvent [_]
    (when-some [entry (.pollFirstEntry events)]
      (set! now (long (first (.getKey entry))))
      (.getValue entry)))
  (planned [_] (.size events))
  (threads [_] (filterv #(.isAlive ^Thread %) threads))
  clock/Clock
  (nanos [_] now)
  (park-nanos [this blocker n]
    (let [self (Thread/currentThread)
          event (.plan this (+ now (long n)) #(LockSupport/unpark self))]
      (LockSupport/park blocker)
      (.unplan this event)))
  (call-at [this nanos f]
    (.plan this (max now (long nanos)) #(.start (.thread this "alarm" f))))
  (cancel-call [this event]
    (.unplan this event)))

(defn- parked? [^Thread thread]
  (= Thread$State/WAITING (.getState thread)))

(defn- stuck
  [^Machine machine]
  (ex-info "Nothing can run any more"
           {:stacks (mapv (fn [^Thread thread] [(.getName thread)
                                                (vec (take 12 (.getStackTrace thread)))])
                          (.threads machine))}))

(defn- run-all!
  "Runs the threads of the machine until all have ended."
  [^Machine machine]
  (loop []
    (when-not (Thread/interrupted)
      (if-some [continuation (.nextRunnable machine)]
        (do (.run continuation) (recur))
        (when-some [threads (seq (.threads machine))]
          (if (every? parked? threads)
            (if-some [wake (.nextEvent machine)]
              (wake)
              (throw (stuck machine)))
            ;; The JDK's own thread wakes those who have waited for a monitor.
            (LockSupport/parkNanos 10000))
          (recur))))))

(defn- others
  "Returns the other threads that are alive; but for those of alarms, which may still be at what no
  one waits for: a cancel that has found everything ended."
  [^Machine machine]
  (remove (fn [^Thread thread]
            (or (identical? thread (Thread/currentThread)) (= "alarm" (.getName thread))))
          (.threads machine)))

(defn- numbered
  "Returns a function of nothing to prefix0, then prefix1 and so on."
  [prefix _inherit?]
  (let [n (atom -1)]
    #(str prefix (swap! n inc))))

(defn run
  "Calls f on a thread of a machine with this seed, until all threads have ended. Returns {:value v}
  or {:thrown t}, with :nanos - the time when f ended; :interrupted - the thread's flag then; :alive
  - how many others were alive, see others; :planned - how many alarms were armed."
  [seed f]
  (let [machine (Machine. (Random. seed) (ArrayList.) (TreeMap.) (ArrayList.) 0 0)
        result (promise)
        body (bound-fn []
               (let [outcome (try {:value (f)} (catch Throwable t {:thrown t}))]
                 (deliver result (assoc outcome
                                        :nanos (clock/nanos machine)
                                        :interrupted (Thread/interrupted)
                                        :alive (count (others machine))
                                        :planned (.planned machine)))))]
    (with-redefs [clock/clock machine
                  jdk/virtual-thread (fn [name body] (.thread machine name body))
                  jdk/numbered-threads numbered
                  jdk/next-thread (fn [next-name body] (jdk/virtual-thread (next-name) body))]
      (.start (.thread machine "root" body))
      (run-all! machine))
    @result))
