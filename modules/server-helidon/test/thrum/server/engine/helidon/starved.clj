(ns thrum.server.engine.helidon.starved
  "A server whose handler holds the only carrier of its JVM: a child's, with jvm-options."
  (:require
   [thrum.server :as server]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.atomic AtomicBoolean)))

(set! *warn-on-reflection* true)

(def jvm-options
  "Those of a JVM with one carrier."
  ["-Djdk.virtualThreadScheduler.parallelism=1" "-Djdk.virtualThreadScheduler.maxPoolSize=1"])

(defn- spinning
  "Returns a handler that holds its carrier at /spin until released, and opens the latch before."
  [^CountDownLatch spins ^AtomicBoolean released]
  (fn [{:keys [uri]}]
    (when (= "/spin" uri)
      (.countDown spins)
      (while (not (.get released)) (Thread/onSpinWait)))
    {:status 200, :body "ok"}))

(defn- starved
  "Calls (f server release!) while the carrier is held, and release! has not been called."
  [options f]
  (let [spins (CountDownLatch. 1), released (AtomicBoolean.)
        s (server/run-server (spinning spins released)
                             (merge {:engine :helidon, :port 0, :stop-on-shutdown? false} options))]
    (wire/send! (wire/connect (server/port s)) (wire/get "/spin"))
    (.await spins)
    (f s #(.set released true))))

(defn- stops
  "Stops the server, and prints what it knows then."
  []
  (starved {:shutdown-timeout-ms 100}
           (fn [s _]
             (server/stop! s)
             (prn (select-keys (server/status s) [:state :overdue])))))

(def ^:private scenes {"stops" stops})

(defn -main
  "What the child runs."
  [scene]
  ((scenes scene))
  (System/exit 0))
