(ns thrum.watch.impl.flight-requests
  "The event thrum.Request of the Flight Recorder. Loaded only where thrum.server is on the class
  path."
  {:no-doc true}
  (:require
   [thrum.server.spi.exchanges :as exchanges]
   [thrum.watch.impl.flight :as flight])
  (:import
   (java.util.concurrent ConcurrentHashMap)))

(set! *warn-on-reflection* true)

(defn- request []
  (flight/kind "Request" "A request of thrum.server's, from its first line to its last byte"
    [["method" String] ["path" String] ["status" Long/TYPE] ["bytes" Long/TYPE]
     ["queued" Long/TYPE] ["engine" String] ["stage" String]]))

(defn- values [exchange]
  (let [{:keys [request status bytes queued-nanos engine stage]} (exchanges/facts exchange)]
    [(some-> (:request-method request) name) (:uri request) (long (or status 0)) (long bytes)
     (long (or queued-nanos 0)) (some-> engine name) (some-> stage name)]))

;; By exchange, its event; empty while the event is off.
(def ^:private ^ConcurrentHashMap under-way (ConcurrentHashMap.))

(defn observe!
  "Records requests from now on, where a recording has enabled their event. Returns a function that
  ends this."
  []
  (let [request (request)]
    (exchanges/observe!
      (reify exchanges/Observer
        (began [_ exchange]
          (when-some [event (flight/begin! request)] (.put under-way exchange event)))
        (ended [_ exchange]
          (when-some [event (.remove under-way exchange)]
            (flight/end! event #(values exchange))))))))
