(ns thrum.server.limiter-test
  "A limiter of the caller's own in place of a number for :max-concurrent."
  (:require
   [clojure.datafy :refer [datafy]]
   [clojure.test :refer [deftest is testing]]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.tck.scene :as scene])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io FileNotFoundException)
   (java.net URI)
   (java.net.http HttpClient HttpRequest HttpResponse$BodyHandlers)
   (thrum.server.impl.traffic Traffic)))

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
        (scene/eventually 5000 #(= 0 (:in-use (datafy limiter))))
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
        (is (= 200 (request)))
        ;; A permit goes back when the answer has been sent.
        (scene/eventually 5000 #(= 1 (count @uses)))
        (is (= 200 (request)))))
    (is (= [{:in-flight 1, :dropped? false} {:in-flight 1, :dropped? false}]
           (map #(dissoc % :latency-ns) @uses)))
    (is (= {:permits 1, :in-use 0} (select-keys (datafy limiter) [:permits :in-use])))))

(defn- limiter-of [^Traffic traffic]
  (.-limiter traffic))

(deftest an-adaptive-bound-begins-in-the-middle-and-keeps-the-servers-queue
  (let [options {:max-concurrent :adaptive, :max-queued 3, :queue-timeout-ms 50}
        limiter (limiter-of (traffic/traffic options))]
    (is (= {:permits 100, :queue 3, :wait-ms 50}
           (select-keys (datafy limiter) [:permits :queue :wait-ms])))
    (dotimes [_ 200]
      (t/with-permit limiter nil))
    (is (<= 20 (:permits (datafy limiter)) 10000)))
  (with-server :adaptive
    (constantly {:status 200})
    (fn [request] (is (= 200 (request))))))

(deftest a-stream-waits-for-no-permit
  (let [^Traffic traffic (traffic/traffic
                           {:max-streams 1, :max-queued 3, :queue-timeout-ms 50})]
    (is (= {:permits 1, :queue 0} (select-keys (datafy (.-streams traffic)) [:permits :queue])))))

(deftest an-adaptive-bound-names-the-artifact-that-it-needs
  (with-redefs [requiring-resolve (fn [_] (throw (FileNotFoundException.)))]
    (let [e (try (traffic/traffic {:max-concurrent :adaptive}) (catch ExceptionInfo e e))]
      (is (= {:type :thrum/invalid, :option :max-concurrent, :value :adaptive} (ex-data e)))
      (is (re-find #"thrum-adaptive" (ex-message e))))))

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
