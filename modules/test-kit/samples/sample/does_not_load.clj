(ns sample.does-not-load
  "A test namespace with a mistake."
  (:require
   [clojure.test :refer [deftest is]]))

(deftest never-seen (is true))

(throw (ex-info "does not load, on purpose" {}))
