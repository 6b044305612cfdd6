(ns thrum.lab.server-sample-test
  "One sample of a server under load, whole."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.server-sample :as server-sample]))

(def ^:private short-visit {:connections 5, :sleep-ms 50, :seconds 1, :warm-up-seconds 1})

(deftest a-visit-measures-and-asks
  (let [{:keys [per-second p50-ms errors threads heap-each generator]}
        (server-sample/sample {:engine :jdk, :way :bare} short-visit)]
    (is (< 0 per-second 101) "5 connections, 50 ms")
    (is (<= 49 p50-ms))
    (is (= {} errors))
    (is (pos-int? threads))
    (is (number? heap-each))
    (is (#{:wrk :built-in} generator))))

(deftest a-pool-smaller-than-the-connections-cannot-hold-them-all-asleep
  (let [{:keys [per-second error], :as sample} (server-sample/sample
                                                 {:engine :jetty, :way :bare, :pool 2}
                                                 short-visit)]
    (is (nil? error))
    (is (< 0 per-second 41) "2 threads, 50 ms")
    (is (not (contains? sample :heap-each)))))

(deftest a-server-that-does-not-start-is-the-samples-error
  (is
    (re-find #"^The server did not start"
             (:message (:error (server-sample/sample
                                 {:engine :jdk, :way :thrum, :handler 'nowhere/handler}
                                 short-visit))))))

(deftest an-interrupt-ends-a-visit
  (.interrupt (Thread/currentThread))
  (is (= {:interrupted? true} (server-sample/sample {:engine :jdk, :way :bare} short-visit)))
  (is (not (Thread/interrupted))))
