(ns thrum.jdbc.postgres-test
  "Cancels against PostgreSQL, through HikariCP."
  (:require
   [clojure.datafy :as datafy]
   [clojure.java.jdbc :as java-jdbc]
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.jdbc :as jdbc]
   [thrum.jdbc.grace :as grace]
   [thrum.jdbc.impl.call :as call]
   [thrum.jdbc.server :as server]
   [thrum.jdbc.uncaught :as uncaught]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.runner :as runner])
  (:import
   (com.zaxxer.hikari HikariConfig HikariDataSource)
   (java.io ByteArrayInputStream FileNotFoundException StringWriter)
   (java.lang ProcessHandle)
   (java.lang.reflect InvocationHandler InvocationTargetException Method Proxy)
   (java.sql Connection DriverManager PreparedStatement ResultSet SQLException)
   (java.time Duration)
   (java.util List)
   (java.util.concurrent CancellationException ThreadLocalRandom)
   (javax.sql DataSource)
   (org.postgresql PGConnection)
   (org.postgresql.copy CopyManager)
   (org.postgresql.core BaseConnection)))

(set! *warn-on-reflection* true)

(def ^:private ^:dynamic *url* nil)

(defn- with-server [f]
  (server/call-with #(binding [*url* %] (f))))

(use-fixtures :once with-server)
(use-fixtures :each leak/no-leaks)

(def ^:private connections 4)

(defn- pool ^HikariDataSource []
  (HikariDataSource. (doto (HikariConfig.)
                       (.setJdbcUrl *url*)
                       (.setConnectionTimeout 60000)
                       (.setValidationTimeout 60000)
                       (.setMinimumIdle 0)
                       (.setMaximumPoolSize connections))))

(defn- call-with-source [options f]
  (server/needed! *url*)
  (with-open [inside (pool)]
    (f (jdbc/data-source inside (merge {:grace-ms 20000} options)))))

(defmacro ^:private with-source [[source options] & body]
  `(call-with-source ~(or options {}) (fn [~(vary-meta source assoc :tag `DataSource)] ~@body)))

(defn- open ^Connection [^DataSource source] (.getConnection source))

(defn- query [^Connection connection sql]
  (with-open [statement (.createStatement connection), rows (.executeQuery statement sql)]
    (when (.next rows) (.getObject rows 1))))

(defn- update! [^Connection connection sql]
  (with-open [statement (.createStatement connection)] (.executeUpdate statement sql)))

(defn- ask [source sql]
  (with-open [connection (open source)] (query connection sql)))

(defn- backends
  "Returns the servers' process ids behind all connections of the pool, held at once."
  [source]
  (let [held (vec (repeatedly connections #(open source)))]
    (try
      (into #{} (map #(query % "select pg_backend_pid()")) held)
      (finally (run! #(.close ^Connection %) held)))))

;; The server, seen from outside of the pool

(defn- outside ^Connection [] (DriverManager/getConnection *url*))

(defn- how-many
  "Returns how many of the servers' processes are in that state."
  ^long [connection pids state]
  (query connection (str "select count(*) from pg_stat_activity where " state " and pid in ("
                         (str/join ", " pids) ")")))

(def ^:private active "A query runs." "state = 'active'")
(def ^:private begun "A query sleeps, or waits for a lock of ours: a cancel ends it."
  "wait_event in ('PgSleep', 'advisory')")

(defn- cancelled
  "Returns the type of what f throws, whose work is cancelled as (begun?) becomes true; that must be
  within a minute."
  [begun? f]
  (let [in-time (promise)
        thrown (try
                 (t/with-scope [s]
                   (t/thread (deliver in-time (gate/eventually 60000 begun?)) (t/cancel! s))
                   (f))
                 (catch Throwable t (t/error-type t)))]
    (is (true? (deref in-time 60000 :late)))
    thrown))

(defn- kept?
  "Cancels f as n queries of it, one at least, have begun in the server: it leaves all connections
  as they were, and no query behind."
  ([source f] (kept? source 1 f))
  ([source ^long n f]
   (with-open [outside (outside)]
     (let [before (backends source)]
       (is (= :thrum/cancelled (cancelled #(= n (how-many outside before begun)) f)))
       (is (zero? (how-many outside before active)))
       (is (= before (backends source)))))))

;; What a cancel ends

(defn- deadline-kept?
  "As kept?, of a query and its deadline. Returns false where the query had not begun by then: a
  cancel that comes before is lost."
  [source deadline-ms]
  (with-open [outside (outside)]
    (let [before (backends source), deadline (spi/deadline-in deadline-ms)
          begun? #(= 1 (how-many outside before begun))
          in-time (t/future (and (gate/eventually deadline-ms begun?)
                              (not (spi/passed? deadline))))]
      (is (= :late (t/with-timeout [deadline-ms :late] (ask source "select pg_sleep(60)"))))
      (when @in-time
        (is (zero? (how-many outside before active)))
        (is (= before (backends source))))
      @in-time)))

(deftest a-deadline-ends-the-query-and-keeps-the-connection
  (with-source [source]
    (is (some #(deadline-kept? source %) (take 9 (iterate #(* 2 %) 100))))))

(def ^:private slow-rows
  "select i, case when i > 4 then pg_sleep(60) end from generate_series(1, 9) i")

(deftest rows-that-come-in-portions-are-cancelled
  (with-source [source]
    (kept? source
           #(with-open [connection (open source)]
              (.setAutoCommit connection false)
              (with-open [statement (.createStatement connection)]
                (.setFetchSize statement 2)
                (with-open [rows (.executeQuery statement slow-rows)]
                  (while (.next rows))))))))

(deftest a-batch-is-cancelled
  (with-source [source]
    (kept? source
           #(with-open [connection (open source)
                        statement (.prepareStatement connection "select pg_sleep(?)")]
              (dotimes [_ 3]
                (.setDouble ^PreparedStatement statement 1 60.0)
                (.addBatch statement))
              (.executeBatch statement)))))

(deftest a-copy-is-cancelled
  (with-source [source]
    (kept? source
           #(with-open [connection (open source)]
              (jdbc/call-with connection PGConnection
                              (fn [^PGConnection pg]
                                (.copyOut ^CopyManager (.getCopyAPI pg)
                                          "copy (select pg_sleep(60)) to stdout"
                                          (StringWriter.))))))))

(deftest a-wait-for-a-lock-is-cancelled
  (with-source [source]
    (with-open [holder (outside)]
      (query holder "select pg_advisory_lock(1)")
      (kept? source #(ask source "select pg_advisory_lock(1)")))))

(defn- within?
  "True if the thread is in a method of that name."
  [^Thread thread method]
  (boolean (some #(= method (.getMethodName ^StackTraceElement %)) (.getStackTrace thread))))

(deftest a-call-that-no-cancel-ends-is-aborted
  (with-source [source {:grace-ms 50}]
    (let [before (backends source), self (Thread/currentThread)]
      (is (= :thrum/cancelled
             (cancelled #(within? self "processNotifies")
                        #(with-open [connection (open source)]
                           (.getNotifications ^PGConnection (.unwrap connection PGConnection)
                                              60000)))))
      (let [after (backends source)]
        (is (= connections (count after)))
        (is (= 1 (count (remove after before))))))))

(defn- signal! [name pids]
  (doseq [pid pids]
    (.waitFor (.start (ProcessBuilder. ^List (list "kill" (str "-" name) (str pid)))))))

;; A server that is stopped has not read the query: the first cancel is lost.
(deftest a-cancel-that-was-lost-is-sent-again
  (grace/in-hand
    (fn [end!]
      (with-source [source]
        (with-open [outside (outside)]
          (let [before (backends source), self (Thread/currentThread), stop! @#'call/stop!
                begun? #(= 1 (how-many outside before begun))
                lost (promise)
                stop-and-lose! (fn [call cancel]
                                 (stop! call cancel)
                                 (signal! "CONT" before)
                                 (deliver lost (gate/eventually 60000 begun?))
                                 (end!))]
            (with-redefs [call/stop! stop-and-lose!]
              (is (= :thrum/cancelled
                     (cancelled #(within? self "processResults")
                                #(with-open [connection (open source)]
                                   (signal! "STOP" before)
                                   (query connection "select pg_sleep(600)"))))))
            (is (true? @lost))
            (is (gate/eventually 60000 #(zero? (how-many outside before active))))
            (is (= 1 (count (remove (backends source) before))))))))))

(defn- slow-commits!
  "Makes a table for which a commit takes a minute."
  [source]
  (with-open [connection (open source)]
    (run! #(update! connection %)
          ["create or replace function slow() returns trigger language plpgsql
            as 'begin perform pg_sleep(60); return null; end'"
           "drop table if exists deferred"
           "create table deferred (id int)"
           "create constraint trigger slow after insert on deferred
            deferrable initially deferred for each row execute function slow()"])))

(deftest a-commit-of-an-unwrapped-connection-is-not-cancelled
  (with-source [source {:grace-ms 50}]
    (slow-commits! source)
    (with-open [outside (outside)]
      (let [before (backends source)]
        (is (= :thrum/cancelled
               (cancelled #(= 1 (how-many outside before begun))
                          #(with-open [connection (open source)]
                             (.setAutoCommit connection false)
                             (update! connection "insert into deferred values (1)")
                             (.commit ^Connection (.unwrap connection BaseConnection))))))
        (let [aborted (remove (backends source) before)]
          (is (= 1 (count aborted)) "after the grace")
          (run! #(query outside (str "select pg_terminate_backend(" % ")")) aborted))))))

(defn- parent [pid]
  (let [^ProcessHandle backend (.get (ProcessHandle/of (long pid)))
        ^ProcessHandle server (.get (.parent backend))]
    (.pid server)))

(defn- opaque
  "Returns the connection in a wrapper that unwraps to itself, as some pools' do, but for the
  driver's own interface."
  ^Connection [^Connection inside]
  (let [call (fn [wrapper ^Method method arguments]
               (if (and (= "unwrap" (.getName method)) (= Connection (first arguments)))
                 wrapper
                 (try
                   (.invoke method inside arguments)
                   (catch InvocationTargetException e (throw (.getCause e))))))]
    (Proxy/newProxyInstance (.getClassLoader (class call))
                            (into-array Class [Connection])
                            (reify InvocationHandler (invoke [_ wrapper method arguments]
                                                       (call wrapper method arguments))))))

(defn- opaque-source ^DataSource [options]
  (jdbc/data-source (reify DataSource (getConnection [_] (opaque (outside)))) options))

;; Stopped as a whole it takes no cancel either: a statement's own would keep the thread for 10 s.
(deftest a-server-that-does-not-answer-keeps-no-caller
  (with-source [pooled {:grace-ms 300}]
    (doseq [source [pooled (opaque-source {:grace-ms 300, :connections 1})]]
      (let [open? (promise), stopped (promise)
            task (t/future
                   (with-open [connection (open source)]
                     (deliver open? (query connection "select pg_backend_pid()"))
                     @stopped
                     (t/with-timeout [100 :late] (query connection "select 1"))))
            server [(parent @open?) @open?]]
        (signal! "STOP" server)
        (deliver stopped true)
        (try
          (is (= :late (deref task 8000 :still-waits)))
          (finally
            (signal! "CONT" server)
            (deref task 20000 nil)))))))

(deftest many-at-once-leave-the-pool-as-it-was
  (with-source [source]
    (dotimes [_ 5]
      (kept? source connections
             #(t/pmapv 16 (fn [_] (ask source "select pg_sleep(60)")) (range 16))))
    (is (= {:in-use 0, :waiting 0} (select-keys (datafy/datafy source) [:in-use :waiting])))))

;; Transactions

(defn- table! [source]
  (with-open [connection (open source)]
    (update! connection "drop table if exists orders")
    (update! connection "create table orders (id int)")))

(deftest a-transaction-is-rolled-back
  (with-source [source]
    (table! source)
    (kept? source
           #(with-open [connection (open source)]
              (.setAutoCommit connection false)
              (update! connection "insert into orders values (1)")
              (query connection "select pg_sleep(60)")
              (.commit connection)))
    (is (zero? (long (ask source "select count(*) from orders"))))))

(deftest settings-that-are-put-back-in-cancelled-work-hide-no-cancel
  (with-source [source]
    (doseq [put-back! [#(Connection/.setReadOnly % false)
                       #(Connection/.setTransactionIsolation
                          % Connection/TRANSACTION_READ_COMMITTED)
                       #(Connection/.setSchema % "public")
                       #(Connection/.setClientInfo % "ApplicationName" "thrum")]]
      (kept? source
             #(with-open [connection (open source)]
                (.setAutoCommit connection false)
                (try
                  (query connection "select pg_sleep(60)")
                  (finally (put-back! connection))))))))

(deftest a-server-that-dies-in-a-transaction-hides-no-cancel
  (with-source [source]
    (with-open [outside (outside)]
      (let [dead (promise)
            transaction! #(with-open [connection (open source)]
                            (.setAutoCommit connection false)
                            (let [pid (query connection "select pg_backend_pid()")]
                              (query outside (str "select pg_terminate_backend(" pid ")")))
                            (try (query connection "select 1") (catch SQLException _))
                            (deliver dead true)
                            (deref (promise) 60000 :late))
            [thrown seen] (uncaught/during #(cancelled (fn [] (realized? dead)) transaction!))]
        (is (= :thrum/cancelled thrown))
        (is (every? #(instance? SQLException %) seen))))))

(deftest java-jdbc-works-on-it
  (with-source [source]
    (table! source)
    (let [db {:datasource source}]
      (java-jdbc/with-db-transaction [tx db]
        (java-jdbc/insert! tx :orders {:id 1})
        (java-jdbc/insert-multi! tx :orders [{:id 2} {:id 3}]))
      (kept? source
             #(java-jdbc/with-db-transaction [tx db]
                (java-jdbc/insert! tx :orders {:id 4})
                (java-jdbc/query tx ["select pg_sleep(60)"])))
      (is (= [1 2 3] (map :id (java-jdbc/query db ["select id from orders order by id"])))))))

(defn- next-jdbc
  "Returns next.jdbc's function of that name; ends the running test where it is not on the class
  path."
  [function-name]
  (try
    (requiring-resolve (symbol "next.jdbc" function-name))
    (catch FileNotFoundException _
      (runner/skip! "next.jdbc is on Clojars: ./cljw -M:next-jdbc:test --module jdbc --here"))))

(deftest next-jdbc-works-on-it
  (let [execute! (next-jdbc "execute!"), transact (next-jdbc "transact")]
    (with-source [source]
      (table! source)
      (transact source #(execute! % ["insert into orders values (?), (?)" 1 2]))
      (kept? source
             (fn []
               (transact source
                         #(do
                            (execute! % ["insert into orders values (3)"])
                            (execute! % ["select pg_sleep(60)"])))))
      (is (= [1 2] (map (comp first vals)
                        (execute! source ["select id from orders order by id"])))))))

(deftest large-objects-are-read-and-written
  (with-source [source]
    (with-open [connection (open source)
                statement (.prepareStatement connection "select ?::bytea, ?::text, array[1, 2]")]
      (.setBinaryStream statement 1 (ByteArrayInputStream. (.getBytes "bytes")))
      (.setObject statement 2 "text")
      (with-open [rows (.executeQuery statement)]
        (.next ^ResultSet rows)
        (is (= "bytes" (slurp (.getBinaryStream rows 1))))
        (is (= "text" (slurp (.getCharacterStream rows 2))))
        (is (= [1 2] (seq (.getArray (.getArray rows 3)))))
        (is (= "{1,2}" (str (.getArray rows 3))))))))

;; The pool

(deftest a-pool-that-is-shut-down-says-so
  (server/needed! *url*)
  (let [inside (pool), source (jdbc/data-source inside)]
    (.close inside)
    (is (instance? SQLException (try (open source) (catch Throwable t t))))
    (is (zero? (long (:in-use (datafy/datafy source)))))))

(deftest the-pools-own-figures-are-the-bounds
  (with-source [source]
    (is (= connections (:permits (datafy/datafy source))))
    (let [held (vec (repeatedly connections #(open source)))]
      (is (= :late (t/with-timeout [20 :late] (open source))))
      (run! #(.close ^Connection %) held))))

(deftest a-server-that-is-gone-keeps-nobody
  (server/needed! *url*)
  (with-open [inside (HikariDataSource. (doto (HikariConfig.)
                                          (.setJdbcUrl "jdbc:postgresql://127.0.0.1:1/none")
                                          (.setInitializationFailTimeout -1)
                                          (.setConnectionTimeout 5000)))]
    (let [source (jdbc/data-source inside)]
      (is (= :late (t/with-timeout [30 :late] (open source))))
      (is (= 1 (:in-use (datafy/datafy source))) "the pool tries on")
      (is (gate/eventually 60000 #(zero? (long (:in-use (datafy/datafy source)))))))))

;; Races: as many as -Dthrum.jdbc.races.postgres says

(defn- race!
  "Runs a query that ends at about its cancel, behind it one on the same connection, by another
  thread, that none was meant for. Returns what was wrong, or nil."
  [source]
  (let [random (ThreadLocalRandom/current), micros (.nextInt random 3000)]
    (try
      (t/with-scope [s]
        (let [canceller (t/thread
                          (Thread/sleep (Duration/ofNanos (* 1000 (.nextInt random 3000))))
                          (t/cancel! s))]
          (try
            (ask source (str "select pg_sleep(" (/ micros 1e6) ")"))
            (finally (t/shield 60000 (.join ^Thread canceller))))))
      (catch CancellationException _))
    (try
      (ask source "select count(*) from generate_series(1, 1000)")
      nil
      (catch Throwable t (str (spi/type-of t) " " t)))))

(deftest ^{:time-limit-ms 600000} no-cancel-hits-anothers-query
  (let [n (Long/getLong "thrum.jdbc.races.postgres" 100)]
    (with-source [source]
      (is (= #{} (into #{} (keep identity) (t/pmapv 8 (fn [_] (race! source)) (range n))))))))
