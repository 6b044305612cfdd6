(ns thrum.schedule-fuzz-test
  "thrum.schedule-fuzz, in a JVM that has Thrum's points."
  (:require
   [clojure.test :refer [deftest is testing]]
   [thrum.schedule-fuzz :as schedule-fuzz]
   [thrum.test-kit.ahead :as ahead]
   [thrum.test-kit.jvm :as jvm]))

(defn- fuzz
  "Returns [[runs failures] ...], of the library and of the control, and what was printed, as lines.
  Loads sources: classes that were compiled ahead have no points."
  [seeds]
  (let [command (jvm/command (jvm/this-home)
                             (conj jvm/exports "-Dthrum.sync-points=true")
                             (ahead/sources-alone (System/getProperty "java.class.path"))
                             'thrum.schedule-fuzz
                             [seeds])
        {:keys [lines]} (jvm/quietly command 280000 jvm/quick)
        counts (keep #(re-matches #"(\d+) runs, (\d+) failures" %) lines)]
    [(mapv #(mapv parse-long (rest %)) counts) lines]))

(def ^:private seeds
  "How many schedules of each program; .ci/run has more, by -Dthrum.schedules."
  (System/getProperty "thrum.schedules" "33"))

(def ^:private elsewhere
  "The JVM of the schedules has carriers of its own."
  (when (System/getProperty "jdk.virtualThreadScheduler.parallelism")
    "run beside the tests that have all carriers"))

(deftest ^{:skip elsewhere} no-order-of-threads-and-no-interrupt-breaks-a-form
         (let [[[[runs failures] [_ found]] lines] (fuzz seeds)]
           (is (= 0 failures) (pr-str (take-last 12 lines)))
           (is (and runs (< 500 runs)))
           (is (some #{"limiter :passed"} lines) (pr-str (take-last 12 lines)))
           (testing "control: a scope that does not wait for its tasks"
             (is (and found (pos? found))))))

(deftest without-points-nothing-counts-as-run
  (is (thrown-with-msg? clojure.lang.ExceptionInfo
                        #"^The points are not compiled in"
                        (schedule-fuzz/run 1))))
