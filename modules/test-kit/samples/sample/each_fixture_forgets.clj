(ns sample.each-fixture-forgets
  "A fixture around each test that forgets to call it."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]))

(use-fixtures :each (fn [_]))

(deftest passes-otherwise (is true))
