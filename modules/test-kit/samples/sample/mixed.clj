(ns sample.mixed
  "Tests that go every way a test can go. Not found by -M:test: this folder is not named test."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.test-kit.runner :as runner]))

(deftest passes (is true))

(deftest fails (is (= 1 2)))

(deftest passes-then-fails (is true) (is (= 1 2)))

(deftest throws (throw (ex-info "on purpose" {})))

(deftest asserts-nothing)

(deftest ^{:skip "not today"} marked-as-skipped (is (= 1 2)))

(deftest skips-itself (is true) (runner/skip! "no network"))

(deftest fails-then-skips-itself (is (= 1 2)) (runner/skip! "too late"))

(deftest ^{:time-limit-ms 50} hangs (is true) @(promise))

(deftest fails-on-a-conveyed-thread @(future (is (= 1 2))))
