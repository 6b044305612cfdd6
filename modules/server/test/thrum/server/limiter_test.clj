(ns thrum.server.limiter-test
  "A limiter of the caller's own in place of a number for :max-concurrent."
  (:require
   [clojure.datafy :refer [datafy]]
   [clojure.test :refer [deftest is testing]]
   [thrum.core :as t]
   [thrum.server :as server])
  (:import
   (java.net URI)
   (java.net.http HttpClient HttpRequest HttpResponse$BodyHandlers)))

(set! *warn-on-reflection* true)

(defn- status [^HttpClient client port]
  (let [request (.build (HttpRequest/newBuilder (URI. (str "http://127.0.0.1:" port "/"))))]
    (.statusCode (.send client request (HttpResponse$BodyHandlers/discarding)))))

(defn- with-server
  "Calls f with a function that makes a request and returns its status."
  [limiter handler f]
  (let [s (server/run-server handler {:port 0, :max-concurrent limiter, :stop-on-shutdown? false})]
    (try
      (with-open [client (HttpClient/newHttpClient)]
        (f #(status client (server/port s))))
      (finally (server/stop! s)))))

(deftest a-limiter-is-shared-with-what-is-not-a-request
  (let [limiter (t/limiter 1 {:queue 0}), seen (atom nil)]
    (with-server limiter
      (fn [_] (reset! seen (:in-use (datafy limiter))) {:status 200})
      (fn [request]
        (is (= 200 (request)))
        (is (= 1 @seen))
        (t/with-permit limiter
          (is (= 503 (request))))
        (is (= 200 (request)))))
    (is (= 0 (:in-use (datafy limiter))))))

(deftest an-adaptive-limiter-sees-each-request
  (let [uses (atom [])
        limiter (t/limiter 2 {:queue 0, :adaptive (fn [use] (swap! uses conj use) 1)})]
    (with-server limiter
      (constantly {:status 200})
      (fn [request]
        (is (= [200 200] [(request) (request)]))))
    (is (= [{:in-flight 1, :dropped? false} {:in-flight 1, :dropped? false}]
           (map #(dissoc % :latency-ns) @uses)))
    (is (= {:permits 1, :in-use 0} (select-keys (datafy limiter) [:permits :in-use])))))

(deftest a-limiter-has-its-own-queue
  (doseq [more [{:max-queued 1} {:queue-timeout-ms 1}]]
    (is (= {:type :thrum/invalid, :option :max-concurrent}
           (try
             (server/stop!
               (server/run-server identity (merge {:port 0, :max-concurrent (t/limiter 1)} more)))
             (catch clojure.lang.ExceptionInfo e (ex-data e))))))
  (testing "nor is a rate one"
    (is (= :thrum/invalid
           (t/error-type
             (try
               (server/stop! (server/run-server identity
                                                {:port 0, :max-concurrent (t/rate-limiter 1)}))
               (catch Exception e e)))))))
