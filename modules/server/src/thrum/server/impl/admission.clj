(ns thrum.server.impl.admission
  "The permit that an exchange holds: one of :max-concurrent, of :max-streams for a stream."
  {:no-doc true}
  (:require
   [thrum.core :as t]
   [thrum.server.impl.exchange]
   [thrum.spi :as spi])
  (:import
   (clojure.lang ExceptionInfo)
   (thrum.server.impl.exchange Exchange)
   (thrum.server.impl.traffic Traffic)))

(set! *warn-on-reflection* true)

(defn release!
  "Gives back the permit that the exchange holds, if it holds one."
  [^Exchange x]
  (when-some [permit (.permit x)]
    (.setPermit x nil)
    (t/release! permit)))

;; A handler's own limiter that rejects is not the server's.
(defn- admit! [^Exchange x limiter]
  (try
    (.setPermit x (t/acquire! limiter))
    (catch ExceptionInfo e
      (throw (if (= :thrum/rejected (spi/type-of e))
               (ex-info "The server is full" {:type ::overload} e)
               e)))))

(defn overload?
  "True if e was thrown because the server is full."
  [e]
  (= ::overload (spi/type-of e)))

(defn admit-request!
  "Waits for a permit to handle a request. Throws an exception for which overload? is true."
  [^Exchange x]
  (when-some [limiter (.-limiter ^Traffic (.-traffic x))]
    (admit! x limiter)))

(defn admit-stream!
  "Exchanges the permit for one of a stream. Throws an exception for which overload? is true."
  [^Exchange x]
  (release! x)
  (admit! x (.-streams ^Traffic (.-traffic x))))
