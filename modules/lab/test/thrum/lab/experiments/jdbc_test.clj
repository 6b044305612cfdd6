(ns thrum.lab.experiments.jdbc-test
  "The experiment in small, on a PostgreSQL of its own, where there is one."
  (:require
   [clojure.java.io :as io]
   [clojure.test :refer [deftest is]]
   [thrum.lab.experiment :as experiment]
   [thrum.lab.experiments.jdbc.experiment :as jdbc]
   [thrum.lab.experiments.jdbc.requests :as requests]
   [thrum.lab.postgres :as postgres]
   [thrum.lab.postgres.programs :as programs]
   [thrum.lab.result :as result]
   [thrum.lab.run :as run]
   [thrum.test-kit.runner :as runner]))

(set! *warn-on-reflection* true)

(defn- plan
  ([] (plan {:postgres? true}))
  ([facts] ((:plan jdbc/experiment) {} facts)))

(deftest the-plan-is-of-a-minute
  (is (< (experiment/estimate-ms (plan)) 62000)))

(deftest the-newest-of-debians-versions-comes-first
  (is (= ["16" "15" "9.6" "common"]
         (map str (#'programs/newest-first (map io/file ["15" "9.6" "common" "16"]))))))

(deftest without-postgresql-it-is-skipped
  (let [ran (run/run! {:jdbc jdbc/experiment} [(plan {:postgres? false})] (constantly nil))]
    (is (re-find #"no PostgreSQL" (get-in ran [0 :parts 0 :skipped])))
    (is (= 0 (result/exit-code {:experiments ran})))))

(defn- sample [url way]
  (requests/sample {:url url, :way way, :n 20, :at-once 4, :deadline-ms 50, :sleep-s 10
                    :watch-ms 100}))

(deftest interrupts-leave-queries-and-guarded-calls-none
  (when-not (programs/to-be-had?) (runner/skip! "no PostgreSQL on this machine"))
  (let [{:keys [url close!]} (postgres/start!)]
    (try
      (let [interrupted (sample url :interrupt), guarded (sample url :thrum)]
        (is (pos? (:left interrupted)))
        (is (pos? (:lost interrupted)))
        (is (zero? (:left guarded)))
        (is (< (:lost guarded) (:lost interrupted))))
      (finally (close!)))))
