(ns thrum.repo.contract-doc-test
  "The tables of doc/reference/contract.md are as the code has them."
  (:require
   [clojure.set :as set]
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.dev.contract :as contract]
   [thrum.server.impl.engines :as engines]
   [thrum.server.tck :as tck]))

(set! *warn-on-reflection* true)

(deftest the-tables-are-as-generated
  (let [text (slurp contract/path)]
    (is (= (contract/written text (contract/held)) text) "./cljw -M:servers-doc writes them")))

(deftest what-is-named-is-a-case
  (let [ids (into #{} (map :id) (tck/cases))]
    (doseq [[engine held] (contract/held)]
      (is (= #{} (set/difference held ids)) (str engine)))
    (doseq [engine engines/names]
      (is (= #{} (set/difference (set (keys (:gaps (engines/named engine)))) ids)) (str engine)))))

(deftest an-outcome-is-expected-of-every-case
  (let [engine {:name :e, :capabilities #{:tls}, :gaps {:gap "why"}}
        outcome #(contract/expected engine {:e #{:run}} %)]
    (is (= [:gap :refused :skipped :passed nil]
           (map outcome [{:id :gap}
                         {:id :a, :needs [:h2], :refuses {:h2c? true}}
                         {:id :b, :needs [:h2]}
                         {:id :run, :needs [:tls]}
                         {:id :not-run}])))
    (is (= :passed (contract/expected engine {} {:id :not-run})))))

(deftest the-whole-table-has-a-row-for-each-case
  (is (= (+ 2 (count (tck/cases)))
         (count (str/split-lines (contract/whole-table (contract/held)))))))

(deftest a-table-that-is-out-of-date-is-seen
  (let [stale (fn [text name] (str text "<!-- " name ":begin -->\nold\n<!-- " name ":end -->"))
        text (reduce stale "" ["engines" "capabilities" "gaps"])]
    (is (not= text (contract/written text (contract/held))))))
