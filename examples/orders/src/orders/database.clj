(ns orders.database
  "The shop's tables in PostgreSQL, and what is asked of them. Nothing here knows of deadlines."
  (:require
   [clojure.java.jdbc :as sql])
  (:import
   (com.zaxxer.hikari HikariConfig HikariDataSource)))

(set! *warn-on-reflection* true)

(def connections "How many connections the pool has." 8)

(defn pool
  "Returns a pool of connections to the database with this JDBC URL."
  ^HikariDataSource [url]
  (HikariDataSource. (doto (HikariConfig.)
                       (.setJdbcUrl url)
                       (.setMaximumPoolSize connections)
                       (.addDataSourceProperty "ApplicationName" "orders"))))

(def ^:private tables
  ["create table if not exists orders (id serial primary key, item text not null)"
   "create table if not exists stock (item text primary key, pieces int not null)"
   "insert into stock values ('teapot', 3) on conflict do nothing"])

(defn create!
  "Creates the tables, where they are missing, and fills the shelf: three teapots."
  [db]
  (sql/with-db-transaction [tx db]
    (run! #(sql/execute! tx %) tables)))

(defn order
  "Returns the order of that number, or nil."
  [db id]
  (first (sql/query db ["select id, item from orders where id = ?" id])))

(def ^:private take-piece
  "update stock set pieces = pieces - 1 where item = ? and pieces > 0")

(defn place!
  "Takes one piece off the shelf and returns the new order, or nil where there is none."
  [db item]
  (sql/with-db-transaction [tx db]
    (when (= [1] (sql/execute! tx [take-piece item]))
      (select-keys (first (sql/insert! tx :orders {:item item})) [:id :item]))))

(defn report
  "Returns how many orders there are, after so many ms of work in the database."
  [db ms]
  (first (sql/query db ["select count(*) as orders, pg_sleep(?) from orders" (/ ms 1000.0)]
                    {:row-fn #(select-keys % [:orders])})))

(def ^:private count-running
  (str "select count(*) as n from pg_stat_activity where state = 'active'"
       " and application_name = 'orders' and pid <> pg_backend_pid()"))

(defn running
  "Returns how many queries of this service run in the database, beside this one."
  [db]
  (:n (first (sql/query db [count-running]))))

(defn backends
  "Returns the process ids, in the database, of the service's connections."
  [db]
  (into #{} (map :pid)
        (sql/query db ["select pid from pg_stat_activity where application_name = 'orders'"])))
