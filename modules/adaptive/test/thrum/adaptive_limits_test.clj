(ns thrum.adaptive-limits-test
  "What the algorithms make of latencies, without a clock."
  (:require
   [clojure.datafy :refer [datafy]]
   [clojure.test :refer [deftest is]]
   [thrum.adaptive :as adaptive]
   [thrum.core :as t]))

(set! *warn-on-reflection* true)

(defn- after
  "Returns the limit after so many uses that fill it, each of a latency of so many ms: capacity, and
  more in proportion where more are in flight."
  [f limit capacity n]
  (reduce (fn [limit _]
            (let [ms (max 10 (* 10 (/ limit capacity)))]
              (f {:latency-ns (long (* ms 1000000)), :in-flight limit, :dropped? false})))
          limit
          (range n)))

(deftest vegas-keeps-the-limit-near-the-capacity
  (let [f (adaptive/vegas), limit (after f 20 30 200)]
    (is (<= 25 limit 45))
    (is (<= 15 (after f limit 15 200) 30) "half of it")
    (is (<= 25 (after f 15 30 200) 45) "and back")))

(deftest gradient2-lowers-the-limit-where-latency-is-longer-than-usual
  (let [f (adaptive/gradient2 {:max 40})
        use (fn [ms] {:latency-ns (* ms 1000000), :in-flight 40, :dropped? false})]
    (is (= 40 (last (repeatedly 700 #(f (use 10))))))
    (is (<= (last (repeatedly 50 #(f (use 100)))) 20))
    (is (= 40 (last (repeatedly 1000 #(f (use 10))))))))

(deftest aimd-counts-what-is-dropped
  (let [f (adaptive/aimd {:initial 10, :max 30, :min 4})
        use {:latency-ns 1000000, :in-flight 30, :dropped? false}]
    (is (= 30 (last (repeatedly 50 #(f use)))))
    (is (= 27 (f (assoc use :dropped? true))))
    (is (= 4 (last (repeatedly 50 #(f (assoc use :dropped? true))))))
    (is (= 4 (f (assoc use :latency-ns 6000000000))) "a slow one counts as dropped")))

(deftest a-limiter-follows
  (let [limiter (t/limiter {:adaptive (adaptive/aimd {:initial 3, :max 3})})]
    (is (= 20 (:permits (datafy limiter))))
    (t/with-permit limiter :used)
    (is (= 3 (:permits (datafy limiter))))))

(deftest no-latency-is-too-short
  (doseq [make [adaptive/gradient2 adaptive/vegas adaptive/aimd]]
    (is (pos-int? ((make) {:latency-ns 0, :in-flight 1, :dropped? false})))))

(deftest the-limit-stays-between-min-and-max
  (let [use {:latency-ns 1000000, :in-flight 2, :dropped? false}]
    (doseq [make [adaptive/gradient2 adaptive/vegas adaptive/aimd]]
      (is (= 5 ((make {:max 5}) use)) "also where :initial is more by default"))
    (doseq [make [adaptive/gradient2 adaptive/aimd]]
      (is (= 30 ((make {:min 30}) use))))))

(deftest wrong-options-are-refused
  (doseq [make [#(adaptive/gradient2 {:initial 0}) #(adaptive/gradient2 {:slow-ms 1})
                #(adaptive/vegas {:min 1}) #(adaptive/aimd {:backoff 1})
                #(adaptive/aimd {:max (inc Integer/MAX_VALUE)})
                #(adaptive/gradient2 {:tolerance 0.5}) #(adaptive/aimd {:min 201})]]
    (is (= :thrum/invalid (try (make) (catch Exception e (t/error-type e)))))))
