(ns thrum.cluster.rerun-test
  "What becomes of work whose member was lost."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.cluster.impl.rerun :as rerun]))

(set! *warn-on-reflection* true)

(defn- after
  "Returns the history of work that was lost with these members."
  [& members]
  (reduce #(rerun/lost (rerun/started %1 %2)) rerun/fresh members))

(defn- decision [history] (rerun/decision history #{}))

(deftest losses-decide
  (is (= [:run :elsewhere :alone :poison]
         (map decision [(after) (after "a") (after "a" "b") (after "a" "b" "c")]))))

(deftest starts-without-a-loss-end-too
  (let [histories (iterate #(rerun/started % "a") rerun/fresh)]
    (is (= [:run :elsewhere :elsewhere :elsewhere :give-up] (map decision (take 5 histories))))))

(deftest losses-that-another-item-explains-do-not-count
  (is (= :elsewhere (rerun/decision (after "a" "b") #{"a" "b"})))
  (is (= :elsewhere (rerun/decision (after "a" "b") #{"b" "c"})))
  (is (= :alone (rerun/decision (after "a" "b") #{"c"})))
  (is (= :alone (rerun/decision (after "a" "b" "c") #{"c"}))))

(deftest an-exception-names-members-and-items
  (is (= {:type :thrum/poison, :function 'a/b, :items [[1]], :members ["a" "b" "c"], :starts 3}
         (ex-data (rerun/poison (after "a" "b" "c") "a/b" [[1]])))))
