(ns thrum.impl.completion
  "The protocol by which a task reports its end."
  {:no-doc true})

(set! *warn-on-reflection* true)

(defprotocol CompletionHandler
  "Is called on the thread of a task that ends."
  (failed [handler task throwable]
    "Called first if the task has failed, before any other thread can see its outcome.")
  (ended [handler task]
    "Called as the last thing, however the task has ended."))
