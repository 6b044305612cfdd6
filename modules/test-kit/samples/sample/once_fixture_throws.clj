(ns sample.once-fixture-throws
  "A fixture around the namespace that throws before any test runs."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]))

(use-fixtures :once (fn [_] (throw (ex-info "setup, on purpose" {}))))

(deftest one (is true))

(deftest two (is true))
