(ns thrum.watch.registered
  "What registers itself for as long as a test looks."
  (:require
   [thrum.spi :as spi])
  (:import
   (java.lang.ref Reference)))

(set! *warn-on-reflection* true)

(defn call-registered
  "Returns (f), during which the thing, of that kind, has these facts. The registry holds it weakly,
  so it is held here."
  ([kind facts f] (call-registered kind (Object.) facts f))
  ([kind thing facts f]
   (let [registration (spi/register! kind thing (constantly facts))]
     (try
       (f)
       (finally
         (spi/unregister! registration)
         (Reference/reachabilityFence thing))))))
