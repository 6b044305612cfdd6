(ns thrum.server.impl.refusal
  "The exception for a malformed request: thrown before any handler is called, and answered with its
  status, 400 and the like."
  {:no-doc true})

(set! *warn-on-reflection* true)

(defn refuse!
  "Throws it, for a request that is answered with this status."
  [status message]
  (throw (ex-info message {:type :thrum/refused, :status status})))
