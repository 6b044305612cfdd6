(ns thrum.retry-options-test
  "What retry shows of its attempts, and what bounds them together: on-retry, wait-of, budgets."
  (:require
   [clojure.datafy :refer [datafy]]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [clojure.test.check.clojure-test :refer [defspec]]
   [clojure.test.check.generators :as gen]
   [clojure.test.check.properties :as prop]
   [thrum.core :as t]
   [thrum.impl.retry-after :as retry-after]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]]
   [thrum.virtual-clock :as virtual-clock])
  (:import
   (java.util.concurrent ExecutionException)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- failing
  "Returns the failure of a retry, the calls of :on-retry and the ms that it took."
  [options f]
  (let [calls (atom [])
        {:keys [value thrown nanos]}
        (virtual-clock/run 1
                           #(t/retry (merge {:on-retry (fn [call] (swap! calls conj call))} options)
                              (f)))]
    {:value value, :thrown thrown, :calls @calls, :ms (quot (long nanos) 1000000)}))

(deftest every-further-attempt-is-reported-before-its-wait
  (let [failures [(ex-info "1" {}) (ex-info "2" {}) (ex-info "3" {})]
        f #(throw (failures (dec t/*attempt*)))
        {:keys [thrown calls ms]} (failing {:schedule [5 7 9]} f)]
    (is (identical? (failures 2) thrown))
    (is (= [{:attempt 1, :wait-ms 5, :throwable (failures 0)}
            {:attempt 2, :wait-ms 7, :throwable (failures 1)}]
           calls))
    (is (= 12 ms))))

(deftest by-default-each-wait-is-a-random-one
  (let [waits #(mapv :wait-ms (:calls (failing {} (fn [] (throw (Exception. "no"))))))
        runs (repeatedly 20 waits)]
    (is (every? (fn [[a b & more]] (and (<= 0 a 100) (<= 0 b 200) (nil? more))) runs))
    (is (< 1 (count (distinct runs))))))

(deftest what-is-not-tried-again-is-not-reported
  (is (= [] (:calls (failing {:retry? (constantly false)} #(throw (Exception. "no"))))))
  (is (= [] (:calls (failing {:schedule []} #(throw (Exception. "no"))))))
  (is (= [] (:calls (failing {} #(throw (AssertionError. "no"))))))
  (is (= [] (:calls (failing {} (constantly 1))))))

(deftest a-failing-on-retry-ends-the-retry
  (let [failure (ex-info "no" {}), broken (ex-info "log" {})
        {:keys [thrown]} (failing {:on-retry (fn [_] (throw broken))} #(throw failure))]
    (is (identical? broken thrown))
    (is (= [failure] (vec (.getSuppressed ^Throwable thrown))))))

(deftest the-attempts-number-is-a-binding
  (is (nil? t/*attempt*))
  (is (= [3 3] (:value (failing {:schedule [0 0]}
                                #(if (< (long t/*attempt*) 3)
                                   (throw (Exception. "no"))
                                   [t/*attempt* (t/value (t/future t/*attempt*))])))))
  (is (= [1 2]
         (t/retry {}
           [t/*attempt*
            (t/retry {:schedule [0]} (if (= 1 t/*attempt*) (throw (Exception.)) t/*attempt*))]))))

(deftest a-failure-may-ask-for-a-wait
  (let [f #(throw (ex-info "no" {:ms ([nil 30 0] (dec t/*attempt*))}))
        ms-of (comp :ms ex-data)]
    (is (= [5 30] (map :wait-ms (:calls (failing {:schedule [5 7], :wait-of ms-of} f)))))
    (is (= :thrum/invalid
           (t/error-type (:thrown (failing {:wait-of (constantly -1)}
                                           #(throw (Exception. "no")))))))
    (is (= [0 []]
           ((juxt :ms :calls)
            (failing {:attempts 1}
                     #(t/with-timeout 10
                        (t/retry {:wait-of (constantly 60000)} (throw (Exception. "no")))))))
        "not begun: it would reach the deadline")))

(deftest an-http-response-asks-for-its-wait
  (let [error #(ex-info "no" {:status 503, :headers %})
        now (.toEpochMilli (java.time.Instant/parse "2026-11-22T07:00:00Z"))
        ms #(retry-after/ms (error %) now)]
    (is (= 120000 (ms {"Retry-After" "120"}) (ms {"retry-after" " 120 "}) (ms {:retry-after 120})
           (ms {"Retry-After" ["120" "5"]})))
    (is (= 90000 (ms {"Retry-After" "Sun, 22 Nov 2026 07:01:30 GMT"})))
    (is (= 0 (ms {"Retry-After" "Sun, 22 Nov 2026 06:00:00 GMT"}) (ms {"Retry-After" "0"})))
    (is (every? nil? (map ms [nil {} [] {"Retry-After" "soon"} {"Retry-After" "-1"}
                              {"Retry-After" nil} {"Retry-After" "99999999999999999999"} {1 2}])))
    (is (nil? (t/retry-after (Exception. "no"))))
    (is (= 7000 (t/retry-after (error {"Retry-After" "7"}))))
    (is (= 7000 (t/retry-after (ExecutionException. "of a future" (error {"Retry-After" "7"})))))))

;; Budgets

(deftest a-budget-is-shared
  (let [budget (t/retry-budget {:ratio 0.5, :burst 2})
        attempts (fn [] (let [n (atom 0)]
                          (thrown (t/retry {:schedule (repeat 0), :attempts 10, :budget budget}
                                    (swap! n inc)
                                    (throw (Exception. "no"))))
                          @n))]
    (is (= {:ratio 0.5, :burst 2, :retries 2, :refused 0} (datafy budget)))
    (is (= [3 1 2 1 2] (repeatedly 5 attempts)))
    (is (= 5 (:refused (datafy budget))))))

(deftest a-call-that-needs-no-retry-adds-to-the-budget
  (let [budget (t/retry-budget {:ratio 0.25, :burst 1})
        call #(t/retry {:schedule [0], :budget budget} (%))]
    (thrown (call #(throw (Exception. "no"))))
    (is (= 0 (:retries (datafy budget))))
    (dotimes [_ 20] (call (constantly 1)))
    (is (= 1 (:retries (datafy budget))) "no more than its burst")))

(deftest no-burst-is-too-large
  (let [budget (t/retry-budget {:ratio 1, :burst Long/MAX_VALUE})]
    (is (= 1 (t/retry {:budget budget} 1)))
    (is (pos? (long (:retries (datafy budget)))))))

(deftest what-is-not-tried-again-costs-nothing
  (let [budget (t/retry-budget)]
    (doseq [options [{:retry? (constantly false)} {:schedule []} {:attempts 1}]]
      (thrown (t/retry (assoc options :budget budget) (throw (Exception. "no")))))
    (testing "nor what its deadline would end"
      (t/with-timeout 60000
        (thrown (t/retry {:schedule [120000], :budget budget} (throw (Exception. "no"))))))
    (is (= {:ratio 0.1, :burst 10, :retries 10, :refused 0} (datafy budget)))))

(defspec retries-stay-a-part-of-the-calls 50
  (prop/for-all [ratio (gen/elements [0 0.1 0.25 1])
                 burst (gen/choose 1 5)
                 calls (gen/choose 1 60)]
    (let [budget (t/retry-budget {:ratio ratio, :burst burst}), n (atom 0)]
      (t/prun! 4
               (fn [_]
                 (thrown (t/retry {:schedule (repeat 0), :attempts 3, :budget budget}
                           (swap! n inc)
                           (throw (Exception. "no")))))
               (range calls))
      (<= @n (+ calls burst (* ratio calls))))))

(deftest wrong-options-are-refused
  (doseq [options [{:budget 1} {:on-retry 1} {:wait-of 1} {:budget nil}]]
    (is (= :thrum/invalid (t/error-type (thrown (t/retry options 1))))))
  (doseq [options [{:ratio 2} {:ratio -1} {:ratio "1"} {:burst 0} {:rate 1}]]
    (is (= :thrum/invalid (t/error-type (thrown (t/retry-budget options)))))))
