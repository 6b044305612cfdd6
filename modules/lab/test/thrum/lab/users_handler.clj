(ns thrum.lab.users-handler
  "The user's Ring handler of the tests, and another server of the user's."
  (:require
   [thrum.server :as server]))

(set! *warn-on-reflection* true)

(defn on-a-virtual-thread?
  "Answers whether it runs on a virtual thread."
  [_]
  {:status 200, :headers {}, :body (str (.isVirtual (Thread/currentThread)))})

(defn noisy
  "Prints what might be taken for an answer, by each way there is, and fails."
  [_]
  (println "{:threads :noise}")
  (.println System/out "{:threads :noise}")
  (doto (Thread. #(do (println "{:threads :noise}") (flush))) .start .join)
  (flush)
  (throw (ex-info "noisy fails" {})))

(defn peer
  "Serves the handler and returns the port."
  [handler]
  (server/port (server/run-server handler {:port 0, :stop-on-shutdown? false})))
