(ns thrum.server.impl.refusal
  "The exception for a malformed request: thrown before any handler is called, and answered with its
  status, 400 and the like."
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
