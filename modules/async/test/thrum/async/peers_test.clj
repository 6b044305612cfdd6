(ns thrum.async.peers-test
  "The defects of core.async, and promesa's of channels, that an integration can mend: each is a
  test that Thrum passes, here or where its behaviour is tested anyway. The rest of the list is in
  thrum.peers-test."
  (:require
   [clojure.core.async :as async]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.async :as a]
   [thrum.async.pipeline-failures-test]
   [thrum.async.pipeline-test]
   [thrum.async.port-test]
   [thrum.async.process-test]
   [thrum.async.random-interrupts-test]
   [thrum.test-kit.leak :as leak]))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def where
  "By defect: the tests of the other namespaces that hold the behaviour."
  '{"A2" [thrum.async.pipeline-test/nothing-is-taken-after-the-output-was-closed
          thrum.async.pipeline-test/a-take-that-waits-is-withdrawn-when-the-output-closes]
    "A3" [thrum.async.pipeline-test/an-abandoned-pipeline-holds-no-thread-and-is-garbage
          thrum.async.pipeline-test/what-runs-is-interrupted-when-the-output-closes]
    "A4" [thrum.async.pipeline-failures-test/a-failure-can-end-it
          thrum.async.pipeline-failures-test/a-failure-drops-its-item-and-is-reported
          thrum.async.pipeline-failures-test/an-asynchronous-function-that-throws-hangs-nothing
          thrum.async.process-test/a-thread-delivers-its-failure]
    "A5" [thrum.async.pipeline-test/exactly-n-run-at-once]
    "A6" [thrum.async.port-test/an-interrupted-take-leaves-nothing-behind
          thrum.async.random-interrupts-test/no-value-is-lost-to-random-interrupts]
    "P4" [thrum.async.process-test/a-process-that-ends-delivers-and-closes
          thrum.async.process-test/a-thread-delivers-its-value-and-closes]})

(deftest each-is-a-test
  (doseq [[defect tests] where, test tests]
    (testing [defect test]
      (is (:test (meta (find-var test)))))))

(deftest ^{:peer ["A1"]} a-pipeline-runs-on-virtual-threads
  (let [to (async/chan 1)]
    (a/pipeline-blocking 1
                         to
                         (map (fn [_] (.isVirtual (Thread/currentThread))))
                         (async/to-chan! [1]))
    (is (true? (a/<!! to)))))
