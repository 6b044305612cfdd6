(ns thrum.server.tck.assertions
  "Outcomes of the contract as assertions of clojure.test."
  (:require
   [clojure.test :refer [is]]))

(set! *warn-on-reflection* true)

(defn check
  "Asserts that the outcome of a case is one of these, a set of keywords."
  [allowed {:keys [id section outcome sentence detail]}]
  (is (contains? allowed outcome)
      (str "§" section " " id ": " sentence "\n" (pr-str detail))))
