(ns thrum.value-test
  "How a task's value is waited for without a wrapper, and what is read from every exception of
  Thrum's."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.io FileNotFoundException)
   (java.sql SQLException)
   (java.util.concurrent CancellationException CompletionException ExecutionException ExecutorService Future RejectedExecutionException TimeUnit TimeoutException)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(deftest a-value-is-returned-when-the-task-has-ended
  (doseq [v [:value nil false]]
    (is (= v (t/value (t/future v))))
    (is (= v (t/value (t/future v) 10000 :late)))
    (is (= v (t/with-scope [s] (t/value (t/fork s v)))))))

(deftest a-failure-is-thrown-as-it-is
  (doseq [failure [(SQLException. "no") (ex-info "no" {}) (AssertionError. "no")
                   (StackOverflowError.) (InterruptedException. "by hand")
                   (CancellationException. "by hand") (ExecutionException. (Exception. "no"))]]
    (let [task (t/future (throw failure))]
      (is (identical? failure (thrown (t/value task))))
      (is (identical? failure (thrown (t/value task 10000 :late)))))))

(deftest a-catch-of-the-failures-class-matches
  (is (= :caught
         (let [task (t/future (throw (FileNotFoundException. "x")))]
           (try (t/value task) (catch java.io.IOException _ :caught)))))
  (testing "and the scope of the fork throws the same instance, with nothing suppressed"
    (let [failure (SQLException. "no")
          e (thrown (t/with-scope [s] (t/value (t/fork s (throw failure)))))]
      (is (identical? failure e))
      (is (= [:thrum/context] (map t/error-type (.getSuppressed ^Throwable e)))))))

(deftest a-wait-with-a-time-has-an-end
  (let [gate (promise), task (t/future @gate)]
    (is (= :late (t/value task 1 :late)))
    (is (nil? (t/value task 0 nil)))
    (deliver gate :value)
    (is (= :value (t/value task 10000 :late)))))

(deftest an-interrupt-ends-the-wait-and-not-the-task
  (let [gate (promise)
        task (t/future @gate)
        [^Thread thread outcome] (gate/start "waiter" #(t/value task))]
    (is (gate/eventually 10000 #(= Thread$State/WAITING (.getState thread))))
    (.interrupt thread)
    (is (instance? InterruptedException (:thrown (deref outcome 10000 nil))))
    (is (not (realized? task)))
    (deliver gate :value)
    (is (= :value (t/value task)))))

(deftest cancelled-work-does-not-wait
  (let [gate (promise), task (t/future @gate)]
    (is (= :thrum/cancelled
           (t/error-type (thrown (t/with-scope [s] (t/cancel! s) (t/value task))))))
    (deliver gate :done)))

(deftest what-is-no-task-is-refused
  (doseq [x [nil 1 (promise) (clojure.core/future 1)]]
    (is (= :thrum/invalid (t/error-type (thrown (t/value x))))))
  (testing "as clojure.core's future, written where Thrum's was meant"
    (is (re-find #"thrum.core's future" (ex-message (thrown (t/value (future 1)))))))
  (let [task (t/future 1)]
    (doseq [ms [nil 1.5 "1"]]
      (is (= :thrum/invalid (t/error-type (thrown (t/value task ms nil))))))
    (is (= 1 (t/value task)))))

(deftest a-time-below-zero-is-over-as-for-deref
  (let [gate (promise), task (t/future @gate)]
    (doseq [ms [0 -5 Long/MIN_VALUE]]
      (is (= :late (t/value task ms :late) (deref task ms :late))))
    (deliver gate :value)
    (is (= :value (t/value task)))
    (is (= :value (t/value task -5 :late) (deref task -5 :late)))))

;; What is read from an exception

(defn- cancelled-task []
  (doto (t/future (Thread/sleep 60000)) (t/cancel! :enough)))

(defn- refused-by-an-executor []
  (let [escaped (promise)]
    (t/with-executor [exe {:name "quote"}] (deliver escaped exe))
    (thrown (.execute ^ExecutorService @escaped (fn [])))))

(defn- waits-for-itself []
  (let [self (promise), task (t/future (t/value @self))]
    (deliver self task)
    (thrown (t/value task))))

(defn- rejected []
  (let [limiter (t/limiter 1 {:wait-ms 0})]
    (with-open [^java.lang.AutoCloseable _ (t/acquire! limiter)]
      (thrown (t/acquire! limiter)))))

(defn- timed-get []
  (let [gate (promise), ^Future task (t/future @gate)]
    (try
      (thrown (.get task 1 TimeUnit/MILLISECONDS))
      (finally (deliver gate :done)))))

(deftest every-end-is-read-alike
  (doseq [[make class data]
          [[#(thrown (t/value (cancelled-task))) CancellationException
            {:type :thrum/cancelled, :reason :enough}]
           [#(thrown @(cancelled-task)) CancellationException
            {:type :thrum/cancelled, :reason :enough}]
           [#(thrown (t/with-scope [s] (t/cancel! s :enough) (t/checkpoint))) CancellationException
            {:type :thrum/cancelled, :reason :enough}]
           [#(thrown (t/with-timeout 0 1)) clojure.lang.ExceptionInfo
            {:type :thrum/timeout, :timeout-ms 0}]
           [timed-get TimeoutException {:type :thrum/timeout}]
           [rejected clojure.lang.ExceptionInfo {:type :thrum/rejected, :permits 1}]
           [refused-by-an-executor RejectedExecutionException
            {:type :thrum/closed, :reason :shutdown}]
           [#(thrown (t/fork (t/with-scope [s] s) 1)) clojure.lang.ExceptionInfo
            {:type :thrum/closed, :reason :ended}]
           [waits-for-itself clojure.lang.ExceptionInfo {:type :thrum/deadlock}]
           [#(thrown (t/pmap 0 inc [])) clojure.lang.ExceptionInfo {:type :thrum/invalid}]]]
    (let [e (make)]
      (is (instance? class e))
      (is (= data (select-keys (ex-data e) (keys data))))
      (is (= (:type data) (t/error-type e)))
      (is (str/starts-with? (str e) (str (.getName ^Class class) ":"))))))

(deftest a-type-is-read-through-a-futures-wrapper
  (let [failure (ex-info "no" {:type :cart/none}), task (t/future (throw failure))]
    (is (= :cart/none (t/error-type (thrown @task)) (t/error-type (thrown (t/value task)))))
    (is (= :cart/none (t/error-type (CompletionException. (ExecutionException. failure))))))
  (is (nil? (t/error-type (Exception. "no"))))
  (is (nil? (t/error-type nil)))
  (is (nil? (t/error-type (ExecutionException. "alone" nil)))))

(deftest what-cancelled-work-threw-is-the-cause
  (let [e (thrown (t/with-scope [s] (t/cancel! s :enough) (Thread/sleep 60000)))]
    (is (= :enough (:reason (ex-data e))))
    (is (instance? InterruptedException (ex-cause e)))))
