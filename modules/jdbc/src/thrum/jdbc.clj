(ns thrum.jdbc
  "Data sources whose calls end at a deadline: the query is cancelled in the database, and its
  connection kept. Use it as (require '[thrum.jdbc :as jdbc])."
  (:require
   [thrum.jdbc.impl.guard :as guard]
   [thrum.jdbc.impl.pools :as pools]
   [thrum.jdbc.impl.source :as source]
   [thrum.spi.options :as options])
  (:import
   (javax.sql DataSource)))

(set! *warn-on-reflection* true)

(def ^:private rows
  {:grace-ms {:check nat-int?
              :accepts "an integer, not negative"
              :default "500"
              :doc "how many ms a cancelled call may go on before its connection is aborted"}
   :connections {:check pos-int?
                 :accepts "a positive integer"
                 :default "the pool's own maximum, where it is HikariCP; else no bound"
                 :doc "how many connections may be in use at once: as many as the pool has"}
   :wait-ms {:check nat-int?
             :accepts "an integer, not negative"
             :default "the pool's own, where it is HikariCP; else no bound"
             :doc "how many ms a permit is waited for; what the pool then takes is not counted"}
   :name {:check #(and (string? %) (re-find #"\S" %))
          :accepts "a string that is not blank"
          :default "jdbc"
          :doc "the data source's name in errors and in what shows it"}})

(defn data-source
  "Returns a javax.sql.DataSource around another, a pool most of all. It is a
  java.lang.AutoCloseable that closes the other, if that is one.

      (def db (jdbc/data-source (HikariDataSource. config) {:grace-ms 500}))

  A cancel or deadline of the calling thread's work (scope, task, request, pmap) stops what its
  connections do, on another thread: by the driver's cancel of a connection, where it has one, as
  PostgreSQL's, else by Statement.cancel; after the grace by that again and Connection.abort; never
  by an interrupt. The call throws CancellationException,
  with the driver's exception in its cause chain. In cancelled work nothing begins but what cleans
  up: close, rollback, the settings of a connection; these have the grace. commit is never
  cancelled, only aborted.

  A connection to which a cancel was sent is used again only when an exception has answered the
  cancel, and isValid is true; else it is aborted, and leaves its pool, HikariCP's. Where the work
  is cancelled, a transaction is rolled back before its connection is closed, or put back into
  auto-commit or another setting.

  getConnection waits in a limiter of this data source, where there is a bound, and throws
  :thrum/rejected after :wait-ms. Then the pool is called on a thread of its own. In both the
  deadline counts, and a caller that is cancelled leaves at once; the connection, when it comes,
  goes back. Where the thread is interrupted for another reason, an SQLException is thrown, and the
  interrupt stays set. clojure.datafy/datafy shows {:permits n, :in-use n, :waiting n, :held-by
  [{:thread name, :thread-id n, :ms n}]}, the longest first, with :ended? true where the thread has
  ended.

  unwrap hands out guarded interfaces, and nothing else: see call-with. Outside of scopes and tasks
  all is as the other data source has it. Throws :thrum/invalid.

  Options:
    :grace-ms - how many ms a cancelled call may go on before its connection is aborted (an
      integer, not negative; default 500)
    :connections - how many connections may be in use at once: as many as the pool has (a
      positive integer; default the pool's own maximum, where it is HikariCP; else no bound)
    :wait-ms - how many ms a permit is waited for; what the pool then takes is not counted (an
      integer, not negative; default the pool's own, where it is HikariCP; else no bound)
    :name - the data source's name in errors and in what shows it (a string that is not blank;
      default jdbc)"
  (^DataSource [data-source] (thrum.jdbc/data-source data-source {}))
  (^DataSource [data-source options]
   (let [inside (options/instance DataSource "a javax.sql.DataSource" data-source)
         given (options/check rows options)]
     (source/source inside
                    (merge {:grace-ms 500, :name "jdbc"} (pools/options inside given) given)))))

(defn call-with
  "Calls f with what a connection, or what one handed out, is for its driver: an interface or class
  of the driver's, for calls that java.sql has no name for. Returns the value of f. The call as a
  whole is guarded, as one: by the driver's cancel of a connection, where it has one (PostgreSQL's
  has), or an abort after the grace. f must keep nothing of what it is given. Throws :thrum/invalid,
  and what f throws.

      (jdbc/call-with connection PGConnection #(.copyIn (.getCopyAPI ^PGConnection %) sql in))"
  [connection ^Class driver-class f]
  (guard/call-with connection
                   (options/instance Class "an interface or class of the driver's" driver-class)
                   (options/function f)))
