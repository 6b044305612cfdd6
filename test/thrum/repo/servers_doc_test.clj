(ns thrum.repo.servers-doc-test
  "The tables of doc/servers.md say what the code does."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.dev.servers-doc :as servers-doc]))

(set! *warn-on-reflection* true)

(deftest the-options-are-as-documented
  (let [text (slurp "doc/servers.md")]
    (is (= (servers-doc/written text) text) "./cljw -M:servers-doc rewrites it")))

(deftest a-table-that-is-out-of-date-is-seen
  (is (not= "<!-- options:begin -->\nold\n<!-- options:end -->"
            (servers-doc/written "<!-- options:begin -->\nold\n<!-- options:end -->"))))
