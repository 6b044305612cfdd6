(ns thrum.lab.experiments.jdbc.requests
  "Queries that take longer than their deadline, ended in one way; and what is left of them."
  (:require
   [thrum.core :as t]
   [thrum.jdbc :as jdbc]
   [thrum.lab.measure :as measure]
   [thrum.lab.stats :as stats])
  (:import
   (com.zaxxer.hikari HikariConfig HikariDataSource)
   (java.io PrintWriter)
   (java.sql DriverManager Statement)
   (java.util.concurrent CountDownLatch ScheduledExecutorService ScheduledThreadPoolExecutor TimeUnit)
   (java.util.concurrent.atomic AtomicLong)
   (javax.sql DataSource)))

(set! *warn-on-reflection* true)

(def ^:private next-rounds
  "How many queries each connection gets when the deadlines have passed."
  20)
(def ^:private warm-ups "How many such rounds come before anything counts." 5)
(def ^:private connection-ms "How long the pool waits for a connection." 5000)
(def ^:private refill-ms "How long the pool may take until all its connections are there." 15000)

;; The pool

(defn- counting
  "Returns a data source of url that counts in opened the connections that it has opened."
  ^DataSource [url ^AtomicLong opened]
  (reify
    DataSource
    (getConnection [_]
      (let [connection (DriverManager/getConnection url)]
        (.incrementAndGet opened)
        connection))
    (getLoginTimeout [_] 0)
    (setLoginTimeout [_ _])
    (getLogWriter [_] nil)
    (^void setLogWriter [_ ^PrintWriter _])))

(defn- pool ^HikariDataSource [url opened connections]
  (HikariDataSource. (doto (HikariConfig.)
                       (.setDataSource (counting (str url "&ApplicationName=lab") opened))
                       (.setConnectionTimeout connection-ms)
                       (.setMaximumPoolSize connections))))

;; Queries

(defn- execute! [^DataSource source sql prepare!]
  (with-open [connection (.getConnection source), statement (.createStatement connection)]
    (prepare! statement)
    (.execute statement sql)))

(defn- plainly [_])

(defn- next-queries
  "Returns how many ms each of some short queries takes, on all connections at once."
  [{:keys [source at-once]} rounds]
  (let [query #(execute! source "select 1" plainly)
        queries (fn [_] (vec (repeatedly rounds #(measure/ms-of query))))]
    (into [] cat (t/pmapv at-once queries (range at-once)))))

;; Ways

(defn- interrupted-at
  "Calls f; its thread is interrupted after so many ms."
  [^ScheduledExecutorService timer ms f]
  (let [thread (Thread/currentThread)
        alarm (.schedule timer ^Runnable #(.interrupt thread) (long ms) TimeUnit/MILLISECONDS)]
    (try
      (f)
      (finally
        (.cancel alarm false)
        (Thread/interrupted)))))

(defn- query-timeout [seconds]
  (fn [^Statement statement] (.setQueryTimeout statement seconds)))

(defn- request
  "Returns a function that makes one request in that way."
  [way {:keys [source timer sql deadline-ms]}]
  (case way
    :interrupt #(interrupted-at timer deadline-ms (fn [] (execute! source sql plainly)))
    ;; It counts in seconds.
    :query-timeout #(execute! source sql (query-timeout 1))
    :thrum #(t/with-timeout deadline-ms (execute! source sql plainly))))

(defn- ended-early? [request]
  (try
    (request)
    false
    (catch Exception _ true)))

;; A sample

(defn- ask
  "Returns what the database answers on a connection of its own."
  [url sql]
  (with-open [connection (DriverManager/getConnection url)
              statement (.createStatement connection)
              rows (.executeQuery statement sql)]
    (.next rows)
    (.getLong rows 1)))

(def ^:private of-the-pool "from pg_stat_activity where application_name = 'lab'")

(defn- active [url]
  (ask url (str "select count(*) " of-the-pool " and state = 'active'")))

(defn- end-what-is-left! [url]
  (ask url (str "select count(pg_terminate_backend(pid)) " of-the-pool " and state = 'active'")))

(defn- all-there?
  "True if the pool has all its connections, none of them in use."
  [^HikariDataSource pool at-once]
  (let [facts (.getHikariPoolMXBean pool)]
    (= [at-once at-once] [(.getTotalConnections facts) (.getIdleConnections facts)])))

(defn- await-all! [pool at-once]
  (let [end (+ (measure/now-ms) refill-ms)]
    (while (and (not (all-there? pool at-once)) (< (measure/now-ms) end))
      (Thread/sleep 10))))

(defn- run-requests
  "Makes the requests on a thread of its own. Returns it, as a future of how long they took and
  of whether each of them has ended early, and :started, a latch that opens with the last of them."
  [{:keys [n at-once]} request]
  (let [started (CountDownLatch. n), start (measure/now-ms)]
    {:started started
     :ended (t/future
              (let [early? (t/pmapv at-once
                                    (fn [_] (.countDown started) (ended-early? request))
                                    (range n))]
                {:ms (- (measure/now-ms) start), :early (count (filter true? early?))}))}))

(defn- figures
  "Returns the sample of a job on a pool that has all its connections."
  [{:keys [url n way deadline-ms watch-ms], :as job} {:keys [^AtomicLong opened pool] :as env}]
  (let [unloaded (stats/p99 (next-queries env next-rounds))
        before (.get opened)
        {:keys [^CountDownLatch started ended]} (run-requests job (request way env))]
    (.await started)
    (Thread/sleep (long (+ deadline-ms watch-ms)))
    (let [left (active url), next (stats/p99 (next-queries env next-rounds))
          {:keys [ms early]} @ended]
      (end-what-is-left! url)
      (await-all! pool (:at-once job))
      (when (not= n early)
        (throw (ex-info (str (- n early) " of " n " queries ran to their end") {})))
      {:ms ms
       :left left
       :lost (- (.get opened) before)
       :unloaded-p99-ms unloaded
       :next-p99-ms next
       :next-times (/ next unloaded)})))

(defn- warm-up! [{:keys [pool at-once] :as env}]
  (await-all! pool at-once)
  (next-queries env warm-ups)
  ;; Cancels too.
  (let [request (request :thrum (assoc env :source (jdbc/data-source pool)))]
    (run! (fn [_] (ended-early? request)) (range 20))
    (await-all! pool at-once)))

(defn sample
  "Makes n requests, at-once of them at a time, on as many connections to url, a PostgreSQL: each
  has a deadline of deadline-ms, and a query that takes sleep-s. way: :interrupt, :query-timeout or
  :thrum. Returns the sample: :ms, until all have ended; :left, how many of the queries run in the
  database watch-ms after the last deadline; :lost, how many connections were replaced;
  :next-p99-ms, of short queries from then on, and :unloaded-p99-ms, of the same before; and
  :next-times, the one by the other."
  [{:keys [url way at-once deadline-ms sleep-s] :as job}]
  (let [opened (AtomicLong.)]
    (with-open [timer (ScheduledThreadPoolExecutor. 1), pool (pool url opened at-once)]
      (let [env {:opened opened
                 :pool pool
                 :timer timer
                 :at-once at-once
                 :deadline-ms deadline-ms
                 :sql (str "select pg_sleep(" sleep-s ")")
                 :source (if (= :thrum way) (jdbc/data-source pool) pool)}]
        (warm-up! env)
        (figures job env)))))
