(ns sample.once-teardown-throws
  "A fixture around the namespace that throws after all tests passed."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]))

(use-fixtures :once (fn [f] (f) (throw (ex-info "teardown, on purpose" {}))))

(deftest one (is true))
