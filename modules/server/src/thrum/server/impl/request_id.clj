(ns thrum.server.impl.request-id
  "A name for each request, to find it again in logs: a trusted proxy's X-Request-Id, or one of our
  own."
  {:no-doc true}
  (:require
   [thrum.server.impl.address :as address])
  (:import
   (java.util.concurrent ThreadLocalRandom)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(defn- given
  "Returns the id that a trusted peer gave the request; nil where it gave none, or one that is not
  printable and short."
  [trusted {:keys [headers remote-addr]}]
  (when-some [id (get headers "x-request-id")]
    (when (and (re-matches #"[A-Za-z0-9._:/+=@-]{1,128}" id)
               (some->> (address/peer remote-addr) (address/within? trusted)))
      id)))

(defn giver
  "Returns a function from a request as it arrived to the request with its :thrum/request-id, in the
  process and, by 64 random bits, elsewhere unlike any other. trusted: blocks of addresses, or nil."
  [trusted]
  (let [prefix (Long/toString (bit-and Long/MAX_VALUE (.nextLong (ThreadLocalRandom/current))) 36)
        number (AtomicLong.)]
    (fn [request]
      (assoc request
             :thrum/request-id
             (or (given trusted request) (str prefix "-" (.incrementAndGet number)))))))
