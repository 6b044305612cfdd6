(ns thrum.jdbc.impl.source
  "The data source that users have."
  {:no-doc true}
  (:require
   [clojure.core.protocols :as protocols]
   [thrum.jdbc.impl.checkout :as checkout]
   [thrum.jdbc.impl.guard :as guard]
   [thrum.spi :as spi])
  (:import
   (java.lang AutoCloseable)
   (java.sql SQLFeatureNotSupportedException)
   (javax.sql DataSource)))

(set! *warn-on-reflection* true)

(defn- guarded [pool fetch]
  (guard/connection (checkout/session! pool fetch)))

(defn- refuse-unwrap [^Class interface]
  (throw (SQLFeatureNotSupportedException.
           (str (.getName interface) " would go past the guard; keep the data source inside"))))

(deftype Guarded [^DataSource inside pool]
  DataSource
  (getConnection [_] (guarded pool #(.getConnection inside)))
  (getConnection [_ user password] (guarded pool #(.getConnection inside user password)))
  (getLogWriter [_] (.getLogWriter inside))
  (setLogWriter [_ writer] (.setLogWriter inside writer))
  (getLoginTimeout [_] (.getLoginTimeout inside))
  (setLoginTimeout [_ seconds] (.setLoginTimeout inside seconds))
  (getParentLogger [_] (.getParentLogger inside))
  (isWrapperFor [this interface] (.isInstance interface this))
  (unwrap [this interface]
    (if (.isInstance interface this) this (refuse-unwrap interface)))

  AutoCloseable
  (close [_]
    (when (instance? AutoCloseable inside) (.close ^AutoCloseable inside)))

  protocols/Datafiable
  (datafy [_] (checkout/facts pool)))

(defmethod print-method Guarded [^Guarded source ^java.io.Writer w]
  (.write w "#<jdbc ")
  (print-method (checkout/facts (.-pool source)) w)
  (.write w ">"))

(defn source
  "Returns the data source around another. Options: see thrum.jdbc/data-source."
  ^DataSource [inside options]
  (let [source (Guarded. inside (checkout/pool options))]
    (spi/register! :data-source source #(checkout/facts (.-pool ^Guarded %)))
    source))
