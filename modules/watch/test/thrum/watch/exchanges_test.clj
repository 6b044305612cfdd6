(ns thrum.watch.exchanges-test
  "The requests of thrum.server in the tree and in the metrics."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.watch :as watch]
   [thrum.watch.impl.exchanges :as exchanges]
   [thrum.watch.impl.sampler :as sampler]))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- request []
  (first (filter #(= :request (:kind %)) (watch/tree))))

;; The scope of a handler is registered by nobody: its request shows it.
(deftest what-a-handler-does-is-below-its-request
  (let [gate (promise)
        handler (fn [_]
                  (t/with-scope [s {:name "orders"}] (t/fork s {:name "fetch"} @gate))
                  {:status 204})
        s (server/run-server handler {:port 0})]
    (try
      (let [[_ answer] (gate/start "client"
                         #(slurp (str "http://127.0.0.1:" (server/port s) "/orders")))
            kinds #(iterate (comp first :children) (request))
            shown? #(= [:request :scope :scope :task nil] (map :kind (take 5 (kinds))))]
        (is (gate/eventually 5000 shown?) (request))
        (is (str/starts-with? (:name (second (kinds))) "request"))
        (deliver gate :go)
        (is (= {:value ""} (deref answer 5000 :late))))
      (finally (server/stop! s)))))

(deftest a-request-is-seen-while-it-runs-and-counted-when-it-has-ended
  (let [gate (promise), before (get (exchanges/ended) 204 0)
        s (server/run-server (fn [_] @gate {:status 204}) {:port 0})]
    (try
      (let [[_ answer] (gate/start "client"
                         #(slurp (str "http://127.0.0.1:" (server/port s) "/orders?id=secret")))]
        (is (gate/eventually 5000 #(= "get /orders" (:name (request)))) (request))
        (is (not (str/includes? (pr-str (request)) "secret")))
        (deliver gate :go)
        (is (= {:value ""} (deref answer 5000 :late))))
      (is (gate/eventually 5000 #(= (inc (long before)) (get (exchanges/ended) 204))))
      (is (gate/eventually 5000 #(nil? (request))))
      (finally (server/stop! s)))))

(deftest a-full-server-names-the-request-that-holds-its-permit
  (let [gate (promise), sampler (sampler/start! (fn [_]))
        s (server/run-server (fn [_] (deref gate 20000 nil) {:status 204})
            {:port 0, :max-concurrent 1, :max-queued 5, :queue-timeout-ms 20000})
        get! #(second (gate/start "client"
                        (fn [] (slurp (str "http://127.0.0.1:" (server/port s) %)))))
        crowded #(first (filter (comp #{:crowded} :rule) (sampler/lints sampler)))]
    (try
      (let [slow (get! "/slow")]
        (is (gate/eventually 5000 #(= 1 (:in-flight (server/status s)))))
        (let [others [(get! "/b") (get! "/c")]]
          (is (gate/eventually 15000 crowded))
          (is (re-find #"max-concurrent has 2 waiters for 1 permit, held by .*exchanges_test.clj"
                       (str (:sentence (crowded)))))
          (deliver gate :go)
          (is (every? #(= {:value ""} (deref % 5000 :late)) (cons slow others)))))
      (finally
        (deliver gate :go)
        (server/stop! s)
        (sampler/stop! sampler)))))
