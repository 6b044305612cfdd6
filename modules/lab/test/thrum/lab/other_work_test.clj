(ns thrum.lab.other-work-test
  "What other programs took of the processors, from two readings of /proc."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.other-work :as other-work]))

(set! *warn-on-reflection* true)

(def ^:private stat
  "cpu  100 10 40 800 50 5 5 10 0 0\ncpu0 100 10 40 800 50 5 5 10 0 0\n")

(def ^:private self
  "7 (a (strange) name) S 1 7 7 0 -1 4194304 102 0 0 0 20 5 30 15 20 0 1 0 2595642\n")

(deftest the-kernels-figures-are-read
  (is (= {:all 1020, :busy 170, :own 70} (other-work/parse stat self)))
  (is (nil? (other-work/parse nil self)))
  (is (nil? (other-work/parse stat nil))))

(deftest what-is-not-the-labs-own-is-other-work
  (is (= 0.4 (other-work/share {:all 1000, :busy 500, :own 100} {:all 2000, :busy 1200, :own 400})))
  (is (= 0.0 (other-work/share {:all 1000, :busy 500, :own 100} {:all 2000, :busy 600, :own 300})))
  (is (nil? (other-work/share nil {:all 2000, :busy 1200, :own 400})))
  (is (nil? (other-work/share {:all 1, :busy 1, :own 1} {:all 1, :busy 1, :own 1}))))
