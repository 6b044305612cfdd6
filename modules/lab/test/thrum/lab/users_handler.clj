(ns thrum.lab.users-handler
  "The user's Ring handler of the tests.")

(set! *warn-on-reflection* true)

(defn on-a-virtual-thread?
  "Answers whether it runs on a virtual thread."
  [_]
  {:status 200, :headers {}, :body (str (.isVirtual (Thread/currentThread)))})
