(ns thrum.jdbc.races
  "Cancels against the ends of statements, over a driver that delivers cancels late."
  (:require
   [thrum.core :as t]
   [thrum.jdbc :as jdbc]
   [thrum.jdbc.fake :as fake]
   [thrum.jdbc.impl.call :as call])
  (:import
   (java.sql Connection SQLException)
   (java.util.concurrent CancellationException ScheduledExecutorService ScheduledThreadPoolExecutor ThreadLocalRandom TimeUnit)
   (java.util.concurrent.atomic AtomicLong)
   (javax.sql DataSource)))

(set! *warn-on-reflection* true)

(defn- draw ^long [^long n]
  (.nextLong (ThreadLocalRandom/current) n))

(defn- late
  "Returns how a cancel is delivered: half of them some micros after it has returned."
  [^ScheduledExecutorService later]
  (fn [deliver!]
    (if (zero? (draw 2))
      (deliver!)
      (.schedule later ^Runnable deliver! (draw 300) TimeUnit/MICROSECONDS))))

(defn- about-a-patience
  "Returns how many ns a statement lasts: it ends at about the time of its cancel, which waits for a
  millisecond."
  []
  (+ 800000 (draw 800000)))

(defn- race!
  "Runs a statement that ends at about the time of its cancel. Returns how it ended."
  [^DataSource source]
  (try
    (t/with-scope [s]
      (with-open [^Connection connection (.getConnection source)
                  statement (.createStatement connection)]
        (let [canceller (t/thread
                          (Thread/sleep (java.time.Duration/ofNanos (draw 100000)))
                          (t/cancel! s))]
          (try
            (.execute statement "")
            :done
            (finally (t/shield 60000 (.join ^Thread canceller)))))))
    (catch CancellationException _ :cancelled)
    (catch SQLException e (.getMessage e))))

(defn run
  "Runs n races on 8 connections. Returns {:misses how many cancels hit another's statement, :hits
  how many hit at all, :opened connections, :lost the answers that none should be}."
  [n]
  (with-open [later (ScheduledThreadPoolExecutor. 1)]
    (let [db (assoc (fake/database (late later)) :trail (atom ()))
          source (jdbc/data-source (fake/data-source db {:nanos about-a-patience})
                                   {:connections 8, :grace-ms 60000})
          answers (with-redefs [fake/note! (fn [_ _])]
                    (frequencies (t/pmapv 8 (fn [_] (race! source)) (range n))))]
      {:misses (.get ^AtomicLong (:misses db))
       :hits (.get ^AtomicLong (:hits db))
       :opened (.get ^AtomicLong (:opened db))
       :answers answers
       :lost (vec (remove #{:done :cancelled} (keys answers)))})))

(defn misses-unsettled
  "Returns how many cancels hit another's statement where connections are used again as they are:
  of runs of n, the first that has any, of at most 20."
  [n]
  (with-redefs [call/settle! (fn [_ _])]
    (or (first (filter pos? (map :misses (repeatedly 20 #(run n)))))
        0)))
