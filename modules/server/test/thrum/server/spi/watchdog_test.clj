(ns thrum.server.spi.watchdog-test
  "The thread that looks after clients goes on until it is stopped, and ends then."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.server.spi.watchdog :as watchdog]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.util HashMap)
   (java.util.concurrent CountDownLatch TimeUnit)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(deftest no-timeout-is-late-by-more-than-a-quarter
  (is (= [5 100 250] (map #(watchdog/period-ms [%]) [4 400 4000]))))

(deftest a-look-that-throws-is-not-the-last
  (let [looks (CountDownLatch. 2)
        dog (watchdog/start "look" 1 #(do (.countDown looks) (throw (Error. "on purpose"))))]
    (is (.await looks 5 TimeUnit/SECONDS))
    (watchdog/stop! dog)))

(deftest a-stop-ends-a-look-that-waits
  (let [looking (promise)
        dog (watchdog/start "look" 1 #(do (deliver looking true) @(promise)))]
    (is (true? (deref looking 5000 :never)))
    (is (nil? (gate/in-time 5000 #(watchdog/stop! dog))))))

(deftest a-client-whose-requests-are-answered-has-sent-nothing-else
  (let [seen (HashMap.), unanswered-ms #(watchdog/unanswered-ms seen :connection %1 %2)]
    (is (= [nil 0 nil nil]
           [(unanswered-ms 0 0) (unanswered-ms 0 2) (unanswered-ms 1 40) (unanswered-ms 1 40)]))
    (is (= [0 true] [(unanswered-ms 1 42) (nat-int? (unanswered-ms 1 42))]))))
