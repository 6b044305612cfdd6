(ns thrum.test-kit.runner-test
  "The runner lets nothing pass that did not pass: it is run on samples that go wrong in every way."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing]]
   [thrum.test-kit.runner :as runner]))

(set! *warn-on-reflection* true)

(defn- samples
  "Returns the folder of the samples."
  []
  (.getParentFile (.getParentFile (io/file (io/resource "sample/mixed.clj")))))

(defn- run-sample
  "Returns [outcomes output] of the sample with this name."
  [sample & {:as opts}]
  (let [out (java.io.StringWriter.)]
    (binding [*out* out, clojure.test/*test-out* out]
      [(runner/run [(samples)] (assoc opts :ns (str "sample." sample))) (str out)])))

(defn- outcomes
  [sample]
  (into {} (map (juxt (comp name :test) :outcome)) (first (run-sample sample))))

(deftest each-test-gets-the-outcome-it-earned
  (is (= {"passes" :passed
          "fails" :failed
          "passes-then-fails" :failed
          "throws" :failed
          "asserts-nothing" :failed
          "marked-as-skipped" :skipped
          "skips-itself" :skipped
          "fails-then-skips-itself" :failed
          "hangs" :failed
          "fails-on-a-conveyed-thread" :failed}
         (outcomes "mixed"))))

(deftest what-went-wrong-is-printed
  (let [[_ output] (run-sample "mixed")]
    (doseq [text ["(not (= 1 2))" "on purpose" "made no assertion" "not today" "no network"
                  "took longer than 50 ms" "Thread dump:" "sample.mixed$fn"]]
      (is (str/includes? output text)))))

(deftest the-first-failure-is-said-in-short
  (let [why (into {} (map (juxt (comp name :test) :why)) (first (run-sample "mixed")))]
    (is (= "1 assertion(s) failed: mixed.clj:9 (not (= 1 2))" (why "fails")))
    (is (str/ends-with? (why "throws") "clojure.lang.ExceptionInfo: on purpose {}"))))

(defn- broken-writer []
  (proxy [java.io.Writer] []
    (write [& _] (throw (java.io.IOException. "the reader is gone")))
    (flush [])
    (close [])))

(deftest a-failure-that-cannot-be-printed-is-not-taken-for-a-test-that-hangs
  (require 'sample.mixed)
  (binding [*out* (java.io.StringWriter.), clojure.test/*test-out* (broken-writer)]
    (is (= {:outcome :failed, :why "its report failed: java.io.IOException: the reader is gone"}
           (select-keys (runner/run-var (resolve 'sample.mixed/fails) {}) [:outcome :why])))))

(deftest a-namespace-that-does-not-load-has-failed
  (is (= {"sample.does-not-load" :failed} (outcomes "does-not-load"))))

(deftest fixtures-that-fail-fail-their-tests
  (is (= {"passes-otherwise" :failed} (outcomes "each-fixture-throws")))
  (is (= {"passes-otherwise" :failed} (outcomes "each-fixture-forgets")))
  (is (= {"one" :failed, "two" :failed, "sample.once-fixture-throws" :failed}
         (outcomes "once-fixture-throws")))
  (is (= {"one" :passed, "sample.once-teardown-throws" :failed} (outcomes "once-teardown-throws"))))

(deftest tests-can-be-chosen-and-repeated
  (let [[outcomes] (run-sample "mixed" :var 'sample.mixed/passes :times 3)]
    (is (= (repeat 3 ['sample.mixed/passes :passed]) (map (juxt :test :outcome) outcomes)))))

(deftest the-closing-line-counts
  (is (= "3 passed, 0 failed" (runner/closing-line {:passed 3, :failed 0, :skipped 0})))
  (is (= "3 passed, 1 failed, 2 skipped" (runner/closing-line {:passed 3, :failed 1, :skipped 2}))))

(deftest only-something-that-passed-without-a-failure-is-a-success
  (testing "[passed failed skipped] -> exit code"
    (doseq [[counts code] {[3 0 0] 0, [3 0 2] 0, [3 1 0] 1, [0 0 0] 1, [0 0 2] 1}]
      (is (= code (runner/exit-code (zipmap [:passed :failed :skipped] counts))) (pr-str counts)))))
