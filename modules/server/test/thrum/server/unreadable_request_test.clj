(ns thrum.server.unreadable-request-test
  "A request that cannot be read because of a failure of ours is answered with 500."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.server :as server]
   [thrum.server.impl.request :as request]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.wire :as wire]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.lang AutoCloseable)
   (java.util.logging Level Logger)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private logger
  "Held: java.util.logging forgets loggers that are not held."
  (doto (Logger/getLogger "thrum.server") (.setLevel Level/OFF)))

(defn- get! [server]
  (wire/ask-once! (server/port server) (wire/get "/echoed")))

(deftest a-failure-while-the-request-is-read-is-a-500
  (is (some? logger))
  (let [ends (atom []), called (atom 0)
        handler (fn [r] (swap! called inc) (scene/ok r))
        options {:port 0, :max-concurrent 1, :observer {:end #(swap! ends conj %)}}]
    (with-open [^AutoCloseable s (server/run-server handler options)]
      (with-redefs [request/->request (fn [& _] (throw (Error. "secret-7391")))]
        (let [answer (get! s)]
          (is (= [500 true] [(:status answer) (wire/complete? answer)]))
          (is (nil? (scene/shows answer (conj scene/telltale "echoed"))))))
      (is (gate/eventually 5000 #(seq @ends)))
      (is (= [500 "secret-7391"] ((juxt :status (comp ex-message :throwable)) (first @ends))))
      (is (= 0 @called) "the handler is not called")
      (is (= 200 (:status (get! s))) "and nothing of it is left"))))
