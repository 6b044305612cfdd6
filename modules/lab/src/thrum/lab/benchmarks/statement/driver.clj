(ns thrum.lab.benchmarks.statement.driver
  "A driver that does nothing: one connection, one statement, one result of one row."
  (:import
   (java.sql Connection PreparedStatement ResultSet)
   (javax.sql DataSource)))

(set! *warn-on-reflection* true)

(defn- result ^ResultSet []
  (let [read? (volatile! true)]
    (reify
      ResultSet
      (next [_] (vswap! read? not))
      (^long getLong [_ ^int _] 42)
      (getStatement [_] nil)
      (close [_]))))

(defn- statement ^PreparedStatement [^ResultSet result]
  (reify
    PreparedStatement
    (^void setLong [_ ^int _ ^long _])
    (executeQuery [_] result)
    (executeUpdate [_] 1)
    (cancel [_])
    (close [_])))

(defn- connection ^Connection [^PreparedStatement statement]
  (reify
    Connection
    (^PreparedStatement prepareStatement [_ ^String _] statement)
    (getAutoCommit [_] true)
    (close [_])))

(defn data-source
  "Returns its data source, whose one connection is for one thread."
  ^DataSource []
  (let [connection (connection (statement (result)))]
    (reify
      DataSource
      (getConnection [_] connection))))
