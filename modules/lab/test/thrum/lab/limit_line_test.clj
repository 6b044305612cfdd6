(ns thrum.lab.limit-line-test
  "Arithmetic, against the published figures and against clojure.core/pmap itself."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.lab.contender :as contender]
   [thrum.lab.experiments.fan-out.published :as published]
   [thrum.lab.experiments.spring-tomcat.experiment :as spring-tomcat]
   [thrum.lab.limit-line :as limit-line]))

(deftest published-pmap-is-four-chunks-of-32
  (is (= 4 (limit-line/chunked-pmap 100 published/cpus)))
  (is (= 44112 (Math/round (:limit-line-ms (get-in published/figures [:downloads :core-pmap]))))))

(deftest published-figures-lie-close-above-their-limit-lines
  (doseq [part [:downloads :many], [who {:keys [ms limit-line-ms]}] (part published/figures)]
    (is (<= 1 (/ ms limit-line-ms) 1.02) (str part " " who))))

(deftest published-2000-at-512-take-four-rounds
  (is (= 4 (limit-line/bounded 2000 512)))
  (is (= 44112 (Math/round (:limit-line-ms (get-in published/figures [:many :thrum-pmap]))))))

(deftest many-cpus-look-into-the-next-chunk
  (is (= [4 4 2 1] (map #(limit-line/chunked-pmap 100 %) [2 29 30 94]))
      "with 30 CPUs pmap looks 32 items ahead, and so two chunks run at once; with 94, all four"))

(defn- most-at-once
  "Returns how many calls run at once when clojure.core/pmap maps n items that wait for each other."
  [coll expected]
  (let [running (atom 0), most (atom 0), gate (promise)
        f (fn [_]
            (when (= expected (swap! most max (swap! running inc))) (deliver gate :full))
            (deref gate 10000 :late)
            (swap! running dec))]
    (dorun (pmap f coll))
    @most))

(deftest pmap-runs-what-the-limit-line-says
  (let [cpus (.availableProcessors (Runtime/getRuntime))
        window (limit-line/pmap-window cpus)]
    (is (= window (most-at-once (take (* 3 window) (iterate inc 0)) window))
        "unchunked: one awaited, CPUs + 2 ahead")
    (is (= 32 (most-at-once (range 32) 32)) "chunked: a whole chunk")))

(deftest bounded-rounds-are-rounded-up
  (is (= [1 1 2 3 100] (map #(limit-line/bounded 100 %) [512 100 50 49 1]))))

(deftest no-rate-has-no-limit-line
  (is (nil? (limit-line/task-ms 6000000 :unlimited)))
  (is (= 12000.0 (limit-line/task-ms 6000000 500000)))
  (is (nil? (:limit-line-ms (contender/plan :core-map {:n 100, :task-ms nil})))))

(deftest every-contender-has-its-rounds
  (is
    (= {:core-map 100
        :core-pmap 4
        :core-pmap-unchunked 20
        :pool 2
        :raw-jdk 1
        :thrum-map 1
        :thrum-pmap 1
        :thrum-upmap 1
        :thrum-pmap-fd-limit 1}
       (into {}
             (map
               (fn [id]
                 [id (:rounds (contender/limits id {:n 100, :cpus 2, :limit 512, :pool 50}))]))
             (contender/ids)))))

(deftest ab-asks-once-before-it-asks-all-others-at-once
  (is (= [6 2 2] (map #(limit-line/ab 100 %) [20 100 99])))
  (doseq [[who {:keys [ms limit-line-ms]}] (:spring-100 spring-tomcat/published) :when ms]
    (is (<= 1 (/ ms limit-line-ms) 1.1) (str who ", as published"))))
