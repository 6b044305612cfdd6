(ns thrum.peers-test
  "Every defect that was demonstrated in another library is a test that Thrum passes: in this
  namespace, or where its behaviour is tested anyway. V: virtuoso, C: claypoole, P: promesa, A:
  core.async, T: tapestry, E: embroidery, S: con-struct and structured-task-scope, K: clojure.core."
  (:require
   [clojure.set :as set]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.deadlines-test]
   [thrum.executor-test]
   [thrum.fan-out-failures-test]
   [thrum.fan-out-test]
   [thrum.impl.deadline :as deadline]
   [thrum.limit-test]
   [thrum.misuse-test]
   [thrum.model-test]
   [thrum.races-test]
   [thrum.scopes-test]
   [thrum.tasks-test]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]]
   [thrum.transducer-test])
  (:import
   (java.io StringWriter)
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- sleep-until-interrupted [^CountDownLatch running ^CountDownLatch ended]
  (try
    (.countDown running)
    (Thread/sleep 60000)
    (finally (.countDown ended))))

;; The list

(defn- numbered [letter n]
  (map #(str letter %) (range 1 (inc (long n)))))

(def ^:private defects
  (set (mapcat numbered ["V" "C" "P" "A" "T" "E" "S" "K"] [17 9 6 6 6 1 2 1])))

(def ^:private where
  "By defect: the tests of the other namespaces that hold the behaviour."
  '{"V1" [thrum.fan-out-test/the-first-element-does-not-wait-for-the-slowest]
    "V2" [thrum.fan-out-test/the-first-of-an-infinite-input-answers
          thrum.fan-out-test/nothing-starts-while-nobody-waits]
    "V3" [thrum.fan-out-test/no-item-waits-for-a-chunk
          thrum.fan-out-test/exactly-limit-run-while-somebody-waits]
    "V4" [thrum.fan-out-test/nothing-starts-while-nobody-waits]
    "V5" [thrum.tasks-test/cancel-interrupts-the-body-and-is-remembered]
    "V6" [thrum.tasks-test/a-future-answers-every-question-of-clojure-core
          thrum.tasks-test/a-task-prints-itself]
    "V7" [thrum.executor-test/a-throwing-body-cancels-joins-and-rethrows
          thrum.executor-test/an-interrupt-while-it-waits-cancels-joins-and-is-thrown]
    "V8" [thrum.fan-out-failures-test/a-failure-cancels-and-joins-what-comes-after
          thrum.fan-out-failures-test/the-first-failure-in-time-is-that-of-the-eager-forms]
    "V9" [thrum.fan-out-failures-test/an-interrupt-of-the-consumer-cancels-joins-and-is-thrown]
    "V10" [thrum.misuse-test/wrong-limits-throw-at-the-call]
    "V11" [thrum.fan-out-test/every-item-has-a-thread-with-a-name-of-its-own
           thrum.tasks-test/a-future-runs-on-a-virtual-thread-of-its-own]
    "V13" [thrum.fan-out-test/fmap-starts-limit-tasks-at-the-first-touch]
    "V14" [thrum.transducer-test/it-works-in-every-transducing-context]
    "V15" [thrum.tasks-test/bindings-travel]
    "V16" [thrum.fan-out-test/nil-and-false-travel-both-ways
           thrum.tasks-test/nil-and-false-are-values]
    "C1" [thrum.fan-out-test/exactly-limit-run-while-somebody-waits]
    "C4" [thrum.fan-out-test/a-recursion-of-fan-outs-ends]
    "C5" [thrum.fan-out-test/an-abandoned-seq-lets-at-most-limit-calls-run-out]
    "C6" [thrum.fan-out-failures-test/a-failure-cancels-and-joins-what-comes-after
          thrum.fan-out-failures-test/a-failing-eager-form-leaves-nothing-running]
    "C7" [thrum.misuse-test/wrong-limits-throw-at-the-call thrum.misuse-test/values-are-checked]
    "C8" [thrum.fan-out-failures-test/an-element-throws-where-its-item-failed]
    "C9" [thrum.model-test/upmap-is-map-in-some-order
          thrum.fan-out-test/f-is-called-exactly-once-per-item
          thrum.fan-out-test/the-source-is-touched-by-the-consumer-alone]
    "P1" [thrum.fan-out-test/exactly-limit-run-while-somebody-waits
          thrum.fan-out-test/nothing-starts-while-nobody-waits]
    "P2"
    [thrum.deadlines-test/at-the-deadline-the-body-is-stopped-and-the-timeout-thrown-with-its-cause]
    "P3" [thrum.fan-out-test/nil-and-false-travel-both-ways]
    "P5" [thrum.races-test/the-first-to-succeed-decides-any
          thrum.races-test/the-first-failure-of-all-cancels-and-joins-the-others]
    "P6" [thrum.tasks-test/bindings-travel
          thrum.races-test/every-branch-has-a-virtual-thread-a-name-and-the-bindings]
    "A2" [thrum.transducer-test/reduced-cancels-and-joins-what-runs]
    "A3" [thrum.scopes-test/what-is-left-of-a-lazy-seq-ends-with-the-scope
          thrum.transducer-test/an-abandoned-sequence-lets-at-most-limit-calls-run-out]
    "A4" [thrum.executor-test/a-failure-that-nobody-can-ask-for-is-reported
          thrum.fan-out-failures-test/an-element-throws-where-its-item-failed]
    "A5" [thrum.fan-out-test/exactly-limit-run-while-somebody-waits]
    "A6" [thrum.fan-out-failures-test/an-interrupt-at-every-pull-of-the-source-loses-nothing
          thrum.tasks-test/an-interrupted-wait-leaves-the-task-alone]
    "T1" [thrum.scopes-test/a-failing-fork-cancels-its-siblings-which-have-ended-when-it-is-thrown]
    "T2" [thrum.fan-out-test/a-recursion-of-fan-outs-ends
          thrum.limit-test/a-child-does-not-inherit-a-permit]
    "T5" [thrum.tasks-test/a-future-answers-every-question-of-clojure-core
          thrum.tasks-test/cancel-interrupts-the-body-and-is-remembered]
    "E1" [thrum.tasks-test/bindings-travel
          thrum.fan-out-test/several-collections-end-with-the-shortest
          thrum.fan-out-failures-test/a-failure-cancels-and-joins-what-comes-after
          thrum.executor-test/a-throwing-body-cancels-joins-and-rethrows]
    "S1" [thrum.races-test/the-result-may-be-any-value thrum.races-test/a-race-of-nobody-is-refused
          thrum.races-test/every-branch-has-a-virtual-thread-a-name-and-the-bindings]
    "S2" [thrum.fan-out-test/nil-and-false-travel-both-ways]})

(def of-channels
  "The defects that are about channels: thrum.async.peers-test has tests of them, and a test of the
  repository checks that it does."
  #{"A1" "A2" "A3" "A4" "A5" "A6" "P4"})

(defn- told-here []
  (into #{} (comp (keep #(:peer (meta %))) cat) (vals (ns-publics 'thrum.peers-test))))

(deftest every-defect-of-the-list-is-a-test
  (is (= defects (set/union (told-here) (set (keys where)) of-channels)))
  (doseq [[defect tests] where, test tests]
    (testing [defect test]
      (is (:test (meta (find-var test)))))))

;; Tasks

(deftest ^{:peer ["V7"]} a-wait-that-gave-up-does-not-delay-the-end
  (let [running (CountDownLatch. 1)
        ended (CountDownLatch. 1)]
    (is (= :late
           (gate/in-time 5000
                         #(t/with-executor
                            [exe {:on-exit :cancel}]
                            (let [task (t/future-via [exe] (sleep-until-interrupted running ended))]
                              (.await running)
                              (deref task 1 :late))))))
    (is (zero? (.getCount ended)))))

(deftest ^{:peer ["V12"]} no-use-site-is-reflective
  (let [warnings (StringWriter.)]
    (binding [*warn-on-reflection* true, *err* warnings, *ns* (the-ns 'thrum.peers-test)]
      (eval '(fn [e]
               (t/future-via [e] 1)
               (t/with-executor [exe] (.submit exe ^Runnable (fn [])) (t/future-via [exe] 1))
               (t/with-scope [s] (t/use! s e) @(t/fork s 1) (t/cancel! s))
               (t/with-timeout [1 2] (t/race 1 (t/any 2) (t/all 3)))
               (t/pfor 2 [x [1]] x))))
    (is (= "" (str warnings)))))

(deftest ^{:peer ["V15"]} nothing-keeps-the-process-from-ending
  (is (.isDaemon ^Thread @(t/future (Thread/currentThread))))
  (t/with-timeout [1 :late] (Thread/sleep 60000))
  (is (every? #(.isDaemon ^Thread %)
              (filter #(re-find #"thrum" (.getName ^Thread %)) (keys (Thread/getAllStackTraces))))))

(deftest ^{:peer ["C3"]} every-task-that-was-handed-out-ends
  (let [running (CountDownLatch. 20)
        ended (CountDownLatch. 20)
        tasks (t/with-executor
                [exe {:on-exit :cancel}]
                (let [tasks (doall (repeatedly
                                     20
                                     #(t/future-via [exe]
                                        (sleep-until-interrupted running ended))))]
                  (.await running)
                  tasks))]
    (is (every? future-done? tasks))
    (is (every? #(instance? java.util.concurrent.CancellationException
                            (thrown (deref % 10000 :stuck)))
                tasks))))

;; The map family

(deftest ^{:peer ["V2"]} a-cancelled-caller-starts-nothing-more
  (let [started (AtomicLong.)
        three (CountDownLatch. 3)
        task (t/future
               (t/pmapv 3
                        (fn [_] (.incrementAndGet started) (.countDown three) (Thread/sleep 60000))
                        (range)))]
    (.await three)
    (future-cancel task)
    (is (gate/eventually 10000 #(empty? (leak/threads))))
    (is (= 3 (.get started)))))

(deftest ^{:peer ["V17"]} the-tasks-of-for-belong-to-the-scope-they-are-asked-in
  (let [running (CountDownLatch. 1)
        ended (CountDownLatch. 1)]
    (is (= 0
           (gate/in-time 5000
                         #(t/with-scope [_s]
                            (first (t/pfor 2
                                           [i [0 1]]
                                           (if (zero? i)
                                             (do
                                               (.await running)
                                               i)
                                             (sleep-until-interrupted running ended))))))))
    (is (zero? (.getCount ended)))))

(deftest ^{:peer ["C2" "A3"]} abandoned-seqs-leave-no-thread
  (dotimes [_ 20]
    (is (= 0 (first (t/pmap 5 identity (range 100)))))
    (is (= 0 (first (sequence (t/pmap 5 identity) (range 100))))))
  (is (gate/eventually 10000 #(empty? (leak/threads)))))

(deftest ^{:peer ["T6" "P5"]} a-failure-stops-the-siblings-of-every-form
  (doseq [[kind run] {:pfor #(doall (t/pfor 3 [i (range 3)] (% i)))
                      :for #(doall (t/for [i (range 3)] (% i)))
                      :upmap #(doall (t/upmap 3 % (range 3)))
                      :prun! #(t/prun! 3 % (range 3))
                      :all #(t/all (% 0) (% 1) (% 2))
                      :plet #(t/plet [a (% 0) b (% 1) c (% 2)] [a b c])
                      :scope #(t/with-scope [s] (dotimes [i 3] (t/fork s (% i))))}]
    (testing kind
      (let [running (CountDownLatch. 2)
            ended (CountDownLatch. 2)
            failure (ex-info "boom" {})
            f (fn [i]
                (if (zero? i)
                  (do
                    (.await running)
                    (throw failure))
                  (sleep-until-interrupted running ended)))]
        (is (identical? failure (thrown (gate/in-time 5000 #(run f)))))
        (is (zero? (.getCount ended)))))))

(deftest ^{:peer ["K1" "P1"]} the-limit-is-the-width-whatever-the-machine
  (doseq [[kind run] {:pmap #(doall (t/pmap 300 % (range 300)))
                      :list #(doall (t/pmap 300 % (apply list (range 300))))
                      :map #(doall (t/map % (range 300)))
                      :pmapv #(t/pmapv 300 % (range 300))}]
    (testing kind
      (let [all-in (CountDownLatch. 300)]
        (is (= 300
               (count (gate/in-time 10000
                                    #(run (fn [_] (.countDown all-in) (.await all-in)))))))))))

(deftest ^{:peer ["S1"]} a-failure-prints-nothing
  (let [printed (StringWriter.)]
    (binding [*out* printed, *err* printed]
      (thrown (t/any (throw (ex-info "a" {})) (throw (ex-info "b" {}))))
      (thrown (t/all (throw (ex-info "a" {}))))
      (thrown (doall (t/pmap 2 (fn [_] (throw (ex-info "a" {}))) [1]))))
    (is (= "" (str printed)))))

;; Limits

(deftest ^{:peer ["T3"]} a-task-interrupted-while-it-waits-for-a-permit-ends
  (let [db (t/limiter 1), permit (t/acquire! db)
        task (t/future (t/with-permit db :never))]
    (is (gate/eventually 10000 #(re-find #":waiting 1" (pr-str db))))
    (is (future-cancel task))
    (is (instance? java.util.concurrent.CancellationException (thrown (deref task 10000 :stuck))))
    (is (gate/eventually 10000 #(re-find #":waiting 0" (pr-str db))))
    (t/release! permit)
    (is (= :free (t/with-permit db :free)))))

(deftest ^{:peer ["T4"]} the-time-of-queued-work-starts-with-the-work
  (let [trail (atom [])
        gate (promise)
        arm! deadline/arm!
        f (fn [i]
            (t/with-timeout 60000
                            (when (zero? i) (deref gate 10000 :late))
                            (swap! trail conj [:done i])))]
    (with-redefs [deadline/arm!
                  (fn [^long moment alarm] (swap! trail conj :armed) (arm! moment alarm))]
      (let [[_ outcome] (gate/start "caller" #(t/pmapv 1 f [0 1]))]
        (is (gate/eventually 10000 #(= [:armed] @trail)))
        (deliver gate :go)
        (is (some? (:value (deref outcome 10000 nil))))))
    (is (= [:armed [:done 0] :armed [:done 1]] @trail))))
