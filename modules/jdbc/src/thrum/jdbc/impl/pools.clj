(ns thrum.jdbc.impl.pools
  "What a pool says of itself: HikariCP's methods, found by name, so that it is no dependency."
  {:no-doc true}
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

(defn options
  "Returns the options that the data source knows: :connections, :wait-ms; and :evict, a function
  that takes a connection out of it."
  [data-source]
  (into {:evict (evicting data-source)}
        (filter val)
        {:connections (figure data-source "getMaximumPoolSize")
         :wait-ms (figure data-source "getConnectionTimeout")}))
