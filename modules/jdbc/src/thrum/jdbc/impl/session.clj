(ns thrum.jdbc.impl.session
  "A connection while it is in use: whether it may be used, and how it is given up."
  {:no-doc true}
  (:require
   [thrum.spi :as spi])
  (:import
   (java.lang.reflect Method)
   (java.sql Connection SQLNonTransientConnectionException Wrapper)
   (java.util.concurrent Executor)
   (java.util.concurrent.atomic AtomicBoolean AtomicReference)))

(set! *warn-on-reflection* true)

;; raw: the connection as it came. to-abort: see there. grace-ms: how long a cancelled call may go
;; on. evict: a function of raw that takes it out of its pool. aborted: nil; :lost once it was given
;; up; :rolled-back where a rollback was asked for since. gone: a promise, delivered when the abort
;; has ended. closed: by its user. returned: raw has been closed, or is about to be. proxy: what the
;; user has. thread, since: who took it when.
(deftype Session [^Connection raw ^Connection to-abort ^long grace-ms evict on-close
                  ^AtomicReference aborted gone ^AtomicBoolean closed ^AtomicBoolean returned
                  ^AtomicReference proxy ^Thread thread ^long since])

(defn unwrapped
  "Returns what raw, a connection or a statement, is for the interface; raw where it does not say."
  [^Wrapper raw interface]
  ;; Throwable: a driver from before JDBC 4 throws an AbstractMethodError.
  (let [inside (try (.unwrap raw interface) (catch Throwable _ nil))]
    (if (instance? interface inside) inside raw)))

(defn- to-abort
  "Returns what is aborted: the connection as it came. A wrapper of c3p0's, or of Agroal's 2.6, that
  is aborted keeps its place in the pool for good, and Agroal's does not abort what is inside: of
  the wrappers of both, the driver's connection inside."
  [raw]
  (if (re-find #"^(?:com\.mchange|io\.agroal)\." (.getName (class raw)))
    (unwrapped raw Connection)
    raw))

(defn session
  "Returns the session of a connection that the calling thread has taken. on-close: called once when
  it is closed."
  ^Session [raw {:keys [grace-ms evict]} on-close]
  (Session. raw (to-abort raw) grace-ms evict on-close (AtomicReference.) (promise) (AtomicBoolean.)
            (AtomicBoolean.) (AtomicReference.) (Thread/currentThread) (System/nanoTime)))

(defn aborted?
  "True if the connection was given up."
  [^Session session]
  (some? (.get ^AtomicReference (.-aborted session))))

(defn rolled-back!
  "Notes that a rollback was asked for: the user does not count on the transaction."
  [^Session session]
  (.compareAndSet ^AtomicReference (.-aborted session) :lost :rolled-back))

(defn closed?
  "True if the user has closed it."
  [^Session session]
  (.get ^AtomicBoolean (.-closed session)))

(defn check-open!
  "Throws where the connection was given up, or closed: it may belong to another thread by now."
  [session]
  (when-some [how (cond (aborted? session) "aborted, after a cancel"
                        (closed? session) "closed")]
    (throw (SQLNonTransientConnectionException. (str "This connection was " how) "08003"))))

(defn check-kept!
  "Throws where the connection was given up, and its transaction with it, without a rollback since."
  [^Session session]
  (when (= :lost (.get ^AtomicReference (.-aborted session))) (check-open! session)))

(def ^:private ^Executor here (reify Executor (execute [_ f] (.run f))))

(defn- or-uncaught [f]
  (try (f) (catch Throwable t (spi/uncaught! t))))

(defn- abort-raw!
  "Aborts the connection, but the driver's of a wrapper that goes back: it may be another's by now."
  [^Session session]
  (let [^Connection connection (.-to-abort session)]
    (when (or (identical? connection (.-raw session))
              (not (.get ^AtomicBoolean (.-returned session))))
      (.abort connection here))))

(defn- leave-pool-and-abort! [^Session session]
  (or-uncaught #((.-evict session) (.-raw session)))
  (or-uncaught #(abort-raw! session))
  (deliver (.-gone session) true))

(defn- await-gone!
  "Waits until the abort has ended: a pool would lend the connection before that. An abort that
  blocks is waited for as long as the grace, and not less than 100 ms."
  [^Session session]
  (spi/undisturbed
    #(try
       (deref (.-gone session) (max 100 (.-grace-ms session)) nil)
       (catch InterruptedException _ (.interrupt (Thread/currentThread))))))

(defn abort!
  "Gives the connection up, once: takes it out of its pool, and aborts it, on a thread of its own,
  since both may block. Returns when that has ended, by whichever thread, or has taken the grace."
  [^Session session]
  (when (.compareAndSet ^AtomicReference (.-aborted session) nil :lost)
    (.start (spi/platform-thread (spi/unique-name "jdbc-abort") #(leave-pool-and-abort! session))))
  (await-gone! session))

(defn close!
  "Calls f, which gives the connection back, and what is to be called then; only the first time."
  [^Session session f]
  (when (.compareAndSet ^AtomicBoolean (.-closed session) false true)
    (try
      (f)
      (finally ((.-on-close session) session)))))

(defn give-back!
  "Closes the connection as it came. One that is being aborted is not lent to another before that
  has ended."
  [^Session session]
  (.set ^AtomicBoolean (.-returned session) true)
  (when (aborted? session) (await-gone! session))
  (.close ^Connection (.-raw session)))

(def ^:private postgres
  "The interface of PostgreSQL's connections, nil without its driver."
  (delay (try (Class/forName "org.postgresql.PGConnection") (catch ClassNotFoundException _ nil))))

(defn- drivers
  "Returns what the connection may be in truth. A pool's wrapper may unwrap to itself for
  Connection, and to the driver's for the driver's interface."
  [^Session session]
  (map #(unwrapped (.-raw session) %) (remove nil? [Connection @postgres])))

(defn- cancel-query
  "Returns the driver's method that cancels what a connection does, as PostgreSQL's has, or nil."
  ^Method [driver]
  (try (.getMethod (class driver) "cancelQuery" (make-array Class 0)) (catch Exception _ nil)))

(defn canceller
  "Returns a function that cancels what the connection does, or nil where its driver has none."
  [^Session session]
  (some (fn [driver]
          (when-some [method (cancel-query driver)]
            #(.invoke method driver (object-array 0))))
        (drivers session)))
