(ns thrum.fan-out-test
  "What the map family promises: order, laziness, exact bounds, and what becomes of failures."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.group :as group]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent CancellationException CountDownLatch)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- counting
  "Returns an infinite lazy seq of 0, 1, 2 ... without chunks, that counts in the atom how many were
  realised."
  [realised]
  (letfn [(from [n] (lazy-seq (swap! realised inc) (cons n (from (inc n)))))]
    (from 0)))

(defn- context-of [^Throwable t]
  (some #(when (= :thrum/context (:type (ex-data %))) (ex-data %)) (.getSuppressed t)))

(defn- riders [^Throwable t]
  (remove #(= :thrum/context (:type (ex-data %))) (.getSuppressed t)))

(defn- await-anyway
  "Waits for the latch as no interrupt can end it."
  [^CountDownLatch latch]
  (when-not (try (.await latch) true (catch InterruptedException _ false))
    (recur latch)))

(defn- meet [^CountDownLatch together]
  (.countDown together)
  (await-anyway together))

(defn- sleep-until-interrupted
  "Blocks until it is interrupted, then delivers to ended and throws."
  [ended]
  (try
    (Thread/sleep 60000)
    (finally (deliver ended true))))

;; Values

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

(deftest results-come-in-the-order-of-the-input
  (is (= (range 100) (t/pmap 7 identity (range 100))))
  (is (= (range 100) (sort (t/upmap 7 identity (range 100)))))
  (is (= (range 100) (map deref (t/fmap 7 identity (range 100)))))
  (is (= (range 100) (t/map identity (range 100))))
  (is (= (vec (range 100)) (t/pmapv 7 identity (range 100)))))

(deftest an-input-that-ends-late-comes-out-in-order
  (let [gate (promise)]
    (is (=
          [0 1 2 3]
          (t/pmap 4 (fn [i] (if (= i 3) (deliver gate :go) (deref gate 10000 :late)) i)
            (range 4))))))

(deftest completion-is-the-order-of-upmap
  (let [gates (vec (repeatedly 3 promise))
        results (t/upmap 3 (fn [i] @(gates i) i) (range 3))
        second-out (do (deliver (gates 1) true) (first results))]
    (is (= 1 second-out))
    (deliver (gates 2) true)
    (is (= 2 (second results)))
    (deliver (gates 0) true)
    (is (= [1 2 0] results))))

(deftest nil-and-false-travel-both-ways
  (let [xs [nil false 1 nil false]]
    (is (= xs (t/pmap 2 identity xs)))
    (is (= xs (t/map identity xs)))
    (is (= xs (t/pmapv 2 identity xs)))
    (is (= xs (map deref (t/fmap 2 identity xs))))
    (is (= (frequencies xs) (frequencies (t/upmap 2 identity xs))))
    (is (= xs (into [] (t/pmap 2 identity) xs)))
    (is (= xs (t/for [x xs] x)))
    (is (= [nil false] (t/pvalues nil false)))))

(deftest several-collections-end-with-the-shortest
  (is (= [11 22] (t/pmap 2 + [1 2 3] [10 20])))
  (is (= [111 222] (t/map + [1 2 3] [10 20] [100 200 300])))
  (is (= [11 22] (t/pmapv 2 + [1 2] [10 20 30])))
  (is (= [11 22] (sort (t/upmap 2 + [1 2] [10 20 30])))))

(deftest nothing-comes-from-nothing
  (is (= ()
         (t/pmap 2 inc [])
         (t/pmap 2 inc nil)
         (t/upmap 2 inc nil)
         (t/fmap 2 inc nil)
         (t/map inc nil)))
  (is (nil? (seq (t/pmap 2 inc []))))
  (is (= [] (t/pmapv 2 inc nil)))
  (is (nil? (t/prun! 2 inc nil)))
  (is (= () (t/pvalues) (t/pcalls) (t/for [x nil] x))))

(deftest f-is-called-exactly-once-per-item
  (let [calls (vec (repeatedly 500 #(AtomicLong.)))
        f (fn [i] (.incrementAndGet ^AtomicLong (calls i)))]
    (doseq [run [#(doall (t/pmap 8 f (range 500))) #(doall (t/upmap 8 f (range 500)))
                 #(t/pmapv 8 f (range 500)) #(t/prun! 8 f (range 500))
                 #(into [] (t/pmap 8 f) (range 500)) #(run! deref (t/fmap 8 f (range 500)))]]
      (run))
    (is (every? #(= 6 (.get ^AtomicLong %)) calls))))

(deftest every-item-has-a-thread-with-a-name-of-its-own
  (let [names
        (t/pmap {:limit 3, :name "fetch"} (fn [_] (.getName (Thread/currentThread))) (range 20))]
    (is (= 20 (count (set names))))
    (is (every? #(re-matches #"fetch-\d+/\d+" %) names))))

;; Bounds

(defn- most-at-once
  "Runs the form of 60 items at limit 5 and returns how many ran at most, and whether five ran
  together."
  [run]
  (let [running (AtomicLong.)
        most (AtomicLong.)
        five (CountDownLatch. 5)]
    (run (fn [i]
           (.accumulateAndGet most
                              (.incrementAndGet running)
                              (reify
                                java.util.function.LongBinaryOperator
                                (applyAsLong [_ a b] (max a b))))
           (.countDown five)
           (.await five)
           (.decrementAndGet running)
           i))
    (.get most)))

(deftest exactly-limit-run-while-somebody-waits
  (doseq [[kind run] {:pmap #(doall (t/pmap 5 % (range 60)))
                      :upmap #(doall (t/upmap 5 % (range 60)))
                      :fmap #(run! deref (t/fmap 5 % (range 60)))
                      :pmapv #(t/pmapv 5 % (range 60))
                      :prun! #(t/prun! 5 % (range 60))
                      :transducer #(into [] (t/pmap 5 %) (range 60))
                      :pfor #(doall (t/pfor 5 [i (range 60)] (% i)))}]
    (testing kind (is (= 5 (most-at-once run))))))

(deftest no-item-waits-for-a-chunk
  (let [gate (promise)
        done (CountDownLatch. 30)
        results
        (t/pmap 4 (fn [i] (if (zero? i) (deref gate 30000 :late) (.countDown done)) i) (range 31))
        consumer (future (doall results))]
    (testing "while the first item runs, the thirty after it come and go"
      (is (.await done 10 java.util.concurrent.TimeUnit/SECONDS)))
    (deliver gate :go)
    (is (= (range 31) @consumer))))

(deftest started-never-exceeds-the-window
  (let [gate (promise)
        started (AtomicLong.)
        consumer
        (future
          (doall
            (t/pmap {:limit 2, :window 6}
                    (fn [i] (.incrementAndGet started) (when (zero? i) (deref gate 10000 :late)) i)
                    (range 50))))]
    (is (gate/eventually 10000 #(= 6 (.get started))))
    (testing "and the sixth is the last, however long the first takes"
      (is (not (gate/eventually 100 #(< 6 (.get started))))))
    (deliver gate :go)
    (is (= (range 50) @consumer))))

(defn- started-behind-a-slow-item
  "Returns how many tasks a fan-out with that limit starts while its first one runs."
  [limit]
  (let [gate (promise)
        started (AtomicLong.)
        f (fn [i] (.incrementAndGet started) (when (zero? i) (deref gate 10000 :late)) i)
        consumer (future (first (t/pmap limit f (range))))]
    (try
      (gate/eventually 10000 #(<= (max 2048 (* 8 limit)) (.get started)))
      (gate/eventually 50 #(< (max 2048 (* 8 limit)) (.get started)))
      (.get started)
      (finally
        (deliver gate :go)
        @consumer))))

(deftest the-default-window-is-eight-limits-and-at-least-2048
  (is (= 2048 (started-behind-a-slow-item 2)))
  (is (= 2400 (started-behind-a-slow-item 300))))

(deftest nothing-starts-while-nobody-waits
  (let [started (AtomicLong.), realised (atom 0), gates (vec (repeatedly 20 promise))
        results (t/pmap 3 (fn [i] (.incrementAndGet started) @(gates i) i) (counting realised))]
    (is (zero? (.get started)))
    (doseq [k (range 1 10)]
      (deliver (gates (dec k)) true)
      (is (= (dec k) (nth results (dec k))))
      (is (<= (.get started) (+ k 2)))
      (is (<= @realised (+ k 2))))
    (run! #(deliver % true) gates)))

(deftest a-consumer-who-takes-his-time-is-not-alone-at-work
  (testing "with items at hand, the next one runs while he handles the last"
    (let [both (atom 0), busy (CountDownLatch. 1)
          f (fn [i] (when (= i 4) (.countDown busy)) i)]
      (doseq [i (t/pmap 4 f (vec (range 6)))]
        (when (= i 3)
          (when (.await busy 10 java.util.concurrent.TimeUnit/SECONDS) (swap! both inc))))
      (is (= 1 @both)))))

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

(defn- chunks
  "Returns how many elements each step of a walk through the seq hands out at once. Works for so
  many us after each."
  [^long us results]
  (letfn [(work [] (let [start (System/nanoTime)]
                     (while (< (- (System/nanoTime) start) (* 1000 us)))))]
    (loop [sizes [], results (seq results)]
      (work)
      (cond
        (nil? results) sizes
        (chunked-seq? results) (recur (conj sizes (count (chunk-first results)))
                                      (chunk-next results))
        :else (recur (conj sizes 1) (next results))))))

(deftest what-is-ready-leaves-together-where-the-source-has-chunks
  (doseq [[kind start] {:pmap t/pmap, :upmap t/upmap}
          [limit most] {16 8, 512 32, 3 1}
          :let [sizes #(chunks % (start limit identity %2))
                items (vec (range 1000))]]
    (testing [kind limit]
      (is (gate/eventually 10000 #(= most (reduce max (sizes 0 items)))))
      (is (= 1000 (reduce + (sizes 0 items))))
      (is (every? #(<= % most) (sizes 0 items)))
      (testing "but not where it has none, or the consumer takes his time"
        (is (= #{1} (set (sizes 0 (apply list items)))))
        (is (= #{1} (set (sizes 60 items))))))))

(deftest no-ready-result-waits-for-its-neighbour
  (doseq [n [1 3 8 9 20]
          [kind start before] [[:pmap t/pmap (range n)]
                               [:upmap t/upmap (remove #{n} (range 40))]]]
    (testing [kind n]
      (let [gate (promise)
            results (start 64 #(if (= n %) (deref gate 10000 :late) %) (vec (range 40)))]
        (try
          (is (= before (sort (gate/in-time 5000 #(doall (take (count before) results))))))
          (finally (deliver gate n)))
        (is (= (range 40) (sort results)))))))

(deftest no-more-starts-than-the-window-allows-where-results-leave-together
  (doseq [[kind start] {:pmap t/pmap, :upmap t/upmap}]
    (let [started (AtomicLong.)
          f (fn [i] (.incrementAndGet started) i)
          results (start {:limit 64, :window 64} f (vec (range 2000)))]
      (testing [kind "beyond the element that the consumer has"]
        (is (empty? (keep-indexed (fn [i _] (when (< (+ i 64) (.get started)) [i (.get started)]))
                                  (take-while some? (iterate next (seq results))))))))))

(deftest the-source-is-touched-by-the-consumer-alone
  (let [threads (atom #{})
        source (map (fn [i] (swap! threads conj (Thread/currentThread)) i) (range 100))]
    (doall (t/pmap 4 identity source))
    (is (= #{(Thread/currentThread)} @threads))))

(deftest a-chunked-source-is-realised-by-its-own-chunks-only
  (let [realised (atom 0)]
    (first (t/pmap 2 identity (map (fn [i] (swap! realised inc) i) (range 1000))))
    (is (= 32 @realised))))

(deftest a-finished-head-leaves-before-the-source-is-pulled-again
  (let [head (promise)
        pulled (atom 0)
        source (letfn [(from [n]
                             (lazy-seq (swap! pulled inc)
                                       (when (= 1 n) (.join ^Thread @head))
                                       (cons n (from (inc n)))))]
                 (from 0))]
    (is (= 0
           (first
             (t/pmap 4 (fn [i] (when (zero? i) (deliver head (Thread/currentThread))) i) source))))
    (is (<= @pulled 2) "the head ended during the second pull at the latest")))

(deftest the-first-of-an-infinite-input-answers
  (is (= 0 (first (t/map identity (range)))))
  (is (= [0 1 2] (take 3 (t/pmap 4 identity (range)))))
  (is (= [0 1 2] (take 3 (t/for [i (range)] i)))))

(deftest the-first-element-does-not-wait-for-the-slowest
  (let [gate (promise)
        results (t/map #(if (= 1 %) (deref gate 10000 :late) %) [0 1])]
    (is (= 0 (first results)))
    (deliver gate :done)
    (is (= [0 :done] results))))

(deftest an-abandoned-seq-lets-at-most-limit-calls-run-out
  (let [gate (promise)
        started (AtomicLong.)]
    (is
      (= 0
         (first (t/pmap 3
                        (fn [i] (.incrementAndGet started) (when (pos? i) (deref gate 10000 :late))
                          i)
                        (range)))))
    (is (<= (.get started) 3))
    (deliver gate :go)))

(deftest a-recursion-of-fan-outs-ends
  (letfn [(tree [depth] (if (zero? depth) 1 (reduce + (t/pmap 2 tree (repeat 2 (dec depth))))))]
    (is (= 256 (tree 8)))))

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
    (is (<= (count (riders e)) 16))
    (is (= (dec n) (+ (count (riders e)) (:dropped (context-of e)))))))

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

(deftest fmap-starts-limit-tasks-at-the-first-touch
  (let [gate (promise), started (AtomicLong.)
        tasks (t/fmap 3 (fn [i] (.incrementAndGet started) (deref gate 10000 :late) i) (range 10))]
    (is (zero? (.get started)))
    (is (future? (first tasks)))
    (is (gate/eventually 10000 #(= 3 (.get started))))
    (deliver gate :go)
    (is (= (range 10) (map deref tasks)))))

(deftest a-source-throws-at-its-own-position
  (let [failure (ex-info "source" {})
        source (fn [] (concat [0 1 2] (lazy-seq (throw failure))))
        counted (fn [] (iterate #(if (= 2 %) (throw failure) (inc %)) 0))]
    (doseq [results [(t/pmap 4 identity (source)) (t/map identity (source))
                     (t/upmap 2 identity (source)) (t/pmap 4 identity (counted))]]
      (is (= #{0 1 2} (set (take 3 results))))
      (is (identical? failure (thrown (nth results 3))))
      (is (identical? failure (thrown (doall results)))))
    (is (identical? failure (thrown (t/pmapv 4 identity (source)))))
    (is (identical? failure (thrown (t/prun! 4 identity (source)))))))

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

;; Comprehensions, calls

(deftest for-is-a-comprehension-of-tasks
  (is
    (=
      (for [a [1 2 3] b [:a :b :c] :when (not= [a b] [2 :b]) :let [c (* a a)] :while (< c 9)] [c b])
      (t/for [a [1 2 3] b [:a :b :c] :when (not= [a b] [2 :b]) :let [c (* a a)] :while (< c 9)]
        [c b])
      (t/pfor 2
              [a [1 2 3] b [:a :b :c] :when (not= [a b] [2 :b]) :let [c (* a a)] :while (< c 9)]
              [c b])))
  (is (every? #(.isVirtual ^Thread %) (t/for [_ (range 3)] (Thread/currentThread)))))

(deftest bindings-of-for-run-on-the-consumer-one-item-at-a-time
  (let [seen (atom []), self (Thread/currentThread), gate (promise)
        results (t/pfor 2 [x (vec (range 100))
                           :let [_ (swap! seen conj (identical? self (Thread/currentThread)))]]
                  (do (when (pos? x) @gate) x))]
    (first results)
    (is (<= (count @seen) 2))
    (deliver gate true)
    (is (= (range 100) results))
    (is (every? true? @seen))))

(deftest pvalues-runs-all-forms-at-once
  (let [together (CountDownLatch. 3)
        meet (fn [x] (.countDown together) (.await together) x)]
    (is (= [1 2 3] (t/pvalues (meet 1) (meet 2) (meet 3))))
    (is (= [1 2] (t/pcalls (constantly 1) (constantly 2))))))

(deftest pvalues-has-ended-when-it-returns-and-throws-where-a-form-failed
  (let [failed (promise)
        trail (atom [])
        results (t/pvalues :a
                           (do
                             (deliver failed true)
                             (throw (ex-info "b" {})))
                           (do
                             @failed
                             (swap! trail conj :c)
                             :c))]
    (is (= [:c] @trail) "a failure stops nobody, and all have ended")
    (is (= :a (first results)))
    (dotimes [_ 2] (is (= "b" (ex-message (thrown (second results))))))))

(deftest the-file-descriptor-limit-is-sensible
  (is (<= 1 (t/fd-limit) 4096)))
