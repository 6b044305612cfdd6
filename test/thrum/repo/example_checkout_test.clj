(ns thrum.repo.example-checkout-test
  "The example application, with its real servers: what it says happened is what the services' moods
  make of it."
  (:require
   [checkout.main :as checkout]
   [checkout.services :as services]
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.net ConnectException Socket URI)))

(set! *warn-on-reflection* true)

(defn- warm
  "A JVM that still loads its HTTP client is late for reasons of its own."
  [f]
  (checkout/run (constantly :quick) 4)
  (f))

(use-fixtures :once warm)
(use-fixtures :each leak/no-leaks)

(def ^:private slack-ms "How late a crowded machine may see a deadline." 20000)

(defn- run [mood orders]
  (gate/in-time 60000 #(checkout/run mood orders)))

(def ^:private no-hurry
  "The times of the example for services that do not hang: no busy machine is late by them."
  {#'checkout/deadline-ms 50000, #'checkout/attempt-ms 40000, #'checkout/permit-ms 40000})

(defn- run-without-hurry [times mood orders]
  (with-redefs-fn (merge no-hurry times) #(run mood orders)))

(defn- listens? [url]
  (let [uri (URI. url)]
    (try
      (.close (Socket. (.getHost uri) (.getPort uri)))
      true
      (catch ConnectException _ false))))

(defn- check-bounds [{:keys [orders limiter urls]}]
  (doseq [{:keys [ms left services] :as order} orders]
    (is (<= ms (+ checkout/deadline-ms slack-ms)) (pr-str order))
    (is (= 0 left) (pr-str order))
    (is (every? #(<= 1 (:attempts %) 4) (vals services)) (pr-str order)))
  (is (= [2 0 0] ((juxt :permits :in-use :waiting) limiter)))
  (is (= [false false false] (map listens? urls))))

(defn- least-attempts
  "Returns how many attempts a service needs for an order, in these moods, before it can answer."
  [mood service id]
  (first (filter #(#{:quick :slow} (mood service id %)) (rest (range)))))

(deftest flaky-services-are-asked-until-they-answer
  (let [mood (services/moods 171)
        {:keys [orders], :as shop} (run mood 12)]
    (check-bounds shop)
    (is (= (range 1 13) (map :id orders)))
    (doseq [{:keys [id outcome bill services]} orders]
      (is (= (= :accepted outcome) (some? bill)))
      (when (some #(< 4 (least-attempts mood % id)) [:user :stock])
        (is (not= :accepted outcome) "patience ends after four attempts"))
      (when (= :hanging (mood :price id 1))
        (is (#{:fallback :cancelled} (get-in services [:price :outcome]))
            "no order waits that long for a price"))
      (doseq [[service {:keys [attempts outcome]}] services
              :when (= :answered outcome)]
        (is (<= (least-attempts mood service id) attempts) (str service " " id))))))

(deftest quick-services-answer-every-order
  (let [{:keys [orders] :as shop}
        (run-without-hurry {#'checkout/price-ms 50000} (constantly :quick) 4)]
    (check-bounds shop)
    (is (= [:accepted] (distinct (map :outcome orders))))
    (is (= #{"Ada"} (set (map (comp :to :bill) orders))))))

(deftest a-service-that-is-busy-once-is-asked-again
  (let [mood (fn [_ _ n] (if (= 1 n) :busy :quick))
        {:keys [orders] :as shop} (run-without-hurry {#'checkout/price-ms 50000} mood 4)]
    (check-bounds shop)
    (is (= [:accepted] (distinct (map :outcome orders))))
    (is (every? #(<= 2 (:attempts %)) (mapcat (comp vals :services) orders)))))

(deftest a-price-that-hangs-has-a-fallback
  (let [mood (fn [service _ _] (if (= :price service) :hanging :quick))
        {:keys [orders], :as shop} (run-without-hurry {} mood 2)]
    (check-bounds shop)
    (is
      (= [[:accepted :fallback 21]]
         (distinct (map (juxt :outcome #(get-in % [:services :price :outcome]) (comp :euros :bill))
                        orders))))))

(deftest busy-services-fail-an-order-and-stop-its-other-calls
  (let [{:keys [orders] :as shop}
        (run-without-hurry {#'checkout/price-ms 50000} (constantly :busy) 2)]
    (check-bounds shop)
    (is (= [:failed] (distinct (map :outcome orders))))
    (doseq [{:keys [services]} orders]
      (is (some #{:gave-up} (map :outcome (vals services)))))))

(deftest services-that-hang-leave-nothing-running
  (let [{:keys [orders] :as shop} (run (constantly :hanging) 3)]
    (check-bounds shop)
    (is (every? #{:late :failed} (map :outcome orders)))))

(deftest the-program-prints-what-happened
  (let [out (with-out-str (gate/in-time 60000 checkout/-main))]
    (is (str/includes? out "left running: 0\n"))
    (is (str/includes? out (str "ms of " checkout/deadline-ms)))
    (is (re-find #"the limiter of stock: \{.*:permits 2" out))))
