(ns thrum.jdbc.h2-test
  "Cancels against H2, in this process."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.jdbc :as jdbc]
   [thrum.test-kit.leak :as leak])
  (:import
   (javax.sql DataSource)
   (org.h2.jdbcx JdbcDataSource)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- source ^DataSource []
  (jdbc/data-source (doto (JdbcDataSource.) (.setURL "jdbc:h2:mem:")) {:grace-ms 5000}))

(defn- query [n]
  (let [numbers (str "system_range(1, " n ")")]
    (str "select count(*) from " numbers " a, " numbers " b where a.x = b.x + 7")))

(deftest a-deadline-ends-the-query-and-keeps-the-connection
  (with-open [connection (.getConnection (source)), statement (.createStatement connection)]
    (.execute statement "create table orders (id int)")
    ;; A cancel that comes before the database has begun is lost: the first query takes its time.
    (.execute statement (query 10))
    (is (= :late (t/with-timeout [300 :late] (.executeQuery statement (query 1000000)) :value)))
    (with-open [rows (.executeQuery statement "select count(*) from orders")]
      (is (.next rows))
      (is (zero? (.getLong rows 1))))))

(deftest large-objects-are-read
  (with-open [connection (.getConnection (source)), statement (.createStatement connection)]
    (with-open [rows (.executeQuery statement "select cast('text' as clob), cast('00ff' as blob)")]
      (.next rows)
      (is (= "text" (slurp (.getCharacterStream (.getClob rows 1)))))
      (is (pos? (.length (.getBlob rows 2)))))))
