(ns thrum.server.engine.helidon.starved
  "A server whose handler holds the only carrier of its JVM: a child's, with jvm-options."
  (:require
   [thrum.server :as server]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.util.concurrent CountDownLatch TimeUnit)
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
  "Calls (f server kept release!) while the carrier is held, and release! has not been called; kept:
  a client that was answered before."
  [options f]
  (let [spins (CountDownLatch. 1), released (AtomicBoolean.)
        s (server/run-server (spinning spins released)
                             (merge {:engine :helidon, :port 0, :stop-on-shutdown? false} options))
        kept (wire/connect (server/port s))]
    (wire/ask! kept (wire/get "/"))
    ;; On a busy machine a client may be too slow itself.
    (loop []
      (wire/try-send! (wire/connect (server/port s)) (wire/get "/spin"))
      (when-not (.await spins 3 TimeUnit/SECONDS) (recur)))
    (f s kept #(.set released true))))

(defn- stops
  "Stops the server, and prints what it knows then, and whether the connection of a client is
  closed."
  []
  (starved {:shutdown-timeout-ms 100}
           (fn [s kept _]
             (server/stop! s)
             (prn (select-keys (server/status s) [:state :overdue]) (wire/closed? kept)))))

(defn- asks
  "Sends a whole request while the carrier is held, and prints its status when it has been answered.
  The carrier is released when a silent client, which has come later, has been cut: so the request
  has waited for longer than a client may."
  []
  (starved {:header-timeout-ms 2000}
           (fn [s _ release!]
             (let [whole (wire/send! (wire/connect (server/port s)) (wire/get "/"))
                   silent (wire/connect (server/port s))]
               (prn (wire/closed? silent))
               (release!)
               (prn (:status (wire/response whole)))
               (server/stop! s)))))

(def ^:private scenes {"stops" stops, "asks" asks})

(defn -main
  "What the child runs."
  [scene]
  ((scenes scene))
  (System/exit 0))
