(ns thrum.jdbc.impl.pools
  "What a pool says of itself: HikariCP's methods, found by name, so that it is no dependency."
  {:no-doc true}
  (:require
   [thrum.spi :as spi])
  (:import
   (java.lang.reflect Method)
   (java.sql Connection)))

(set! *warn-on-reflection* true)

(defn- method ^Method [pool name & types]
  (try (.getMethod (class pool) name (into-array Class types)) (catch NoSuchMethodException _ nil)))

(defn- figure [pool name]
  (when-some [method (method pool name)]
    (let [n (long (.invoke method pool (object-array 0)))]
      (when (pos? n) n))))

(defn- evicting [pool]
  (if-some [method (method pool "evictConnection" Connection)]
    #(.invoke method pool (object-array [%]))
    (fn [_])))

;; HikariCP 5.1 answers -1 before its first connection, where its default of 10 holds.
(defn- maximum [pool]
  (or (figure pool "getMaximumPoolSize")
      (when (and (method pool "getMaximumPoolSize") (method pool "evictConnection" Connection))
        10)))

(defn options
  "Returns the options that the data source knows: :connections, :wait-ms; and :evict, a function
  that takes a connection out of it. Throws :thrum/invalid where a :wait-ms was given and there is
  no bound."
  [data-source given]
  (let [connections (maximum data-source)]
    (when (and (:wait-ms given) (not (or connections (:connections given))))
      (throw (spi/invalid ":wait-ms needs :connections: without them no permit is waited for"
                          {:option :wait-ms, :value (:wait-ms given)})))
    (into {:evict (evicting data-source)}
          (filter val)
          {:connections connections, :wait-ms (figure data-source "getConnectionTimeout")})))
