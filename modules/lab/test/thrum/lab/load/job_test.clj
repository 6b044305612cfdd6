(ns thrum.lab.load.job-test
  "The warm-up of a job."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.load.job :as job]))

(deftest a-warm-up-is-the-job-for-another-time
  (is (= [3 "u" 9]
         ((juxt :seconds :url :connections)
          (job/warm-up {:url "u", :seconds 10, :connections 9, :warm-up-seconds 3})))))

(deftest there-may-be-none
  (is (nil? (job/warm-up {:url "u", :seconds 10})))
  (is (nil? (job/warm-up {:url "u", :seconds 10, :warm-up-seconds 0}))))

(deftest a-burst-takes-no-longer-than-its-rounds
  (is (= [1000 5000 2000]
         (map #(job/longest-ms {:requests 100, :connections %, :timeout-ms 1000}) [100 20 99]))))
