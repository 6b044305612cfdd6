(ns thrum.jdbc-test
  "What a cancel does to a call, over a driver of ours."
  (:require
   [clojure.datafy :as datafy]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [com.mchange.fake :as c3p0]
   [io.agroal.fake :as agroal]
   [thrum.core :as t]
   [thrum.jdbc :as jdbc]
   [thrum.jdbc.fake :as fake]
   [thrum.jdbc.grace :as grace]
   [thrum.jdbc.impl.call :as call]
   [thrum.jdbc.impl.session :as session]
   [thrum.jdbc.impl.streams :as streams]
   [thrum.jdbc.races :as races]
   [thrum.jdbc.uncaught :as uncaught]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.uncaught :as reporter])
  (:import
   (com.mysql.cj.jdbc.exceptions MySQLStatementCancelledException)
   (java.io Closeable InputStream OutputStream Reader Writer)
   (java.nio CharBuffer)
   (java.sql Connection ResultSet SQLException SQLFeatureNotSupportedException Savepoint Statement)
   (java.util.concurrent CancellationException Executor)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (javax.sql DataSource)
   (thrum.jdbc.fake DriverConnection DriverStatement Pool)
   (thrum.jdbc.impl.call Call)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- thrown-by ^Throwable [f]
  (try (f) (ex-info "returned" {}) (catch Throwable t t)))

(defmacro ^:private thrown [& body]
  `(thrown-by (fn [] ~@body)))

(defn- sql-state [t]
  (when (instance? SQLException t) (.getSQLState ^SQLException t)))

(defn- causes [t]
  (take-while some? (iterate ex-cause t)))

(defn- cancelled-by-driver? [t]
  (boolean (some #(= "57014" (sql-state %))
                 (causes t))))

(defn- open ^Connection [^DataSource source] (.getConnection source))

(defn- guarded
  ^DataSource [db options]
  (jdbc/data-source (fake/data-source db (:fake options))
                    (merge {:grace-ms 60000} (dissoc options :fake))))

(defn- execute! [^Connection connection]
  (with-open [statement (.createStatement connection)]
    (.execute statement "wait")))

(defn- query! [source]
  (with-open [connection (open source)]
    (execute! connection)))

(defn- waits-in-database? [{:keys [trail]}]
  (some #{:execute :commit} @trail))

(defn- stopped
  "Runs f, which waits in the database, and is cancelled as it does. Returns the trail."
  [db f]
  (thrown
    (t/with-scope [s]
      (t/thread (gate/eventually 60000 #(waits-in-database? db)) (t/cancel! s))
      (f)))
  (is (not (Thread/interrupted)))
  @(:trail db))

(defn- in-cancelled-work [f]
  (try
    (t/with-scope [s] (t/cancel! s) (f))
    (catch Throwable t t)))

;; A cancel

(deftest a-cancel-ends-the-statement-and-keeps-the-connection
  (let [db (fake/database fake/at-once), source (guarded db {})]
    (is (= [:execute :cancel :barrier :statement-closed :closed] (stopped db #(query! source))))
    (is (= 1 (.size ^java.util.Collection (:idle db))))))

;; It has no state, and no code.
(deftest mysqls-own-exception-answers-a-cancel
  (let [db (assoc (fake/database fake/at-once) :answer #(MySQLStatementCancelledException.))]
    (is (= [:execute :cancel :barrier :statement-closed :closed]
           (stopped db #(query! (guarded db {})))))))

(defn- found-in-database?
  "True if the statement had begun when its cancel was sent."
  [trail]
  (= :execute (some #{:execute :cancel} trail)))

(defn- timed-out
  "Returns [trail throwable] of (f source) that its deadline finds in the database: where it came
  before, the next one is twice as long. options-of is given the database."
  [deliver! options-of f]
  (let [run (fn [deadline-ms]
              (let [db (fake/database deliver!), source (guarded db (options-of db))
                    t (thrown (t/with-timeout deadline-ms (f source)))]
                [@(:trail db) t]))]
    (->> (iterate #(* 2 %) 20)
         (take 12)
         (map run)
         (filter (comp found-in-database? first))
         first)))

(deftest the-drivers-exception-is-in-the-cause-chain
  (let [[_ t] (timed-out fake/at-once (constantly {}) query!)]
    (is (= :thrum/timeout (spi/type-of t)))
    (is (instance? CancellationException (ex-cause t)))
    (is (cancelled-by-driver? t))))

(deftest a-task-that-is-cancelled-cancels-its-statement
  (let [db (fake/database fake/at-once), executing (promise)
        source (guarded db {:fake {:on-execute #(deliver executing true)}})
        task (t/future (query! source))]
    (deref executing 60000 nil)
    (future-cancel task)
    (is (gate/eventually 60000 #(= :closed (last @(:trail db)))))
    (is (= [:execute :cancel :barrier :statement-closed :closed] @(:trail db)))))

(deftest batches-and-rows-are-cancelled-too
  (let [db (fake/database fake/at-once), source (guarded db {})]
    (is (= [:execute :cancel :barrier :statement-closed :closed]
           (stopped db
             #(with-open [c (open source), s (.createStatement c)] (.executeBatch s)))))
    (reset! (:trail db) [])
    (is (some #{:cancel}
              (stopped db
                #(with-open [c (open source), s (.createStatement c)]
                   (.next (.executeQuery s ""))))))
    (reset! (:trail db) [])
    (is (some #{:cancel}
              (stopped db
                #(with-open [c (open source), s (.createStatement c)]
                   (.read (.getBinaryStream (.executeQuery s "") 1))))))))

(deftest rows-that-come-without-a-statement-are-cancelled-by-their-own
  (let [db (fake/database fake/at-once), source (guarded db {})]
    (is (= [:execute :cancel :barrier :closed]
           (stopped db #(with-open [c (open source)] (.next (.getTypeInfo (.getMetaData c)))))))))

(deftest a-large-parameter-is-cancelled-as-it-is-sent
  (let [db (fake/database fake/at-once), source (guarded db {})]
    (is (= [:execute :cancel :barrier :statement-closed :closed]
           (stopped db
             #(with-open [c (open source), s (.prepareStatement c "")]
                (.setBinaryStream s 1 (InputStream/nullInputStream))))))))

(deftest every-call-of-a-stream-is-cancelled
  (doseq [[open-stream calls]
          {#(ResultSet/.getBinaryStream % (int 1))
           [^[] InputStream/.read InputStream/.available InputStream/.reset
            #(InputStream/.skip % 1) #(InputStream/.mark % 1)
            #(.read ^InputStream % (byte-array 1)) #(.read ^InputStream % (byte-array 1) 0 1)]
           #(ResultSet/.getCharacterStream % (int 1))
           [^[] Reader/.read Reader/.ready Reader/.reset #(Reader/.skip % 1) #(Reader/.mark % 1)
            #(.read ^Reader % (CharBuffer/allocate 1))
            #(.read ^Reader % (char-array 1)) #(.read ^Reader % (char-array 1) 0 1)]}
          call calls]
    (let [db (fake/database fake/at-once), source (guarded db {})]
      (is (= [:execute :cancel :barrier]
             (take 3 (stopped db
                       #(with-open [c (open source), s (.createStatement c)]
                          (call (open-stream (.executeQuery s "")))))))))))

(deftest every-call-of-an-output-is-guarded
  (doseq [[null-stream calls]
          {^[] OutputStream/nullOutputStream
           [#(OutputStream/.write % 1) #(.write ^OutputStream % (byte-array 1))
            #(.write ^OutputStream % (byte-array 1) 0 1) OutputStream/.flush]
           ^[] Writer/nullWriter
           [#(.write ^Writer % 1) #(.write ^Writer % "x") #(.write ^Writer % "x" 0 1)
            #(.write ^Writer % (char-array 1)) #(.write ^Writer % (char-array 1) 0 1)
            Writer/.flush]}
          call calls]
    (let [guarded (atom [])
          guard #(fn [f] (swap! guarded conj %) (f))
          stream (streams/guarded (null-stream) (guard :run) (guard :clean-up))]
      (call stream)
      (Closeable/.close stream)
      (is (= [:run :clean-up] @guarded)))))

(deftest a-stream-is-closed-in-cancelled-work-and-the-drivers-exception-stays
  (let [read! #(with-open [c (open %), s (.createStatement c), rows (.executeQuery s "")
                           in (.getBinaryStream rows 1)]
                 (.read in))
        [trail t] (timed-out fake/at-once (constantly {}) read!)]
    (is (cancelled-by-driver? t))
    (is (= [:execute :cancel :barrier :stream-closed :result-closed :statement-closed :closed]
           trail))))

(deftest a-stream-may-be-closed-after-its-connection
  (let [db (fake/database fake/at-once), connection (open (guarded db {}))
        in (.getBinaryStream (.executeQuery (.createStatement connection) "") 1)]
    (.close connection)
    (is (nil? (.close in)))
    (is (= [:closed :stream-closed] @(:trail db)))))

(deftest outside-of-any-work-all-is-as-it-is
  (let [db (fake/database fake/at-once), source (guarded db {:fake {:nanos (constantly 0)}})]
    (is (true? (query! source)))
    (is (= [:execute :statement-closed :closed] @(:trail db)))))

;; Bad drivers

(deftest a-cancel-that-does-not-work-ends-in-an-abort
  (let [release (promise)]
    (doseq [[how deliver!] {:ignores (fn [_])
                            :throws (fn [_] (throw (SQLException. "no")))
                            :blocks (fn [_] (deref release 10000 nil))}]
      (testing how
        (grace/in-hand
          (fn [end!]
            (let [db (fake/database #(do (end!) (deliver! %))), source (guarded db {:grace-ms 100})]
              (is (= [:execute :cancel :abort] (take 3 (dedupe (stopped db #(query! source))))))
              (is (empty? (:idle db)))
              (is (true? (query! (guarded db {:fake {:nanos (constantly 0)}})))))))))
    (deliver release true)))

(defn- evicting
  "Returns a pool of the database whose connections are taken out by (evict! connection)."
  ^DataSource [db evict!]
  (let [inside (fake/data-source db {})]
    (reify
      DataSource
      (getConnection [_] (.getConnection inside))
      Pool
      (evictConnection [_ connection] (evict! connection)))))

(deftest a-connection-that-is-given-up-leaves-its-pool-before-its-abort
  (let [failures (atom 0)]
    (doseq [fail [(constantly nil)
                  #(do (swap! failures inc) (throw (IllegalStateException. "no")))]]
      (let [db (fake/database (fn [_]))
            pool (evicting db (fn [_] (fake/note! db :evicted) (fail)))]
        (reporter/reporting (fn [_ _])
          (fn []
            (is (= [:evicted :abort]
                   (filter #{:evicted :abort}
                           (stopped db #(query! (jdbc/data-source pool {:grace-ms 20}))))))))))
    (is (= 1 @failures))))

(deftest a-cancel-that-came-too-early-is-sent-again
  (grace/in-hand
    (fn [end!]
      (let [sent (atom 0), db (fake/database #(when (< 1 (swap! sent inc)) (%)))
            source (guarded db {}), stop! @#'call/stop!]
        (with-redefs [call/stop! (fn [call cancel] (stop! call cancel) (end!))]
          (is (= [:execute :cancel :cancel :abort] (take 4 (stopped db #(query! source))))))
        (testing "and, since one of the two may come late, the connection is given up"
          (is (empty? (:idle db))))))))

(defn- sent [call]
  (.get ^AtomicReference (.-sent ^Call call)))

(deftest an-answer-to-one-of-two-cancels-is-no-proof
  (grace/in-hand
    (fn [end!]
      (let [cancels (atom 0), db (fake/database #(when (< 1 (swap! cancels inc)) (%)))
            source (guarded db {}), ended (promise)
            move? @#'call/move?, stop! @#'call/stop!, settle! @#'call/settle!]
        (with-redefs [call/stop! (fn [call cancel] (stop! call cancel) (end!))
                      call/move? (fn [call from to]
                                   (when (= :aborted to) (deref ended 10000 nil))
                                   (move? call from to))
                      call/settle! (fn [call t]
                                     (gate/eventually 10000 #(= :twice (sent call)))
                                     (settle! call t)
                                     (deliver ended true))]
          (is (= [:execute :cancel :cancel :abort] (take 4 (stopped db #(query! source))))))))))

(deftest a-grace-that-ends-after-its-call-aborts-nothing
  (grace/in-hand
    (fn [end!]
      (let [db (fake/database fake/at-once), source (guarded db {})]
        (stopped db #(query! source))
        (deref (second (end!)) 10000 nil)
        (is (= [:execute :cancel :barrier :statement-closed :closed] @(:trail db)))))))

(deftest no-grace-goes-on-after-its-call
  (let [db (fake/database fake/at-once), source (guarded db {})
        left (atom #{}), graces (atom 0), arm! spi/arm!, disarm! spi/disarm!
        patience @#'call/patience-ms
        long? #(< (long patience) (quot (- (long %) (System/nanoTime)) 1000000))]
    (with-redefs [spi/arm! (fn [^long deadline f]
                             (let [alarm (arm! deadline f)]
                               (when (long? deadline) (swap! left conj alarm) (swap! graces inc))
                               alarm))
                  spi/disarm! (fn [alarm] (disarm! alarm) (swap! left disj alarm))]
      (stopped db #(query! source)))
    (is (pos? (long @graces)))
    (is (= #{} @left))))

(deftest a-cancel-further-out-interrupts-no-clean-up
  (doseq [hook [:on-valid :on-rollback]]
    (let [db (fake/database fake/at-once), outer (promise), interrupted (promise)
          cancel! #(do
                     (t/cancel! @outer)
                     (deliver interrupted (.isInterrupted (Thread/currentThread))))
          source (guarded db {:fake {hook cancel!}})]
      (thrown
        (t/with-scope [s]
          (deliver outer s)
          (t/with-scope [s]
            (t/thread (gate/eventually 60000 #(waits-in-database? db)) (t/cancel! s))
            (with-open [c (open source)]
              (.setAutoCommit c false)
              (execute! c)))))
      (is (not (Thread/interrupted)))
      (is (false? (deref interrupted 0 :never)))
      (is (= [[:auto-commit false] :execute :cancel :barrier :statement-closed :rollback :closed]
             @(:trail db))))))

(deftest a-cancel-is-sent-however-short-the-grace-is
  (doseq [grace-ms [0 1]]
    (let [db (fake/database fake/at-once), source (guarded db {:grace-ms grace-ms})]
      (is (= [:execute :cancel] (take 2 (stopped db #(query! source))))))))

(deftest a-second-cancel-that-blocks-holds-no-abort-up
  (grace/in-hand
    (fn [end!]
      (let [sent (atom 0), release (promise)
            db (fake/database (fn [_] (when (= 2 (swap! sent inc)) (deref release 60000 nil))))
            source (guarded db {}), stop! @#'call/stop!]
        (with-redefs [call/stop! (fn [call cancel] (stop! call cancel) (end!))]
          (is (= [:execute :cancel :cancel :abort]
                 (take 4 (gate/in-time 10000 (fn [] (stopped db #(query! source))))))))
        (deliver release true)))))

(deftest a-driver-that-blocks-elsewhere-keeps-no-caller
  (doseq [where [:on-abort :on-abort-end :on-unwrap]]
    (testing where
      (let [release (promise), db (fake/database (fn [_]))
            source (guarded db {:grace-ms 20, :fake {where #(deref release 60000 nil)}})]
        (try
          (is (some #{:abort} (gate/in-time 10000 (fn [] (stopped db #(query! source))))))
          (finally (deliver release true)))))))

(deftest a-connection-goes-back-when-its-abort-has-ended
  (grace/in-hand
    (fn [end!]
      (let [ended (promise), db (fake/database (fn [_] (end!)))
            closed? #(some #{:closed} @(:trail db))
            on-abort #(do (gate/eventually 200 closed?) (deliver ended true))
            on-close #(fake/note! db (realized? ended))
            source (guarded db {:fake {:on-abort on-abort, :on-close on-close}})]
        (is (= [:abort :closed true] (take-last 3 (stopped db #(query! source)))))))))

(defn- session
  "Returns the session of a connection that is aborted by abort; it may take a minute."
  [abort]
  (session/session (reify Connection (abort [_ _] (abort)))
                   {:grace-ms 60000, :evict identity}
                   identity))

(deftest an-abort-that-throws-is-not-waited-for
  (let [session (session #(throw (Error. "abort")))]
    (reporter/reporting (fn [_ _])
                        #(is (true? (gate/in-time 10000 (fn [] (session/abort! session) true)))))))

(deftest an-interrupt-while-an-abort-is-waited-for-stays
  (let [me (Thread/currentThread), gate (promise)
        waits? #(#{Thread$State/WAITING Thread$State/TIMED_WAITING} (.getState me))]
    (session/abort! (session #(do (gate/eventually 5000 waits?)
                                  (.interrupt me)
                                  (deref gate 60000 nil))))
    (deliver gate :go)
    (is (Thread/interrupted))))

(deftest a-driver-without-a-check-costs-the-connection
  (let [error (AbstractMethodError. "isValid")
        options {:fake {:on-valid #(throw error)}}
        [[trail t] seen] (uncaught/during #(timed-out fake/at-once (constantly options) query!))]
    (is (= :thrum/timeout (t/error-type t)))
    (is (= [:execute :cancel :barrier :abort :closed] trail))
    (is (= #{error} (set seen)))))

;; Drivers from before JDBC 4.
(deftest an-unwrap-that-throws-an-error-leaves-the-statements-cancel
  (let [db (fake/database fake/at-once)
        source (guarded db {:fake {:on-unwrap #(throw (AbstractMethodError. "unwrap"))}})]
    (is (= [:execute :cancel :barrier :statement-closed :closed] (stopped db #(query! source))))))

(deftest an-answer-to-anothers-cancel-is-no-proof
  (let [other (fake/database (fn [_])), cancelled? #(some #{:cancel} @(:trail other))
        db (fake/database #(do (gate/eventually 10000 cancelled?) (%)))
        source (guarded db {}), other-source (guarded other {})]
    (stopped db
             #(with-open [connection (open other-source), statement (.createStatement connection)]
                (jdbc/call-with statement DriverStatement (fn [_] (query! source)))))
    (is (= [:cancel :abort :closed] @(:trail other)))))

(deftest an-answer-that-nobody-asked-for-and-no-answer-are-no-proof
  (testing "the statement ended well, as its cancel was on the way"
    (let [db (assoc (fake/database (fn [_])) :let-go (volatile! false))
          db (assoc db :deliver! (fn [_] (vreset! (:let-go db) true)))
          source (guarded db {})]
      (is (= [:execute :cancel :abort] (take 3 (stopped db #(query! source))))))))

(deftest a-check-that-hangs-ends-in-an-abort
  (let [aborted (promise), db (fake/database fake/at-once)
        hooks {:on-valid #(deref aborted 60000 nil), :on-abort #(deliver aborted true)}
        stopped #(stopped db (fn [] (query! (guarded db {:grace-ms 500, :fake hooks}))))]
    (is (some #{:abort} (gate/in-time 30000 stopped)))))

(deftest an-aborted-connection-says-so
  (let [db (fake/database (fn [_]))
        on-close-dead #(throw (NullPointerException. "evicted"))
        source (guarded db {:grace-ms 10, :fake {:on-close-dead on-close-dead}})
        connection (open source)]
    (stopped db #(execute! connection))
    (is (= "08003" (sql-state (thrown (.createStatement connection)))))
    (is (.isClosed connection))
    (is (not (.isValid connection 1)))
    (is (nil? (.rollback connection)))
    (.close connection)
    (is (= {:in-use 0, :held-by []} (select-keys (datafy/datafy source) [:in-use :held-by])))))

;; Many close a connection only where it does not say that it is closed.
(deftest an-aborted-connection-that-says-it-is-closed-has-gone-back
  (let [db (fake/database (fn [_])), source (guarded db {:connections 1, :grace-ms 10})
        connection (open source)]
    (stopped db #(execute! connection))
    (is @(future (.isClosed connection)) "and a call may still run")
    (is (= 1 (:in-use (datafy/datafy source))))
    (is (.isClosed connection))
    (is (= {:in-use 0, :held-by []} (select-keys (datafy/datafy source) [:in-use :held-by])))
    (.close connection)
    (is (= [:abort :closed] (take-last 2 @(:trail db))))))

(defn- given-up
  "Returns a connection whose transaction was lost to a cancel that nothing answered."
  ^Connection []
  (let [db (fake/database (fn [_])), connection (open (guarded db {:grace-ms 10}))]
    (.setAutoCommit connection false)
    (stopped db #(execute! connection))
    connection))

(deftest auto-commit-does-not-hide-that-a-transaction-is-lost
  (with-open [connection (given-up)]
    (is (= "08003" (sql-state (thrown (.setAutoCommit connection true)))))))

(deftest auto-commit-does-not-hide-that-a-transaction-is-lost-while-it-runs
  (let [db (fake/database (fn [_])), abort (promise), here (reify Executor (execute [_ f] (.run f)))
        source (guarded db {:fake {:on-auto-commit #(when (realized? abort) (@abort))}})]
    (with-open [connection (open source)]
      (.setAutoCommit connection false)
      (deliver abort #(.abort connection here))
      (is (= "08003" (sql-state (thrown (.setAutoCommit connection true))))))))

(deftest auto-commit-is-put-back-on-a-connection-that-was-given-up-and-rolled-back
  (doseq [roll-back! [Connection/.rollback #(in-cancelled-work (fn [] (Connection/.rollback %)))]]
    (with-open [connection (given-up)]
      (roll-back! connection)
      (is (nil? (.setAutoCommit connection true))))))

(deftest auto-commit-is-put-back-in-cancelled-work-on-a-connection-that-was-given-up
  (with-open [connection (given-up)]
    (is (nil? (in-cancelled-work #(.setAutoCommit connection true))))))

;; HikariCP throws a NullPointerException at such a close.
(deftest a-connection-that-was-given-up-closes-whatever-its-pool-throws
  (let [options {:grace-ms 10, :fake {:on-close-dead #(throw (NullPointerException. "evicted"))}}
        [trail t] (timed-out (fn [_]) (constantly options) query!)]
    (is (= :thrum/timeout (t/error-type t)))
    (is (= [:abort :closed] (take-last 2 trail)))))

(deftest clean-up-that-is-given-up-in-the-middle-hides-no-cancel
  (doseq [clean-up [(fn [_]) Connection/.rollback #(Connection/.setAutoCommit % true)]]
    (grace/in-hand
      (fn [end!]
        (let [aborted? (fn [db] (some #{:abort} @(:trail db)))
              give-up! (fn [db] (end!) (gate/eventually 60000 #(aborted? db)))
              options-of (fn [db] {:fake {:on-rollback #(give-up! db)}})
              transaction! #(with-open [c (open %)]
                              (.setAutoCommit c false)
                              (try (execute! c) (finally (clean-up c))))
              [trail t] (timed-out fake/at-once options-of transaction!)]
          (is (= :thrum/timeout (t/error-type t)))
          (is (= [:rollback :abort :closed] (take-last 3 trail))))))))

(deftest a-statement-whose-close-is-given-up-hides-no-cancel
  (grace/in-hand
    (fn [end!]
      (let [aborted? (fn [db] (some #{:abort} @(:trail db)))
            fail! (fn [db]
                    (end!)
                    (gate/eventually 60000 #(aborted? db))
                    (throw (SQLException. "dead" "08006")))
            options-of (fn [db] {:fake {:on-statement-close #(fail! db)}})
            [trail t] (timed-out fake/at-once options-of query!)]
        (is (= :thrum/timeout (t/error-type t)))
        (is (= [:statement-closed :abort :closed] (take-last 3 trail)))))))

(deftest clean-up-that-fails-gives-the-connection-up-and-hides-no-cancel
  (let [gone (SQLException. "gone" "08006"), fail #(throw gone)]
    (doseq [[clean-up fake end]
            [[(fn [_]) {:on-rollback fail} [:rollback :abort :closed]]
             [Connection/.rollback {:on-rollback fail} [:rollback :abort :closed]]
             [#(Connection/.setAutoCommit % true) {:on-rollback fail} [:rollback :abort :closed]]
             [(fn [_]) {:on-close fail} [:rollback :closed :abort]]]]
      (let [transaction! #(with-open [c (open %)]
                            (.setAutoCommit c false)
                            (try (execute! c) (finally (clean-up c))))
            [[trail t] seen] (uncaught/during
                               #(timed-out fake/at-once (constantly {:fake fake}) transaction!))]
        (is (= :thrum/timeout (t/error-type t)))
        (is (= end (take-last 3 trail)))
        (is (= #{gone} (set seen)))))))

(deftest a-close-that-hangs-can-be-aborted
  (let [db (fake/database fake/at-once), closing (promise), release (promise)
        hang! #(do (deliver closing true) (deref release 60000 nil))
        connection (open (guarded db {:fake {:on-close hang!}}))
        ^Thread closer (t/thread (.close connection))]
    (is (true? (deref closing 60000 nil)))
    (.abort connection (reify Executor (execute [_ f] (.run f))))
    (deliver release true)
    (.join closer)
    (is (= [:closed :abort] @(:trail db)))))

;; Cancelled work

(deftest in-cancelled-work-nothing-begins-but-what-cleans-up
  (let [db (fake/database fake/at-once), source (guarded db {:fake {:nanos (constantly 0)}})
        connection (open source), statement (.createStatement connection)
        refused (atom [])]
    (.setAutoCommit connection false)
    (.execute statement "")
    (in-cancelled-work
      #(do
         (doseq [f [(fn [] (.execute statement "")) (fn [] (.commit connection))
                    (fn [] (.createStatement connection)) (fn [] (open source))]]
           (try (f) (catch CancellationException e (swap! refused conj (class e)))))
         (.rollback connection)
         (.close statement)
         (.close connection)))
    (is (= 4 (count @refused)))
    (is (= [[:auto-commit false] :execute :rollback :statement-closed :rollback :closed]
           @(:trail db)))
    (is (not (Thread/interrupted)))))

(deftest a-transaction-of-cancelled-work-is-not-committed-by-auto-commit
  (let [db (fake/database fake/at-once), source (guarded db {})
        connection (open source)]
    (.setAutoCommit connection false)
    (in-cancelled-work #(.setAutoCommit connection true))
    (.close connection)
    (is (= [[:auto-commit false] :rollback [:auto-commit true] :closed] @(:trail db)))))

;; A setting may bring a commit, or be refused in a transaction.
(deftest a-transaction-of-cancelled-work-is-rolled-back-before-a-setting
  (let [db (fake/database fake/at-once), source (guarded db {})]
    (with-open [connection (open source)]
      (.setAutoCommit connection false)
      (in-cancelled-work #(.setReadOnly connection true)))
    (is (= [[:auto-commit false] :rollback [:read-only true] :closed] @(:trail db)))))

(deftest a-savepoint-of-cancelled-work-is-gone-back-to-and-no-further
  (let [db (fake/database fake/at-once), source (guarded db {})]
    (with-open [connection (open source)]
      (.setAutoCommit connection false)
      (in-cancelled-work #(.rollback connection (reify Savepoint))))
    (is (= [[:auto-commit false] :rollback-to-savepoint :closed] @(:trail db)))))

(deftest a-commit-is-never-cancelled-but-aborted-after-the-grace
  (let [db (fake/database fake/at-once), source (guarded db {:grace-ms 20})]
    (is (= [[:auto-commit false] :commit :abort :closed]
           (stopped db
             #(with-open [c (open source)] (.setAutoCommit c false) (.commit c)))))))

(deftest a-shield-may-use-the-connection-after-the-cancel
  (let [db (fake/database fake/at-once), slow (volatile! true)
        source (guarded db {:fake {:nanos #(if @slow 10000000000 0)}})
        connection (open source), trail (atom [])]
    (stopped db
             #(try
                (execute! connection)
                (finally
                  (vreset! slow false)
                  (t/shield 60000 (swap! trail conj (execute! connection))))))
    (.close connection)
    (is (= [true] @trail))
    (is (= 1 (.size ^java.util.Collection (:idle db))))))

;; Waiting for a connection

(deftest a-connection-is-waited-for-until-the-deadline
  (let [db (fake/database fake/at-once), source (guarded db {:connections 1})]
    (with-open [_ (open source)]
      (is (= {:permits 1, :in-use 1} (select-keys (datafy/datafy source) [:permits :in-use])))
      (is (= [(.getName (Thread/currentThread))] (map :thread (:held-by (datafy/datafy source)))))
      (is (= :late (t/with-timeout [20 :late] (open source)))))
    (is (= 1 (.get ^AtomicLong (:opened db))))
    (is (= {:in-use 0, :waiting 0, :held-by []}
           (select-keys (datafy/datafy source) [:in-use :waiting :held-by])))))

(deftest a-connection-shows-who-has-it
  (let [db (fake/database fake/at-once), source (guarded db {:connections 2})
        holder #(select-keys (first (:held-by (datafy/datafy source))) [:thread-id :ended?])
        taken (promise), gate (promise)
        thread (Thread/startVirtualThread
                 #(do (deliver taken (open source)) (deref gate 10000 :late)))]
    (with-open [_ ^Connection (deref taken 10000 :late)]
      (is (= {:thread-id (.threadId thread)} (holder)))
      (deliver gate :go)
      (.join thread)
      (is (= {:thread-id (.threadId thread), :ended? true} (holder)))
      (is (= "" (:thread (first (:held-by (datafy/datafy source)))))))))

(deftest a-connection-that-nobody-has-returned-in-time-is-refused
  (let [db (fake/database fake/at-once), source (guarded db {:connections 1, :wait-ms 5})]
    (with-open [_ (open source)]
      (is (= :thrum/rejected (spi/type-of (thrown (open source))))))))

(deftest an-interrupt-is-thrown-as-declared-and-stays
  (let [db (fake/database fake/at-once), source (guarded db {:connections 1})
        attempt #(do
                   (when % (.interrupt (Thread/currentThread)))
                   [(thrown (open source)) (Thread/interrupted)])]
    (with-open [_ (open source)]
      (let [[^Thread thread outcome] (gate/start "waits" #(attempt false))]
        (is (gate/eventually 10000 #(= 1 (:waiting (datafy/datafy source)))))
        (.interrupt thread)
        (doseq [[t interrupted] [(:value (deref outcome 10000 nil)) (attempt true)
                                 (t/with-scope [_] (attempt true))]]
          (is (instance? SQLException t))
          (is (instance? InterruptedException (ex-cause t)))
          (is (true? interrupted)))))
    (is (= {:in-use 0, :waiting 0} (select-keys (datafy/datafy source) [:in-use :waiting])))))

(defn- source-of ^DataSource [f]
  (reify DataSource (getConnection [_] (f))))

(deftest a-pool-that-hangs-is-left-and-its-connection-goes-back
  (let [db (fake/database fake/at-once), inside (fake/data-source db {}), release (promise)
        interrupted (promise), asked (promise)
        source (jdbc/data-source
                 (source-of (fn []
                              (deliver asked true)
                              (try
                                (deref release 60000 nil)
                                (catch InterruptedException _ (deliver interrupted true)))
                              (.getConnection inside)))
                 {:connections 1})]
    (is (instance? CancellationException
                   (thrown (t/with-scope [s] (t/thread @asked (t/cancel! s)) (open source)))))
    (is (= 1 (:in-use (datafy/datafy source))))
    (deliver release true)
    (is (gate/eventually 60000 #(zero? (long (:in-use (datafy/datafy source))))))
    (is (= [:closed] @(:trail db)))
    (is (not (realized? interrupted)))))

(deftest a-connection-that-comes-as-its-caller-leaves-goes-back
  (let [db (fake/database fake/at-once), interrupted (promise), wait spi/wait-until
        on-close #(deliver interrupted (.isInterrupted (Thread/currentThread)))
        source (guarded db {:connections 1, :fake {:on-close on-close}})
        leave! (fn [& args]
                 (apply wait args)
                 (.interrupt (Thread/currentThread))
                 (throw (CancellationException.)))]
    (with-redefs [spi/wait-until leave!]
      (is (instance? CancellationException (thrown (open source)))))
    (is (Thread/interrupted))
    (is (= [:closed] @(:trail db)))
    (is (false? (deref interrupted 0 :never)))
    (is (zero? (long (:in-use (datafy/datafy source)))))))

(deftest a-connection-that-comes-too-late-and-cannot-be-closed-gives-its-permit-back
  (let [fail #(throw (SQLException. "no network" "08006")), asked (promise), release (promise)
        inside (fake/data-source (fake/database fake/at-once) {:on-close fail})
        source (jdbc/data-source
                 (source-of #(do
                               (deliver asked true)
                               (deref release 60000 nil)
                               (.getConnection inside)))
                 {:connections 1})
        reported (promise)]
    (reporter/reporting (fn [_ t] (deliver reported t))
      (fn []
        (is (instance? CancellationException
                       (thrown (t/with-scope [s] (t/thread @asked (t/cancel! s)) (open source)))))
        (deliver release true)
        (is (= "08006" (sql-state (deref reported 60000 nil))))
        (is (gate/eventually 60000 #(zero? (long (:in-use (datafy/datafy source))))))))))

(defn- wrapping
  "Returns a data source whose connections are in wrappers. An abort of one calls on-abort alone."
  ^DataSource [wrapper db fake on-abort]
  (let [inside (fake/data-source db fake)]
    (jdbc/data-source (source-of #(wrapper (.getConnection inside) on-abort)) {:grace-ms 20})))

(deftest of-c3p0-and-agroal-the-drivers-connection-is-aborted-not-its-wrapper
  (doseq [wrapper [c3p0/wrapper agroal/wrapper]]
    (let [db (fake/database (fn [_]))
          source (wrapping wrapper db {} #(fake/note! db :wrapper-aborted))]
      (is (= [:abort :closed] (take-last 2 (stopped db #(query! source)))))
      (is (not-any? #{:wrapper-aborted} @(:trail db))))))

;; The wrapper, aborted in the middle, would keep its place in the pool.
(deftest of-c3p0-the-drivers-connection-is-aborted-also-in-a-close-that-rolls-back-for-too-long
  (let [db (fake/database fake/at-once), aborted (promise)
        wait #(deref aborted 60000 nil), go-on #(deliver aborted true)
        source (wrapping c3p0/wrapper db {:on-rollback wait, :on-abort go-on}
                         #(do (fake/note! db :wrapper-aborted) (go-on)))
        connection (open source)]
    (.setAutoCommit connection false)
    (in-cancelled-work #(.close connection))
    (is (= [:rollback :abort :closed] (take-last 3 @(:trail db))))))

;; As HikariCP's, whose statements give their connection up where a call throws such a state.
(defn- letting-go
  "Returns a connection around another, whose statements unwrap to (within statement). Once a cancel
  of its statements has thrown, its abort does nothing."
  ^Connection [^Connection inside within]
  (let [dead (atom false)]
    (reify Connection
      (createStatement [_]
        (let [statement (.createStatement inside)]
          (reify Statement
            (^boolean execute [_ ^String sql] (.execute statement sql))
            (cancel [_]
              (try
                (.cancel statement)
                (catch SQLException e
                  (reset! dead true)
                  (throw e))))
            (unwrap [_ _] (within statement))
            (close [_] (.close statement)))))
      (getAutoCommit [_] true)
      (isValid [_ seconds] (.isValid inside seconds))
      (unwrap [_ _] inside)
      (abort [_ executor] (when-not @dead (.abort inside executor)))
      (close [_] (.close inside)))))

(deftest a-cancel-that-finds-no-connection-keeps-its-pool-from-no-abort
  (let [db (fake/database (fn [_] (throw (SQLException. "Too many connections" "08004"))))
        inside (fake/data-source db {})
        source (jdbc/data-source (source-of #(letting-go (.getConnection inside) identity))
                                 {:grace-ms 20})]
    (is (= [:execute :cancel :abort] (take 3 (stopped db #(query! source)))))))

(deftest what-unwraps-to-no-statement-is-cancelled-itself
  (doseq [within [(constantly nil) (constantly "no statement")]]
    (let [db (fake/database fake/at-once)
          inside (fake/data-source db {})
          source (jdbc/data-source (source-of #(letting-go (.getConnection inside) within))
                                   {:grace-ms 60000})]
      (is (= [:execute :cancel :barrier :statement-closed :closed]
             (stopped db #(query! source)))))))

;; It may belong to another by now.
(deftest a-connection-of-c3p0-that-goes-back-is-not-aborted
  (let [db (fake/database fake/at-once)
        wrapper (c3p0/wrapper (open (fake/data-source db {})) #(fake/note! db :wrapper-aborted))
        session (session/session wrapper {:grace-ms 20, :evict (fn [_])} (fn [_]))]
    (session/give-back! session)
    (session/abort! session)
    (is (= [:closed] @(:trail db)))))

(deftest a-pool-that-has-none-is-asked-again
  (let [answers (atom [nil (SQLException. "shut down")])
        source (jdbc/data-source
                 (source-of #(let [answer (first @answers)]
                               (swap! answers rest)
                               (if answer (throw answer) nil)))
                 {:connections 1})]
    (is (= "08001" (sql-state (thrown (open source)))))
    (is (= "shut down" (ex-message (thrown (open source)))))
    (is (zero? (long (:in-use (datafy/datafy source)))))))

(deftest a-wrap-that-fails-keeps-no-connection
  (doseq [[wrap error] {42 :thrum/invalid
                        (fn [_] (fn [] (throw (ex-info "" {:type :broken})))) :broken
                        (fn [_] (fn [])) nil}]
    (let [db (fake/database fake/at-once), source (guarded db {:connections 1})]
      (is (= error
             (spi/type-of (thrown (gate/in-time 10000
                                                #(binding [t/*wrap* wrap] (open source)))))))
      (gate/in-time 10000 #(.close (open source)))
      (is (zero? (long (:in-use (datafy/datafy source))))))))

;; What is handed out

(deftest nothing-unguarded-is-handed-out
  (let [db (fake/database fake/at-once), source (guarded db {})]
    (with-open [connection (open source)
                statement (.createStatement connection)
                result (.executeQuery statement "")]
      (is (identical? connection (.getConnection statement)))
      (is (identical? statement (.getStatement result)))
      (is (identical? connection (.unwrap connection Connection)))
      (is (.equals connection connection))
      (is (not (.equals connection statement)))
      (is (re-find #"^thrum.jdbc " (str connection)))
      (is (instance? SQLFeatureNotSupportedException (thrown (.unwrap connection String))))
      (is (instance? SQLFeatureNotSupportedException (thrown (.unwrap source String))))
      (is (identical? source (.unwrap source DataSource))))))

(deftest a-result-may-be-its-own-metadata
  (let [db (fake/database fake/at-once), source (guarded db {:fake {:nanos (constantly 0)}})]
    (with-open [connection (open source)
                statement (.createStatement connection)
                result (.executeQuery statement "")]
      (is (= 1 (.getColumnCount (.getMetaData result))))
      (is (.next result)))))

(deftest what-java-sql-declares-goes-the-same-way-on-an-unwrapped-connection
  (let [db (fake/database fake/at-once), source (guarded db {:fake {:nanos (constantly 0)}})
        connection (open source), ^DriverConnection unwrapped (.unwrap connection DriverConnection)]
    (.setAutoCommit unwrapped false)
    (in-cancelled-work
      #(do
         (.rollback unwrapped)
         (.setReadOnly unwrapped true)
         (is (instance? CancellationException (thrown (.work unwrapped))))
         (.close unwrapped)))
    (is (.isClosed connection))
    (is (zero? (long (:in-use (datafy/datafy source)))))
    (is (= [[:auto-commit false] :rollback :rollback [:read-only true] :rollback :closed]
           @(:trail db)))))

(deftest a-call-of-an-unwrapped-statement-is-cancelled-by-the-statements-cancel
  (let [db (fake/database fake/at-once), source (guarded db {})]
    (is (= [:execute :cancel :barrier :statement-closed :closed]
           (stopped db
             #(with-open [c (open source), s (.createStatement c)]
                (.work ^DriverStatement (.unwrap s DriverStatement))))))))

(deftest a-method-of-the-drivers-own-may-return-nothing
  (with-open [connection (open (guarded (fake/database fake/at-once) {}))
              statement (.createStatement connection)]
    (is (nil? (.idle ^DriverStatement (.unwrap statement DriverStatement))))))

(deftest a-class-that-is-not-unwrapped-is-not-promised
  (with-open [connection (open (guarded (fake/database fake/at-once) {}))
              statement (.createStatement connection)]
    (is (.isWrapperFor connection DriverConnection))
    (is (.isWrapperFor statement DriverStatement))
    (is (not (.isWrapperFor statement String)))
    (is (instance? SQLFeatureNotSupportedException (thrown (.unwrap statement String))))))

(deftest what-was-closed-is-not-used
  (let [db (fake/database fake/at-once)
        source (guarded db {:connections 1, :fake {:nanos (constantly 0)}})
        connection (open source), statement (.createStatement connection)]
    (.close connection)
    (.close connection)
    (is (= 0 (:in-use (datafy/datafy source))))
    (is (= "08003" (sql-state (thrown (.execute statement "")))))
    (is (.isClosed connection))
    (is (false? (.isValid connection 1)))
    (.abort connection (reify Executor (execute [_ f] (.run f))))
    (is (= [:closed] @(:trail db)))))

(deftest a-close-that-fails-says-so-and-gives-its-permit-back
  (let [fail #(throw (SQLException. "no network" "08006"))
        source (guarded (fake/database fake/at-once) {:connections 1, :fake {:on-close fail}})
        connection (open source)]
    (is (= "08006" (sql-state (thrown (.close connection)))))
    (is (= {:in-use 0, :held-by []} (select-keys (datafy/datafy source) [:in-use :held-by])))))

(deftest a-connection-closed-in-the-middle-is-not-cancelled
  (let [db (fake/database fake/at-once), executing (promise)
        source (guarded db {:grace-ms 20, :fake {:on-execute #(deliver executing true)}})
        connection (open source)
        task (t/future (execute! connection))]
    (deref executing 60000 nil)
    (.close connection)
    (future-cancel task)
    (is (gate/eventually 60000 #(some #{:abort} @(:trail db))))
    (is (not-any? #{:cancel} @(:trail db)))))

(deftest a-call-of-the-drivers-own-is-guarded-as-one
  (let [db (fake/database (fn [_])), source (guarded db {:grace-ms 20})]
    (with-open [connection (open source)]
      (is (= 42 (jdbc/call-with connection Connection (fn [_] 42))))
      (is (= [:execute :abort]
             (stopped db #(jdbc/call-with connection Connection
                                          (fn [^Connection c]
                                            (.execute (.createStatement c) "")))))))
    (is (= :thrum/invalid (spi/type-of (thrown (jdbc/call-with 1 Connection identity)))))))

(deftest misuse-is-answered-at-the-call
  (let [source (fake/data-source (fake/database fake/at-once) {})]
    (doseq [f [#(jdbc/data-source nil) #(jdbc/data-source source {:grace-ms -1})
               #(jdbc/data-source source {:grace 1}) #(jdbc/data-source source {:connections 0})
               #(jdbc/data-source source {:wait-ms 1})]]
      (is (= :thrum/invalid (spi/type-of (thrown (f))))))
    (with-open [connection (open (jdbc/data-source source))]
      (doseq [[driver-class f] [[nil identity] ["text" identity] [Connection nil] [Connection 42]]]
        (is (= :thrum/invalid
               (spi/type-of (thrown (jdbc/call-with connection driver-class f)))))))))

(deftest the-longest-grace-is-no-more-than-a-check-may-take
  (let [db (fake/database fake/at-once), source (guarded db {:grace-ms Long/MAX_VALUE})]
    (is (= [:execute :cancel :barrier :statement-closed :closed] (stopped db #(query! source))))))

;; Races: as many as -Dthrum.jdbc.races says; the soak runs a million

(deftest no-cancel-hits-anothers-statement
  (let [n (Long/getLong "thrum.jdbc.races" 2000)]
    (is (= {:misses 0, :lost []} (select-keys (races/run n) [:misses :lost])))))

(deftest a-cancel-that-is-not-settled-would-hit-anothers
  (is (pos? (long (races/misses-unsettled 1000)))))
