(ns thrum.schedule-fuzz-test
  "thrum.schedule-fuzz, in a JVM that has Thrum's points."
  (:require
   [clojure.test :refer [deftest is testing]]
   [thrum.test-kit.ahead :as ahead]
   [thrum.test-kit.jvm :as jvm]))

(defn- fuzz
  "Returns [runs failures], and the lines that were printed. Loads sources: classes that were
  compiled ahead have no points."
  [jvm-opts & args]
  (let [command (jvm/command (jvm/this-home)
                             (into jvm/exports jvm-opts)
                             (ahead/sources-alone (System/getProperty "java.class.path"))
                             'thrum.schedule-fuzz
                             args)
        {:keys [lines]} (jvm/quietly command 150000)
        [_ & counts] (re-matches #"(\d+) runs, (\d+) failures" (str (jvm/last-line lines)))]
    [(mapv parse-long counts) lines]))

(def ^:private points ["-Dthrum.sync-points=true"])

(def ^:private seeds
  "How many schedules of each program; .ci/run has more, by -Dthrum.schedules."
  (System/getProperty "thrum.schedules" "33"))

(deftest ^{:time-limit-ms 160000} no-order-of-threads-and-no-interrupt-breaks-a-form
  (let [[[runs failures] lines] (fuzz points seeds)]
    (is (= 0 failures) (pr-str (take-last 12 lines)))
    (is (and runs (< 500 runs)))))

(deftest ^{:time-limit-ms 160000} a-library-that-breaks-its-rules-is-found-out
  (testing "control: a scope that does not wait for its tasks"
    (let [[[_ failures] _] (fuzz points "2" "control")]
      (is (and failures (pos? failures)))))
  (testing "and without points nothing counts as run"
    (is (= [[] false] (update (fuzz [] "1") 1 (fn [lines] (empty? lines)))))))
