(ns thrum.watch.impl.exchanges
  "The requests of thrum.server: those that run, and how many have ended. Loaded only where
  thrum.server is on the class path."
  {:no-doc true}
  (:require
   [thrum.server.spi.exchanges :as exchanges])
  (:import
   (java.util.concurrent ConcurrentHashMap)
   (java.util.concurrent.atomic LongAdder)))

(set! *warn-on-reflection* true)

(defn- shown [{:keys [request stage nanos deadline status bytes engine thread]}]
  {:name (if request
           (str (some-> (:request-method request) name) " " (:uri request))
           "not read yet")
   :state stage
   :engine engine
   :age-nanos nanos
   :deadline deadline
   :status status
   :bytes bytes
   :served-by (some-> ^Thread thread .threadId)})

(defn- things
  "Returns a request, and the scope of its handler, if that has begun."
  [exchange]
  (let [{:keys [began thread scope] :as facts} (exchanges/facts exchange)
        request {:kind :request, :thing exchange, :since began, :thread thread
                 :describe (fn [_] (shown facts))}]
    (cond-> [request]
      scope (conj {:kind :scope, :thing scope, :since began, :thread thread, :within request}))))

(defn registered
  "Returns the requests that run, and their scopes, as thrum.spi.watch/registered returns things;
  :within - of a scope: that of its request."
  []
  (into [] (mapcat things) (exchanges/under-way)))

(def ^:private ^ConcurrentHashMap by-status (ConcurrentHashMap.))

(defn- count! [exchange]
  (let [status (or (exchanges/sent-status exchange) 0)]
    (.increment ^LongAdder (.computeIfAbsent by-status status (fn [_] (LongAdder.))))))

(defn ended
  "Returns how many requests have ended, by status; 0: without a whole response."
  []
  (into {} (map (fn [[status ^LongAdder n]] [status (.sum n)])) by-status))

(defn- at-end! [f]
  (exchanges/observe!
    (reify exchanges/Observer
      (began [_ _])
      (ended [_ exchange] (f exchange)))))

(defn on-end!
  "Calls f with the facts of every exchange that ends, on its thread. Returns a function that ends
  this."
  [f]
  (at-end! #(f (exchanges/facts %))))

(defn observe!
  "Counts the requests that begin from now on. Returns a function that ends this."
  []
  (at-end! count!))
