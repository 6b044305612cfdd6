(ns thrum.jdbc.impl.checkout
  "Waiting for a connection: for a permit of our own limiter, as many as the pool has connections,
  and for what the pool then does."
  {:no-doc true}
  (:require
   [clojure.datafy :as datafy]
   [thrum.core :as t]
   [thrum.jdbc.impl.session :as session]
   [thrum.spi :as spi])
  (:import
   (java.sql Connection SQLException SQLNonTransientConnectionException)
   (java.util Set)
   (java.util.concurrent ConcurrentHashMap)
   (java.util.concurrent.atomic AtomicReference)
   (java.util.concurrent.locks LockSupport)
   (thrum.jdbc.impl.session Session)))

(set! *warn-on-reflection* true)

(defn- outcome [f]
  (try {:value (f)} (catch Throwable t {:thrown t})))

(defn- left-alone!
  "The pool's answer when no thread waits any more: the connection goes back."
  [{:keys [^Connection value]} release!]
  (try
    (some-> value .close)
    (catch Throwable t (spi/uncaught! t))
    (finally (release!))))

(defn- start!
  "Calls fetch on a thread of its own, and (answered outcome) once, at its end: also where the wrap
  throws, or does not call what it wraps. Throws :thrum/invalid for a wrap that is no function."
  [fetch answered]
  (let [fetched (AtomicReference.)]
    (spi/start! {:name (spi/unique-name "jdbc-connection")
                 :wrap t/*wrap*
                 :on-end #(answered (or (.get fetched) {:thrown (:error %)}))}
                #(.set fetched (outcome fetch)))))

(defn- fetched
  "Returns the outcome of fetch, called on a thread of its own, which no cancel reaches. A caller
  that is cancelled leaves at once; what comes then goes back."
  [fetch release!]
  (let [answer (AtomicReference.), waiting (Thread/currentThread)]
    (try
      (start! fetch
              #(if (.compareAndSet answer nil %)
                 (LockSupport/unpark waiting)
                 (left-alone! % release!)))
      (catch Throwable t (release!) (throw t)))
    (try
      (spi/wait-until fetch nil #(some? (.get answer)))
      (.get answer)
      (catch Throwable t
        (when-not (.compareAndSet answer nil {:thrown t})
          (spi/undisturbed #(left-alone! (.get answer) release!)))
        (throw t)))))

(defn- connection-of [{:keys [value thrown]}]
  (cond
    thrown (throw thrown)
    (nil? value) (throw (SQLNonTransientConnectionException.
                          "The data source returned nil in place of a connection" "08001"))
    :else value))

(defn pool
  "Returns the place where connections are waited for: :limiter, nil where the pool has no bound;
  :held, the sessions that users have; :options. Options: see thrum.jdbc/data-source."
  [{:keys [name connections wait-ms] :as options}]
  {:limiter (when connections
              (t/limiter connections
                         (cond-> {:name name} wait-ms (assoc :wait-ms wait-ms))))
   :held (ConcurrentHashMap/newKeySet)
   :options options})

(defn- waiting
  "Returns the value of f, which waits. An interrupt is thrown as getConnection declares it, and
  stays set, as with HikariCP."
  [f]
  (try
    (f)
    (catch InterruptedException e
      (.interrupt (Thread/currentThread))
      (throw (SQLException. "Interrupted while a connection was waited for" e)))))

(defn session!
  "Returns the session of a connection that (fetch) returns, when a permit is free. Throws what
  fetch throws; CancellationException; an SQLException where the thread is interrupted for another
  reason; :thrum/rejected."
  [{:keys [limiter ^Set held options]} fetch]
  (let [permit (waiting #(do (t/checkpoint) (some-> limiter t/acquire!)))
        release! #(some-> permit t/release!)
        answer (waiting #(fetched fetch release!))]
    (try
      (let [session (session/session (connection-of answer) options
                                     (fn [session] (.remove held session) (release!)))]
        (.add held session)
        session)
      (catch Throwable t (release!) (throw t)))))

(defn- holder [^Session session]
  (let [^Thread thread (.-thread session)]
    (cond-> {:thread (.getName thread)
             :thread-id (.threadId thread)
             :ms (quot (- (System/nanoTime) (.-since session)) 1000000)}
      (not (.isAlive thread)) (assoc :ended? true))))

(defn facts
  "Returns how many connections there may be, are in use and are waited for, and who has them, the
  longest first."
  [{:keys [limiter held options]}]
  (merge {:name (:name options), :held-by (vec (sort-by (comp - :ms) (map holder held)))}
         (if limiter
           (select-keys (datafy/datafy limiter) [:permits :in-use :waiting :rejected])
           {:in-use (count held)})))
