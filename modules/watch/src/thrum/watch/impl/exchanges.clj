(ns thrum.watch.impl.exchanges
  "The requests of thrum.server, as things of the registry, and their figures. Loaded only where
  thrum.server is on the class path."
  {:no-doc true}
  (:require
   [thrum.server.spi.exchanges :as exchanges]
   [thrum.spi.watch :as watch])
  (:import
   (java.util.concurrent ConcurrentHashMap)
   (java.util.concurrent.atomic LongAdder)))

(set! *warn-on-reflection* true)

(def ^:private ^ConcurrentHashMap tokens (ConcurrentHashMap.))

(defn- describe [exchange]
  (let [{:keys [request stage nanos deadline status bytes engine thread]}
        (exchanges/facts exchange)]
    {:name (if request
             (str (some-> (:request-method request) name) " " (:uri request))
             "not read yet")
     :state stage
     :engine engine
     :age-nanos nanos
     :deadline deadline
     :status status
     :bytes bytes
     :served-by (some-> ^Thread thread .threadId)}))

(def ^:private ^ConcurrentHashMap by-status (ConcurrentHashMap.))

(defn- count! [exchange]
  (let [status (or (:status (exchanges/facts exchange)) 0)]
    (.increment ^LongAdder (.computeIfAbsent by-status status (fn [_] (LongAdder.))))))

(defn ended
  "Returns how many requests have ended, by status; 0: without a whole response."
  []
  (into {} (map (fn [[status ^LongAdder n]] [status (.sum n)])) by-status))

(defn on-end!
  "Calls f with the facts of every exchange that ends, on its thread. Returns a function that ends
  this."
  [f]
  (exchanges/observe!
    (reify exchanges/Observer
      (began [_ _])
      (ended [_ exchange] (f (exchanges/facts exchange))))))

(defn observe!
  "Keeps and counts the requests that begin from now on. Returns a function that ends this."
  []
  (exchanges/observe!
    (reify exchanges/Observer
      (began [_ exchange]
        (when-some [token (watch/begun! :request exchange describe)]
          (.put tokens exchange token)))
      (ended [_ exchange]
        (watch/ended! (.remove tokens exchange))
        (count! exchange)))))
