(ns thrum.fan-out-test
  "What the map family promises of its results: order, laziness, exact bounds."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.fanout :as fanout]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (clojure.lang ArrayChunk ChunkedCons IteratorSeq)
   (java.util Enumeration Iterator)
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- counting
  "Returns an infinite lazy seq of 0, 1, 2 ... without chunks, that counts in the atom how many were
  realised."
  [realised]
  (letfn [(from [n] (lazy-seq (swap! realised inc) (cons n (from (inc n)))))]
    (from 0)))

;; Values

(deftest results-come-in-the-order-of-the-input
  (is (= (range 100) (t/pmap 7 identity (range 100))))
  (is (= (range 100) (sort (t/upmap 7 identity (range 100)))))
  (is (= (range 100) (map deref (t/fmap 7 identity (range 100)))))
  (is (= (range 100) (t/map identity (range 100))))
  (is (= (vec (range 100)) (t/pmapv 7 identity (range 100)))))

(deftest a-vector-has-each-result-at-its-index-at-any-length
  (doseq [n [0 1 15 16 17 255 256 257 1023 1024 1025 2500]]
    (is (= (vec (range n)) (t/pmapv 64 identity (range n))) n)))

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

(deftest fmap-starts-limit-tasks-at-the-first-touch
  (let [gate (promise), started (AtomicLong.)
        tasks (t/fmap 3 (fn [i] (.incrementAndGet started) (deref gate 10000 :late) i) (range 10))]
    (is (zero? (.get started)))
    (is (future? (first tasks)))
    (is (gate/eventually 10000 #(= 3 (.get started))))
    (deliver gate :go)
    (is (= (range 10) (map deref tasks)))))

(deftest the-seq-of-tasks-ends-when-the-last-has-started
  (doseq [[kind ->source] {:vector identity
                           :list #(apply list %)
                           :chunks #(map identity %)
                           :lazy #(take (count %) (iterate inc 0))
                           :iterator #(iterator-seq (.iterator ^Iterable %))}]
    (testing kind
      (let [gate (promise)
            f (fn [i] (deref gate 10000 :late) i)
            tasks (future (doall (t/pmap-tasks 3 f (->source [0 1 2]))))]
        (is (= 3 (count (deref tasks 5000 nil))))
        (deliver gate :go)
        (is (= [0 1 2] (map t/value @tasks))))))
  (testing "or with the failure of the source"
    (let [gate (promise)
          f (fn [_] (deref gate 10000 :late))
          source (cons 0 (lazy-seq (throw (ex-info "no more" {}))))
          seen (future (let [tasks (t/pmap-tasks 1 f source), task (first tasks)]
                         [(t/cancelled? task) (ex-message (thrown (next tasks)))
                          (t/cancelled? task)]))]
      (is (= [false "no more" true] (deref seen 5000 nil)))
      (deliver gate :go))))

(deftest no-more-than-the-next-item-waits-for-its-task
  (let [realised (atom 0), gate (promise)
        consumer (future (doall (take 3 (t/pmap-tasks 2
                                                      (fn [_] (deref gate 10000 :late))
                                                      (counting realised)))))]
    (is (gate/eventually 10000 #(= 3 @realised)))
    (is (not (gate/eventually 50 #(< 3 @realised))))
    (deliver gate :go)
    (is (= [:go :go :go] (map t/value @consumer)))))

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

(deftest a-chunk-may-be-empty
  (let [items #(ChunkedCons. (ArrayChunk. (object-array 0)) (list 1 2))]
    (is (= [2 3] (map inc (items)) (t/pmap 2 inc (items))))))

(deftest what-is-ready-leaves-together-where-the-source-has-chunks
  (doseq [[kind start] {:pmap t/pmap, :upmap t/upmap}
          [limit most] {16 8, 128 64, 2048 256, 3 1}
          :let [sizes #(chunks % (start limit identity %2))
                items (vec (range 1000))]]
    (testing [kind limit]
      (is (gate/eventually 10000 #(= most (reduce max (sizes 0 items)))))
      (is (= 1000 (reduce + (sizes 0 items))))
      (is (every? #(<= % most) (sizes 0 items)))
      (testing "but not where it has none, or the consumer takes his time"
        (is (= #{1} (set (sizes 0 (apply list items)))))
        (is (= #{1} (set (sizes 60 items))))))))

(deftest a-consumer-of-an-even-pace-keeps-his-number
  (let [at-pace (fn [ns-each]
                  (iterate #(fanout/next-together % (* (long ns-each) (long %)) 512) 1))]
    (doseq [[ns-each number] {100 256, 300 128, 1500 32, 3000 16, 40000 1}]
      (is (= #{number} (set (take 50 (drop 10 (at-pace ns-each))))) ns-each))
    (is (= 1 (fanout/next-together 256 50000 512)))
    (is (= 8 (fanout/next-together 8 0 16)))))

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
  (let [realised (atom 0), source (map (fn [i] (swap! realised inc) i) (range 1000))]
    ;; With a larger window one that waits for the head may reach the next chunk.
    (first (t/pmap {:limit 2, :window 2} identity source))
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

(defn- iterated
  "Returns sources of 0, 1, 2 ... whose iterators wait for the gate when they are asked for 3."
  [gate]
  (let [n (AtomicLong.)
        more? #(do (when (= 3 (.get n)) (deref gate 10000 :late)) true)
        next-one #(.getAndIncrement n)]
    {"IteratorSeq" #(IteratorSeq/create
                      (reify Iterator (hasNext [_] (more?)) (next [_] (next-one))))
     "EnumerationSeq" #(enumeration-seq
                         (reify
                           Enumeration
                           (hasMoreElements [_] (more?))
                           (nextElement [_] (next-one))))}))

(deftest a-finished-element-leaves-before-an-iterator-is-asked
  (doseq [kind (keys (iterated nil))]
    (let [gate (promise), taken (promise), second-thread (promise)
          f (fn [i]
              (case (long i)
                0 (deref second-thread 10000 :late)
                1 (do (deliver second-thread (Thread/currentThread)) (deref taken 10000 :late))
                nil)
              i)
          results (t/pmap 2 f (((iterated gate) kind)))]
      (testing kind
        (is (= 0 (first results)))
        (deliver taken true)
        (.join ^Thread @second-thread)
        (is (= 1 (gate/in-time 5000 #(second results)))))
      (deliver gate true))))

(deftest an-item-is-worked-on-before-an-iterator-is-asked-for-the-next
  (let [worked-on (atom nil)
        seen (atom [])
        source (fn []
                 (let [n (AtomicLong.)]
                   (enumeration-seq
                     (reify
                       Enumeration
                       (hasMoreElements [_]
                         (when (= 1 (.get n)) (swap! seen conj (deref @worked-on 10000 :late)))
                         (< (.get n) 2))
                       (nextElement [_] (.getAndIncrement n))))))
        f (fn [i] (deliver @worked-on i) i)]
    (doseq [mapped [#(t/pmap 1 f %) #(t/pmap 2 f %) #(t/upmap 2 f %)]]
      (reset! worked-on (promise))
      (is (= [0 1] (sort (mapped (source))))))
    (is (= [0 0 0] @seen))))

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
    (is (= [:c] @trail) "a failure stops no other call, and all have ended")
    (is (= :a (first results)))
    (dotimes [_ 2] (is (= "b" (ex-message (thrown (second results))))))))

(deftest the-file-descriptor-limit-is-sensible
  (is (<= 1 (t/fd-limit) 4096)))
