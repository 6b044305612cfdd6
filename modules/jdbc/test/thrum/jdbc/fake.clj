(ns thrum.jdbc.fake
  "A database in memory whose statements last until they are let go, and whose cancels are as bad as
  asked for. It knows which statement each cancel was meant for, and which it hit."
  (:import
   (java.io InputStream Reader)
   (java.sql BatchUpdateException Connection DatabaseMetaData PreparedStatement ResultSet ResultSetMetaData SQLException Savepoint Statement)
   (java.util.concurrent LinkedBlockingQueue)
   (java.util.concurrent.atomic AtomicLong)
   (java.util.concurrent.locks LockSupport)
   (javax.sql DataSource)))

(set! *warn-on-reflection* true)

;; A pool as HikariCP's.
(definterface Pool (^void evictConnection [^java.sql.Connection connection]))

;; A driver's own interfaces. The second declares a method of java.sql's again.
(definterface DriverStatement (^boolean work []) (^void idle []))
(gen-interface :name thrum.jdbc.fake.DriverConnection
               :extends [java.sql.Connection]
               :methods [[work [] Object] [setReadOnly [boolean] void]])

;; A database: :cancel - how a cancel behaves, a function of a thunk that delivers it. :trail - an
;; atom of what happened. A physical connection: :running - an atom of the statement that runs, nil,
;; or :dead.

(defn database
  "Returns a database whose cancels are delivered by (deliver! thunk). With :answer, a function,
  statements that are cancelled throw what it returns."
  [deliver!]
  {:deliver! deliver!, :trail (atom []), :ids (AtomicLong.), :idle (LinkedBlockingQueue.)
   :opened (AtomicLong.), :misses (AtomicLong.), :hits (AtomicLong.)})

(defn note!
  "Adds to the trail."
  [db what]
  (swap! (:trail db) conj what))

(def at-once "Delivers a cancel before it returns." (fn [deliver!] (deliver!)))

(defn- dead [] (SQLException. "dead" "08006"))

(defn- cancelled [] (SQLException. "cancelled" "57014"))

(defn- run-statement
  "Runs a statement until it is ended, by let-go! or after so many ns, a cancel or the death of its
  connection. An interrupt kills the connection, as with a socket."
  [{:keys [running]} statement nanos]
  (when-not (compare-and-set! running nil statement) (throw (dead)))
  ;; From here on a cancel hits it.
  ((:on-begin statement))
  (let [end (+ (System/nanoTime) (long nanos))]
    (loop []
      (let [now @running]
        (cond
          (= :dead now) (throw (dead))
          (:cancelled now) (if (compare-and-set! running now nil)
                             (throw ((:answer statement cancelled)))
                             (recur))
          (.isInterrupted (Thread/currentThread)) (do
                                                    (reset! running :dead)
                                                    (throw (SQLException. "interrupted" "08006")))
          (or @(:let-go statement) (neg? (- end (System/nanoTime))))
          (when-not (compare-and-set! running now nil) (recur))
          :else (do (LockSupport/parkNanos 20000) (recur)))))))

(defn- deliver-cancel! [{:keys [running]} {:keys [^AtomicLong hits ^AtomicLong misses]} id]
  (let [now @running]
    (when (and (map? now)
               (not (:cancelled now))
               (compare-and-set! running now (assoc now :cancelled true)))
      (.incrementAndGet hits)
      (when-not (or (= id (:id now)) (:barrier now)) (.incrementAndGet misses)))))

(defn- input [db execute]
  (proxy [InputStream] []
    (read [& _] (execute) -1)
    (skip [_] (execute) 0)
    (available [] (execute) 0)
    (mark [_] (execute))
    (reset [] (execute))
    (close [] (note! db :stream-closed))))

(defn- reader [db execute]
  (proxy [Reader] []
    (read [& _] (execute) -1)
    (skip [_] (execute) 0)
    (ready [] (execute) false)
    (mark [_] (execute))
    (reset [] (execute))
    (close [] (note! db :stream-closed))))

(defn- result-set ^ResultSet [db execute statement]
  (reify
    ResultSet
    (next [_] (execute) true)
    (getStatement [_] statement)
    (^Object getObject [_ ^int _] 42)
    (^InputStream getBinaryStream [_ ^int _] (input db execute))
    (^Reader getCharacterStream [_ ^int _] (reader db execute))
    (getMetaData [this] this)
    (close [_] (note! db :result-closed))

    ;; As SQLite's.
    ResultSetMetaData
    (getColumnCount [_] 1)))

(defn- statement ^Statement [physical db connection {:keys [nanos on-execute on-statement-close]}]
  (let [id (.incrementAndGet ^AtomicLong (:ids db))
        execute (fn []
                  (let [statement {:id id
                                   :let-go (:let-go db (volatile! false))
                                   :answer (:answer db cancelled)
                                   :on-begin (fn []
                                               (note! db :execute)
                                               (on-execute))}]
                    (run-statement physical statement (nanos))))]
    (reify
      Statement
      (^boolean execute [_ ^String _] (execute) true)
      (executeBatch [_]
        (try
          (execute)
          (int-array 0)
          (catch SQLException e
            (throw (doto (BatchUpdateException. (int-array 0)) (.setNextException e))))))
      (executeQuery [this _] (result-set db execute this))
      (getConnection [_] connection)
      (cancel [_]
        (note! db :cancel)
        ((:deliver! db) #(deliver-cancel! physical db id)))
      (isWrapperFor [_ _] true)
      (unwrap [this _] this)
      (close [_]
        (note! db :statement-closed)
        (on-statement-close))

      DriverStatement
      (work [_] (execute) true)
      (idle [_]))))

(defn- prepared-statement
  "Returns a statement that sends a stream to the database as it is set."
  ^PreparedStatement [^Statement statement]
  (reify
    PreparedStatement
    (^void setBinaryStream [_ ^int _ ^InputStream _]
      (.execute statement ""))
    (cancel [_] (.cancel statement))
    (close [_] (.close statement))))

(defn- metadata
  "Returns what is asked by the statement."
  ^DatabaseMetaData [^Statement statement]
  (reify
    DatabaseMetaData
    (getTypeInfo [_] (.executeQuery statement ""))))

(defn- connection ^Connection [physical db options]
  (let [auto-commit (atom true), closing (atom false), closed (atom false)]
    (reify
      thrum.jdbc.fake.DriverConnection
      (work [this]
        (.execute (statement physical db this options) ""))
      (setReadOnly [_ on]
        (note! db [:read-only on]))
      (createStatement [this] (statement physical db this options))
      (^PreparedStatement prepareStatement [this ^String _]
        (prepared-statement (statement physical db this options)))
      (getMetaData [this] (metadata (statement physical db this options)))
      (getAutoCommit [_] @auto-commit)
      (setAutoCommit [_ on]
        (note! db [:auto-commit on])
        ((:on-auto-commit options))
        (reset! auto-commit on))
      (commit [_]
        (run-statement physical
                       {:id :commit, :let-go (volatile! false), :on-begin #(note! db :commit)}
                       ((:nanos options))))
      (rollback [_]
        (note! db :rollback)
        ((:on-rollback options))
        (when (= :dead @(:running physical)) (throw (dead))))
      (^void rollback [_ ^Savepoint _]
        (note! db :rollback-to-savepoint))
      (isValid [_ _]
        (note! db :barrier)
        ((:on-valid options))
        (try
          (run-statement physical {:barrier true, :let-go (volatile! true), :on-begin (fn [])} 0)
          true
          (catch SQLException _ false)))
      (isClosed [_] @closed)
      (isWrapperFor [this interface] (.isInstance ^Class interface this))
      (unwrap [this interface]
        ((:on-unwrap options))
        (if (.isInstance ^Class interface this) this (throw (SQLException. "no wrapper"))))
      (abort [_ executor]
        (.execute executor
                  (fn []
                    (reset! (:running physical) :dead)
                    (note! db :abort)
                    ((:on-abort options))))
        ((:on-abort-end options)))
      (close [_]
        (when (compare-and-set! closing false true)
          (note! db :closed)
          ((:on-close options))
          (reset! closed true)
          (if (= :dead @(:running physical))
            ((:on-close-dead options))
            (.add ^LinkedBlockingQueue (:idle db) physical)))))))

(defn data-source
  "Returns a data source, a pool, of the database. :nanos - a function that returns how long the
  next statement lasts; :on-execute - called as a statement begins; :on-auto-commit, :on-rollback,
  :on-valid, :on-unwrap - in these calls; :on-abort - by the abort's executor, when the connection
  is dead; :on-abort-end - as abort returns; :on-close - as a connection is closed; :on-close-dead
  - as one is that was aborted; :on-statement-close - as a statement is closed."
  ^DataSource [db options]
  (let [hooks [:on-execute :on-auto-commit :on-rollback :on-valid :on-unwrap :on-abort :on-abort-end
               :on-close :on-close-dead :on-statement-close]
        options (merge (zipmap hooks (repeat (fn []))) {:nanos (constantly 10000000000)} options)]
    (reify
      DataSource
      (getConnection [_]
        (connection (or (.poll ^LinkedBlockingQueue (:idle db))
                        (do
                          (.incrementAndGet ^AtomicLong (:opened db))
                          {:running (atom nil)}))
                    db options)))))
