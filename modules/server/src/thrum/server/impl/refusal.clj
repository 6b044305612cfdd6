(ns thrum.server.impl.refusal
  "How a request is refused before any handler sees it."
  {:no-doc true})

(set! *warn-on-reflection* true)

(defn refusal
  "Returns what is thrown for a request that is answered with this status."
  [status message]
  (ex-info message {:type :thrum/refused, :status status}))

(defn refuse!
  "Throws a refusal."
  [status message]
  (throw (refusal status message)))
