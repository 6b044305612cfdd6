(ns thrum.fan-out-failures-test
  "What becomes of failures, interrupts and ended scopes in the map family."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.blocking :refer [await-anyway]]
   [thrum.core :as t]
   [thrum.impl.context :as context]
   [thrum.impl.failures :as failures]
   [thrum.impl.group :as group]
   [thrum.impl.order :as order]
   [thrum.impl.task :as task]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent CancellationException CountDownLatch)
   (java.util.concurrent.atomic AtomicLong)
   (thrum.impl.failures Failures)
   (thrum.impl.task Failed Task)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- context-of [^Throwable t]
  (some #(when (= :thrum/context (:type (ex-data %))) (ex-data %)) (.getSuppressed t)))

(defn- riders [^Throwable t]
  (remove #(= :thrum/context (:type (ex-data %))) (.getSuppressed t)))

(defn- meet [^CountDownLatch together]
  (.countDown together)
  (await-anyway together))

(defn- sleep-until-interrupted
  "Blocks until it is interrupted, then delivers to ended and throws."
  [ended]
  (try
    (Thread/sleep 60000)
    (finally (deliver ended true))))

;; Failures

(deftest an-element-throws-where-its-item-failed
  (let [^Throwable failure (ex-info "item 2" {})
        results (t/pmap 4 (fn [i] (if (= 2 i) (throw failure) i)) (range 10))]
    (is (= [0 1] (take 2 results)))
    (is (identical? failure (thrown (nth results 2))))
    (testing "again each time, never an early end"
      (dotimes [_ 3]
        (is (identical? failure (thrown (doall results))))
        (is (identical? failure (thrown (count results))))))
    (testing "and says once which item it was"
      (is (= [{:type :thrum/context, :index 2, :dropped 0}]
             (keep #(some-> (ex-data %)
                            (select-keys [:type :index :dropped]))
                   (.getSuppressed failure)))))))

(deftest errors-are-failures-too
  (doseq [^Throwable failure [(AssertionError. "x") (StackOverflowError.) (Error. "x")
                              (InterruptedException. "by hand")]]
    (is (identical? failure (thrown (doall (t/pmap 2 (fn [_] (throw failure)) [1])))))
    (is (identical? failure (thrown (doall (t/upmap 2 (fn [_] (throw failure)) [1])))))
    (is (identical? failure (thrown (t/pmapv 2 (fn [_] (throw failure)) [1]))))))

(deftest an-items-own-interrupt-is-thrown-each-time-as-any-failure
  (let [failure (InterruptedException. "from f"), f (fn [i] (if (= 1 i) (throw failure) i))]
    (doseq [[what results] {"pmap" (t/pmap 2 f [0 1 2])
                            "upmap" (t/upmap 1 f [0 1 2])
                            "batches" (t/pmap {:limit 2, :batch 3} f [0 1 2])
                            "for" (t/for [i [0 1 2]] (f i))}]
      (is (= 0 (first results)) what)
      (dotimes [_ 3]
        (is (identical? failure (thrown (doall results))) what)
        (is (identical? failure (thrown (nth results 1))) what)))))

(deftest an-interrupt-from-the-source-counts-as-the-consumers
  (let [failure (InterruptedException. "source")
        results (t/pmap 2 identity (cons 0 (lazy-seq (throw failure))))
        _ (is (identical? failure (thrown (doall results))))
        later (thrown (doall results))]
    (is (= [:thrum/cancelled :interrupted] ((juxt :type :reason) (ex-data later))))
    (is (identical? failure (ex-cause later)))))

(deftest an-interrupt-from-the-source-does-not-wait-for-its-turn
  (let [failure (InterruptedException. "source"), running (promise), ended (promise)
        results (t/pmap 2
                        (fn [_] (deliver running true) (sleep-until-interrupted ended))
                        (cons 0 (lazy-seq (deref running 5000 nil) (throw failure))))
        [_ outcome] (gate/start "consumer" #(doall results))]
    (is (identical? failure (:thrown (deref outcome 5000 nil))))
    (is (realized? ended))))

(defn- unstarted ^Task [index]
  (task/task (context/capture nil nil) nil index (fn [])))

(deftest a-task-that-starts-while-one-before-it-fails-is-cancelled
  (let [order (order/input-order), [first-task failed late] (map unstarted (range 3))]
    (run! #(order/started order %) [first-task failed])
    (.settle ^Task failed (Failed. (ex-info "no" {})))
    (order/ended order failed)
    (order/started order late)
    (is (= [false false true] (map future-cancelled? [first-task failed late])))))

(deftest a-failure-cancels-and-joins-what-comes-after
  (let [ended (vec (repeatedly 3 promise))
        running (CountDownLatch. 3)
        failure (ex-info "first" {})
        f (fn [i]
            (if (zero? i)
              (do
                (.await running)
                (throw failure))
              (do
                (.countDown running)
                (sleep-until-interrupted (ended (dec i))))))]
    (doseq [run [#(doall (t/pmap 4 f (range 100)))]]
      (is (identical? failure (thrown (run))))
      (is (every? realized? ended)))
    (is (empty? (riders failure)) "casualties are dropped")))

(deftest a-failure-cancels-what-comes-after-while-what-comes-before-runs
  (let [running (promise), ended (promise)
        f (fn [i]
            (case (long i)
              0 (deref ended 5000 :late)
              1 (do (deref running 5000 :late) (throw (ex-info "no" {})))
              2 (do (deliver running true) (sleep-until-interrupted ended))))
        results (t/pmap 3 f (range 3))]
    (is (not= :late (first results)))
    (is (= "no" (ex-message (thrown (doall results)))))))

(deftest what-comes-before-a-failure-is-delivered
  (let [gate (promise)
        failed (promise)
        results (t/pmap 2
                        (fn [i]
                          (if (zero? i)
                            (deref gate 10000 :late)
                            (do
                              (deliver failed true)
                              (throw (ex-info "1" {})))))
                        (range 2))
        consumer (future (first results))]
    @failed
    (deliver gate :delivered)
    (is (= :delivered (deref consumer 10000 :stuck)))
    (is (= "1" (ex-message (thrown (second results)))))))

(deftest the-lowest-of-many-failures-is-thrown-and-the-others-ride
  (let [together (CountDownLatch. 4)
        failures (mapv #(ex-info (str %) {}) (range 4))
        e (thrown (doall (t/pmap 4 (fn [i] (meet together) (throw (failures i))) (range 4))))]
    (is (identical? (failures 0) e))
    (is (every? (set (rest failures)) (riders e)))
    (is (not-any? #(identical? e %) (riders e)))
    (is (= 0 (:index (context-of e))))))

(deftest the-first-failure-in-time-is-that-of-the-eager-forms
  (let [together (CountDownLatch. 4)
        failure (ex-info "late item, early failure" {})
        e (thrown (t/pmapv 4
                           (fn [i]
                             (.countDown together)
                             (if (= i 3)
                               (do
                                 (await-anyway together)
                                 (throw failure))
                               (try
                                 (Thread/sleep 60000)
                                 (finally
                                   (throw (ex-info "cleanup" {:i i}))))))
                           (range 4)))]
    (is (identical? failure e))
    (is (= 3 (:index (context-of e))))
    (is (= #{0 1 2} (set (map (comp :i ex-data) (riders e)))))))

(deftest true-failures-after-a-cancel-ride-along
  (let [running (promise), failure (ex-info "root" {}), cleanup (ex-info "cleanup failed" {})
        e (thrown (t/pmapv 2
                    (fn [i]
                      (if (zero? i)
                        (do @running (throw failure))
                        (try
                          (deliver running true)
                          (Thread/sleep 60000)
                          (catch InterruptedException _ (throw cleanup)))))
                    (range 2)))]
    (is (identical? failure e))
    (is (= [cleanup] (riders e)))))

(deftest at-most-sixteen-ride-and-the-rest-is-counted
  (let [n 100, together (CountDownLatch. n)
        e (thrown (t/pmapv n (fn [i] (meet together) (throw (ex-info (str i) {}))) (range n)))]
    (is (= 16 (count (riders e))))
    (is (= (dec n) (+ (count (riders e)) (:dropped (context-of e)))))))

(deftest a-failure-that-is-not-among-those-kept-is-not-counted-as-dropped
  (let [^Failures failures (failures/failures)
        all (mapv #(do {:throwable (ex-info (str %) {}), :index %, :name "x"}) (range 20))]
    (run! #(.record failures %) all)
    (let [e (failures/merged (peek all) failures)]
      (is (= [16 3] [(count (riders e)) (:dropped (context-of e))])))))

(deftest one-throwable-thrown-by-all-is-never-attached-to-itself
  (let [^Throwable same (ex-info "same" {}), together (CountDownLatch. 5)]
    (is (identical? same (thrown (t/pmapv 5 (fn [_] (meet together) (throw same)) (range 5)))))
    (is (empty? (riders same)))
    (testing "and never holds more than a bounded number of notes, however often it is thrown"
      (dotimes [_ 50] (thrown (t/pmapv 1 (fn [_] (throw same)) [1])))
      (is (<= (alength (.getSuppressed same)) 17)))))

(deftest upmap-delivers-what-was-completed-before-the-failure
  (let [gate (promise)
        failure (ex-info "late" {})
        results (t/upmap 3
                         (fn [i]
                           (if (= i 0)
                             (do
                               (deref gate 10000 :late)
                               (throw failure))
                             i))
                         [0 1 2])]
    (is (= #{1 2} (set (take 2 results))))
    (deliver gate :go)
    (is (identical? failure (thrown (nth results 2))))
    (is (identical? failure (thrown (doall results))))))

(deftest a-failure-stops-nobody-in-fmap
  (let [tasks (doall (t/fmap 2 #(/ 12 %) [0 1 2 3]))]
    (is (= [:failed 12 6 4]
           (map #(try
                   @%
                   (catch java.util.concurrent.ExecutionException _ :failed))
                tasks)))))

(deftest a-source-throws-at-its-own-position
  (let [failure (ex-info "source" {})
        source (fn [] (concat [0 1 2] (lazy-seq (throw failure))))
        counted (iterate #(if (= 2 %) (throw failure) (inc %)) 0)]
    (doseq [results [(t/pmap 4 identity (source)) (t/map identity (source))
                     (t/upmap 2 identity (source)) (t/pmap 4 identity counted)]]
      (is (= #{0 1 2} (set (take 3 results))))
      (is (identical? failure (thrown (nth results 3))))
      (is (identical? failure (thrown (doall results)))))
    (is (identical? failure (thrown (t/pmapv 4 identity (source)))))
    (is (identical? failure (thrown (t/prun! 4 identity (source)))))))

(deftest what-a-wrap-throws-waits-for-its-turn
  (let [failure (ex-info "wrap" {})]
    (doseq [[what start] {"pmap" #(t/pmap {:limit 4, :wrap %} identity (range 10))
                          "upmap" #(t/upmap {:limit 4, :wrap %} identity (range 10))
                          "fmap" #(t/fmap {:limit 4, :wrap %} identity (range 10))
                          "map" #(binding [t/*wrap* %] (t/map identity (range 10)))
                          "for" #(binding [t/*wrap* %] (t/for [i (range 10)] i))
                          "pfor" #(t/pfor {:limit 4, :wrap %} [i (range 10)] i)}
            n [0 1 3 9]]
      (let [calls (atom 0)
            results (start (fn [thunk] (when (< n (swap! calls inc)) (throw failure)) thunk))]
        (testing (str what " " n)
          (is (= (set (range n)) (into #{} (map #(if (future? %) @% %)) (take n results))))
          (is (identical? failure (thrown (dorun (drop n results)))))
          (is (identical? failure (thrown (dorun (drop n results)))))
          (is (= (inc n) @calls)))))))

(deftest a-failing-eager-form-leaves-nothing-running
  (let [ended (promise)
        running (promise)]
    (is (= "x"
           (ex-message (thrown (t/prun! 2
                                        (fn [i]
                                          (if (zero? i)
                                            (do
                                              @running
                                              (throw (ex-info "x" {})))
                                            (do
                                              (deliver running true)
                                              (sleep-until-interrupted ended))))
                                        [0 1])))))
    (is (realized? ended))))

(deftest errors-in-the-bookkeeping-do-not-hang
  (let [running (promise)
        ended (promise)
        failure (OutOfMemoryError. "simulated")]
    (with-redefs [group/cancel! (let [cancel! group/cancel!
                                      first? (atom true)]
                                  (fn [scope reason]
                                    (if (compare-and-set! first? true false)
                                      (throw failure)
                                      (cancel! scope reason))))]
      (is (= "boom"
             (ex-message (gate/in-time 5000
                                       #(thrown (t/pmapv 2
                                                         (fn [i]
                                                           (if (zero? i)
                                                             (do
                                                               @running
                                                               (.setUncaughtExceptionHandler
                                                                 (Thread/currentThread)
                                                                 (reify
                                                                   Thread$UncaughtExceptionHandler
                                                                   (uncaughtException [_ _ _])))
                                                               (throw (ex-info "boom" {})))
                                                             (do
                                                               (deliver running true)
                                                               (sleep-until-interrupted ended))))
                                                         [0 1])))))))
    (is (realized? ended))))

(deftest uninterruptible-work-delays-the-failure
  (let [gate (CountDownLatch. 1)
        running (promise)
        failed (promise)
        consumer (future (thrown (t/pmapv 2
                                          (fn [i]
                                            (if (zero? i)
                                              (do
                                                @running
                                                (deliver failed true)
                                                (throw (ex-info "x" {})))
                                              (do
                                                (deliver running true)
                                                (await-anyway gate))))
                                          [0 1])))]
    @failed
    (is (= :waiting (deref consumer 20 :waiting)))
    (.countDown gate)
    (is (= "x" (ex-message (deref consumer 10000 :stuck))))))

(deftest failures-in-reverse-order-cost-no-more-than-one
  (let [n 20000, all-in (CountDownLatch. n), turn (atom (dec n))
        gates (vec (repeatedly n promise))
        f (fn [i]
            (.countDown all-in)
            (await-anyway all-in)
            (when (< (inc i) n) (deref (gates (inc i)) 5000 :late))
            (swap! turn min i)
            (try (throw (ex-info (str i) {})) (finally (deliver (gates i) true))))
        e (gate/in-time 20000 #(thrown (doall (t/pmap {:limit n, :window n} f (range n)))))]
    (is (= "0" (ex-message e)))))

(deftest a-failure-of-no-item-names-no-item
  (let [^Throwable failure (ex-info "source" {})]
    (is (identical? failure (thrown (doall (t/pmap 2 identity (lazy-seq (throw failure)))))))
    (is (empty? (.getSuppressed failure)))))

;; Interrupts and scopes

(deftest an-interrupt-of-the-consumer-cancels-joins-and-is-thrown
  (doseq [[kind run] {:pmap #(doall (t/pmap 2 % (range 10)))
                      :upmap #(doall (t/upmap 2 % (range 10)))
                      :pmapv #(t/pmapv 2 % (range 10))
                      :prun! #(t/prun! 2 % (range 10))
                      :fmap #(doall (t/fmap 2 % (range 10)))
                      :into #(into [] (t/pmap 2 %) (range 10))
                      :pvalues #(t/pvalues (% 0) (% 1))
                      :for #(doall (t/pfor 2 [i (range 10)] (% i)))}]
    (testing kind
      (let [running (CountDownLatch. 2)
            ended (AtomicLong.)
            f (fn [_]
                (.countDown running)
                (try
                  (Thread/sleep 60000)
                  (finally
                    (.incrementAndGet ended))))
            [^Thread consumer outcome] (gate/start "consumer" #(run f))]
        (.await running)
        (.interrupt consumer)
        (is (instance? InterruptedException (:thrown (deref outcome 10000 :stuck))))
        (is (= 2 (.get ended)))))))

(deftest who-comes-after-an-interrupted-consumer-is-not-interrupted
  (let [running (promise)
        results (t/pmap 1 (fn [_] (deliver running true) (Thread/sleep 60000)) [1 2])
        [^Thread consumer outcome] (gate/start "consumer" #(doall results))]
    @running
    (.interrupt consumer)
    (let [{interrupt :thrown} (deref outcome 5000 :stuck)
          later (thrown (doall results))]
      (is (instance? InterruptedException interrupt))
      (is (instance? CancellationException later))
      (is (= :interrupted (:reason (ex-data later))))
      (is (identical? interrupt (ex-cause later))))))

(deftest an-interrupt-at-every-pull-of-the-source-loses-nothing
  (doseq [k (range 12)
          [kind run] {:pmap #(doall (t/pmap 3 inc %))
                      :upmap #(doall (t/upmap 3 inc %))
                      :pmapv #(t/pmapv 3 inc %)
                      :prun! #(t/prun! 3 inc %)
                      :into #(into [] (t/pmap 3 inc) %)
                      :fmap #(mapv deref (t/fmap 3 inc %))}]
    (testing [kind k]
      (let [source (map (fn [i] (when (= i k) (.interrupt (Thread/currentThread))) i)
                        (take-while some? (iterate inc 0)))
            outcome (gate/in-time 5000
                                  #(try
                                     [:value (run (take 10 source)) (Thread/interrupted)]
                                     (catch InterruptedException _ [:interrupted])))]
        (case (first outcome)
          :interrupted (is (< k 11))
          :value (let [[_ value interrupted?] outcome]
                   (is (or (nil? value) (= (range 1 11) (sort value))))
                   (is (or interrupted? (<= 10 k))
                       "an interrupt that was not thrown is still there")))))))

(deftest lazy-results-of-an-eager-form-end-with-it
  (let [inner (first (t/pmapv 1 (fn [_] (t/pmap 2 inc (range 10))) [:outer]))
        e (thrown (doall inner))]
    (is (= :thrum/closed (:type (ex-data e))))
    (is (re-find #"doall" (ex-message e)))
    (is (re-find #"pmapv" (ex-message e)))
    (is (= :thrum/closed (:type (ex-data (thrown (doall inner))))))
    (is (= [[1 2 3]] (t/pmapv 1 (fn [_] (doall (t/pmap 2 inc (range 3)))) [:outer])))))

(deftest an-eager-form-ends-what-its-calls-left-running
  (let [ended (promise)
        running (promise)]
    (is (= [:left]
           (t/pmapv 1
                    (fn [_]
                      (first (t/pmap 2
                                     (fn [i]
                                       (if (zero? i)
                                         @running
                                         (do
                                           (deliver running true)
                                           (sleep-until-interrupted ended))))
                                     (range 10)))
                      :left)
                    [:outer])))
    (is (realized? ended))))

(deftest lazy-results-of-a-lazy-form-live-on
  (is (= [[1 2] [1 2]] (map doall (t/pmap 2 (fn [_] (t/map inc (range 2))) (range 2))))))

(deftest a-detached-future-survives-the-form-that-started-it
  (let [gate (promise)
        task (first (t/pmapv 1 (fn [_] (t/future (deref gate 10000 :late))) [:outer]))]
    (deliver gate :alive)
    (is (= :alive @task))))
