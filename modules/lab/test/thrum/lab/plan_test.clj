(ns thrum.lab.plan-test
  "From options to plans."
  (:require
   [clojure.edn :as edn]
   [clojure.test :refer [deftest is]]
   [thrum.lab.cli :as cli]
   [thrum.lab.experiment.fan-out :as fan-out]
   [thrum.lab.experiment.urls :as urls]
   [thrum.lab.plan :as plan]))

(def ^:private facts {:cpus 2, :hard-file-limit? true})

(defn- plan-of [& argv]
  (plan/plan (cli/parse argv) facts [(fan-out/experiment fan-out/quick)]))

(defn- part [plan name]
  (first (filter #(= name (:part %)) (mapcat :parts (:experiments plan)))))

(defn- row [plan name id]
  (first (filter #(= id (:contender %)) (:contenders (part plan name)))))

(deftest a-plan-is-printable-edn
  (let [plan (plan-of)]
    (is (= plan (edn/read-string (pr-str plan))))))

(deftest the-quick-form-is-planned-to-end-within-a-minute
  (is (< 10000 (:estimate-ms (plan-of)) 60000)))

(deftest the-full-form-has-the-published-sizes-and-rate
  (let [{:keys [bytes rate n scaled]} (part (plan-of "--full") :downloads)]
    (is (= [6000000 500000 100 nil] [bytes rate n scaled]))
    (is (= 1200000.0 (:limit-line-ms (row (plan-of "--full") :downloads :core-map))))
    (is (= 48000.0 (:limit-line-ms (row (plan-of "--full") :downloads :core-pmap))))))

(deftest what-is-scaled-is-said
  (is (= "Scaled: files of 60 kB instead of 6 MB." (:scaled (part (plan-of) :downloads)))))

(deftest the-limit-is-the-users
  (is (= [7 "t/pmap 7" 15] ((juxt (comp :limit :params) :name :rounds) (row (plan-of "--limit" "7") :downloads :thrum-pmap)))))

(deftest the-rate-is-the-users
  (is (= 1000 (:rate (part (plan-of "--rate" "1000") :many))))
  (is (nil? (:limit-line-ms (row (plan-of "--rate" "unlimited") :downloads :core-map)))))

(deftest only-chooses-an-experiment-or-a-part
  (is (= [:downloads :many :files :unlimited] (map :part (:parts (first (:experiments (plan-of "--only" "fan-out")))))))
  (is (= [:files] (map :part (:parts (first (:experiments (plan-of "fan-out" "--only" "files")))))))
  (is (= "There is no experiment fils; the nearest one is files." (:error (plan-of "--only" "fils")))))

(deftest a-part-that-cannot-run-is-planned-as-skipped
  (let [plan (plan/plan (cli/parse ["--only" "files"]) (assoc facts :hard-file-limit? false) [(fan-out/experiment fan-out/quick)])]
    (is (string? (:skipped (part plan :files))))
    (is (= [:files] (:asked plan)))))

(deftest the-unbounded-contender-is-declared-to-break
  (is (= [:breaks nil] (map #(:expect (row (plan-of) :files %)) [:thrum-map :thrum-pmap-fd-limit]))))

(deftest own-urls-run-with-pmap-alone
  (let [plan (plan/plan (cli/parse ["fan-out" "--urls" "f" "--limit" "3"]) facts [(urls/experiment "f")])]
    (is (= ["t/pmap 3"] (map :name (:contenders (part plan :urls)))))
    (is (= [8 60000] ((juxt :per-host :timeout-ms) (part plan :urls))))
    (is (nil? (:estimate-ms plan)))))
