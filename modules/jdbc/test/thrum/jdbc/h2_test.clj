(ns thrum.jdbc.h2-test
  "Cancels against H2, in this process."
  (:require
   [clojure.datafy :as datafy]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.jdbc :as jdbc]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (com.zaxxer.hikari HikariDataSource)
   (java.sql Clob Connection DriverManager SQLFeatureNotSupportedException)
   (java.util Scanner)
   (java.util.concurrent CancellationException)
   (javax.sql DataSource)
   (org.h2.jdbc JdbcArray)
   (org.h2.jdbcx JdbcDataSource)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private url "jdbc:h2:mem:thrum-h2-test")

(defn- source ^DataSource []
  (jdbc/data-source (doto (JdbcDataSource.) (.setURL url)) {:grace-ms 20000}))

(defn- executing?
  "True if another session than this connection's executes a statement."
  [^Connection connection]
  (with-open [statement (.createStatement connection)
              rows (.executeQuery statement
                                  (str "select 1 from information_schema.sessions where"
                                       " session_id <> session_id()"
                                       " and executing_statement is not null"))]
    (.next rows)))

(defn- query [n]
  (let [numbers (str "system_range(1, " n ")")]
    (str "select count(*) from " numbers " a, " numbers " b where a.x = b.x + 7")))

(deftest a-cancel-ends-the-query-and-keeps-the-connection
  (with-open [connection (.getConnection (source)), statement (.createStatement connection)
              outside (DriverManager/getConnection url)]
    (.execute statement "create table orders (id int)")
    (is (= :thrum/cancelled
           (try
             (t/with-scope [s]
               (t/thread (gate/eventually 60000 #(executing? outside)) (t/cancel! s))
               (.executeQuery statement (query 100000000)))
             (catch Throwable t (t/error-type t)))))
    (with-open [rows (.executeQuery statement "select count(*) from orders")]
      (is (.next rows))
      (is (zero? (.getLong rows 1))))))

(deftest an-isolation-that-is-put-back-in-cancelled-work-commits-nothing
  (with-open [connection (.getConnection (source)), statement (.createStatement connection)]
    (.execute statement "create table payments (id int)")
    (.setAutoCommit connection false)
    (try
      (t/with-scope [s]
        (.execute statement "insert into payments values (1)")
        (t/cancel! s)
        (.setTransactionIsolation connection Connection/TRANSACTION_SERIALIZABLE))
      (catch CancellationException _))
    (.rollback connection)
    (with-open [rows (.executeQuery statement "select count(*) from payments")]
      (is (.next rows))
      (is (zero? (.getLong rows 1))))))

(deftest large-objects-in-an-array-are-guarded
  (with-open [connection (.getConnection (source)), statement (.createStatement connection)
              rows (.executeQuery statement "select array[cast('text' as clob)], array[1, 2]")]
    (.next rows)
    (let [[clob] (.getArray (.getArray rows 1))]
      (is (re-find #"^thrum.jdbc " (str clob)))
      (is (= "text" (slurp (.getCharacterStream ^Clob clob)))))
    (is (= [1 2] (vec (.getArray (.getArray rows 2)))))))

(deftest call-with-takes-what-has-no-unwrap
  (with-open [connection (.getConnection (source))]
    (let [array (.createArrayOf connection "int" (object-array [1 2]))]
      (is (= [1 2] (jdbc/call-with array JdbcArray #(vec (.getArray ^JdbcArray %)))))
      (is (instance? SQLFeatureNotSupportedException
                     (try (jdbc/call-with array String identity) (catch Exception e e)))))))

(deftest a-hikari-that-has-not-started-is-bounded-by-its-default
  (with-open [pool (proxy [HikariDataSource] [] (getMaximumPoolSize [] -1))]
    (is (= 10 (:permits (datafy/datafy (jdbc/data-source pool {:wait-ms 5})))))
    (is (= 3 (:permits (datafy/datafy (jdbc/data-source pool {:connections 3})))))))

(deftest large-objects-are-read
  (with-open [connection (.getConnection (source)), statement (.createStatement connection)]
    (with-open [rows (.executeQuery statement "select cast('text' as clob), cast('00ff' as blob)")]
      (.next rows)
      (is (= "text" (slurp (.getCharacterStream (.getClob rows 1)))))
      (is (= "text" (.next (Scanner. (.getCharacterStream (.getClob rows 1))))))
      (is (pos? (.length (.getBlob rows 2)))))))
