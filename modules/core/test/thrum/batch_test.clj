(ns thrum.batch-test
  "Several items in one task. thrum.model-test compares what comes out with clojure.core/map."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [clojure.test.check :as tc]
   [clojure.test.check.generators :as gen]
   [clojure.test.check.properties :as prop]
   [thrum.core :as t]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.wait :as wait]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]]
   [thrum.virtual-clock :as virtual-clock])
  (:import
   (java.util.concurrent CancellationException CountDownLatch)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- index-of [^Throwable t]
  (some #(when (= :thrum/context (:type (ex-data %))) (:index (ex-data %))) (.getSuppressed t)))

(defn- holds [n property]
  (let [{:keys [pass? shrunk seed]} (tc/quick-check n property)]
    (is pass? (pr-str {:seed seed, :smallest (:smallest shrunk)}))))

(defn- counting
  "Returns a lazy seq of the integers below n without chunks, that counts in the atom how many were
  realised."
  [n realised]
  (letfn [(from [i]
                (lazy-seq
                  (when (< (long i) (long n))
                    (swap! realised inc)
                    (cons i (from (inc (long i)))))))]
    (from 0)))

(def ^:private sizes
  (gen/let [limit (gen/choose 1 4), batch (gen/choose 1 6), more (gen/choose 0 10)]
    {:limit limit, :batch batch, :window (+ (* limit batch) more)}))

;; One task

(deftest the-items-of-a-batch-share-a-task-in-their-order
  (let [calls (atom [])
        names (t/pmapv {:limit 2, :batch 3, :name "fetch"}
                       (fn [i] (swap! calls conj i) (.getName (Thread/currentThread)))
                       (range 8))]
    (is (= [3 3 2] (map count (partition-by identity names))))
    (is (every? #(re-matches #"fetch-\d+/[012]" %) names))
    (doseq [batch (partition-all 3 (range 8))]
      (is (= batch (filter (set batch) @calls))))))

(deftest nil-and-false-travel
  (let [xs [nil false 1 nil false]]
    (is (= xs (t/pmap {:limit 2, :batch 2} identity xs)))
    (is (= xs (t/pmapv {:limit 2, :batch 2} identity xs)))
    (is (= [11 22 33] (t/pmap {:limit 2, :batch 2} + [1 2 3] [10 20 30 40])))
    (is (= [11 22 33] (sequence (t/pmap {:limit 2, :batch 2} +) [1 2 3] [10 20 30])))
    (is (nil? (t/prun! {:limit 2, :batch 2} identity xs)))
    (is (= () (t/pmap {:limit 2, :batch 2} identity nil)))))

(deftest a-reduced-result-is-a-result-like-any-other
  (let [calls (atom 0), stop (reduced :stop)
        f (fn [i] (swap! calls inc) (if (= 1 i) stop i))
        expected (replace {1 stop} (range 12))]
    (doseq [options [{:limit 1} {:limit 1, :batch 4} {:limit 3, :batch 2}]
            [name run in-order?] [["pmap" #(doall (t/pmap options f %)) true]
                                  ["pmapv" #(t/pmapv options f %) true]
                                  ["into" #(into [] (t/pmap options f) %) true]
                                  ["upmap" #(doall (t/upmap options f %)) false]
                                  ["into, upmap" #(into [] (t/upmap options f) %) false]]]
      (testing [name options]
        (reset! calls 0)
        (let [results (run (range 12))]
          (is (= (frequencies expected) (frequencies results)))
          (is (or (not in-order?) (= expected results)))
          (is (= 12 @calls)))))
    (doseq [options [{:limit 1} {:limit 1, :batch 4}]]
      (reset! calls 0)
      (is (nil? (t/prun! options f (range 12))))
      (is (= 12 @calls) options))))

(deftest each-item-is-called-once-and-no-more-than-limit-at-once
  (holds 30
    (prop/for-all [{:keys [limit] :as options} sizes, n (gen/choose 0 40)]
      (every? identity
        (for [run [#(doall (t/pmap options % (range n)))
                   #(t/pmapv (dissoc options :window) % (range n))
                   #(t/prun! (dissoc options :window) % (range n))
                   #(into [] (t/upmap options %) (range n))]
              :let [running (AtomicLong.), most (atom 0), calls (atom {})]]
          (do
            (run (fn [i]
                   (swap! most max (.incrementAndGet running))
                   (swap! calls update i (fnil inc 0))
                   (Thread/yield)
                   (.decrementAndGet running)))
            (and (<= (long @most) (long limit))
                 (= (zipmap (range n) (repeat 1)) @calls))))))))

(deftest limit-batches-run-while-the-consumer-waits
  (let [four (CountDownLatch. 4)]
    (is (= (range 40)
           (t/pmap {:limit 4, :batch 3} (fn [i] (.countDown four) (.await four) i) (range 40))))))

;; Laziness

(deftest what-is-started-and-pulled-is-bounded
  (holds 30
    (prop/for-all [{:keys [window] :as options} sizes, n (gen/choose 1 60)]
      (let [realised (atom 0), started (AtomicLong.)
            results (t/pmap options (fn [i] (.incrementAndGet started) i) (counting n realised))]
        (and (zero? @realised)
             (loop [consumed 0, results results]
               (or (nil? (seq results))
                   (let [_ (first results), consumed (inc consumed)]
                     (and (<= (.get started) @realised (+ consumed (dec window)))
                          (recur consumed (rest results)))))))))))

(deftest between-takes-nothing-starts
  (let [options {:limit 2, :batch 3}, gate (promise), started (AtomicLong.), realised (atom 0)
        f (fn [i] (.incrementAndGet started) (when (<= 3 (long i)) (deref gate 5000 nil)) i)
        results (t/pmap options f (counting 100 realised))]
    (is (= 0 (first results)))
    (let [n @realised]
      (is (= [0 1 2] (take 3 results)))
      (is (= n @realised) "the results of a batch are handed out without a pull")
      (is (<= n 6)))
    (deliver gate :go)
    (is (= (range 100) results))))

(deftest the-window-counts-items
  (let [gate (promise), realised (atom 0)
        results (t/pmap {:limit 2, :batch 3, :window 10}
                  (fn [i] (when (zero? (long i)) (deref gate 5000 nil)) i)
                  (counting 100 realised))
        consumer (t/future (first results))]
    (is (gate/eventually 5000 #(= 9 @realised)))
    (is (not (gate/eventually 50 #(< 9 (long @realised)))) "another batch would be twelve")
    (deliver gate :go)
    (is (= 0 @consumer))))

(deftest a-ready-result-waits-for-one-pull-at-most
  (let [pulls (atom 0), thread (promise)
        source (letfn [(from [i]
                             (lazy-seq
                               (swap! pulls inc)
                               (when (= 3 i) (.join ^Thread (deref thread 5000 nil)))
                               (cons i (from (inc i)))))]
                 (from 0))
        f (fn [i] (when (= 1 i) (deliver thread (Thread/currentThread))) i)]
    (is (= [0 1] (take 2 (t/pmap {:limit 2, :batch 2} f source))))
    (is (<= @pulls 4) "the second batch was not full when the first left")))

(deftest a-failing-source-throws-behind-all-items-before-it
  (let [failure (ex-info "source" {})]
    (doseq [batch [1 2 3 4 5 6]
            :let [source (map #(if (= 5 %) (throw failure) %) (list 0 1 2 3 4 5))
                  results (t/pmap {:limit 2, :batch batch} identity source)]]
      (is (= (range 5) (take 5 results)))
      (is (identical? failure (thrown (doall results))))
      (is (identical? failure (thrown (doall results)))))))

;; Failures

(deftest a-failure-has-the-index-of-its-item
  (holds 30
    (prop/for-all [options sizes, n (gen/choose 1 40), i (gen/choose 0 39)]
      (let [i (mod i n)
            calls (atom #{})
            f #(if (= i %) (throw (ex-info "no" {})) (do (swap! calls conj %) %))
            eager (dissoc options :window)]
        (every? identity
          (for [run [#(doall (t/pmap options f (range n))) #(doall (t/upmap options f (range n)))
                     #(t/pmapv eager f (range n)) #(t/prun! eager f (range n))
                     #(into [] (t/pmap options f) (range n))]]
            (do
              (reset! calls #{})
              (and (= i (index-of (thrown (run))))
                   (not-any? #(and (< i %) (= (quot i (:batch options)) (quot % (:batch options))))
                             @calls)))))))))

(deftest a-failed-seq-throws-again-behind-the-same-elements
  (let [failure (ex-info "no" {})
        results (t/pmap {:limit 2, :batch 4} #(if (= 5 %) (throw failure) %) (range 20))]
    (is (= (range 5) (take 5 results)))
    (dotimes [_ 3]
      (is (identical? failure (thrown (doall results))))
      (is (identical? failure (thrown (nth results 5)))))
    (is (= (range 5) (take 5 results)))))

(deftest the-wrap-is-called-once-for-a-batch
  (let [wraps (atom 0)]
    (is (= (range 7)
           (t/pmap {:limit 2, :batch 3, :wrap (fn [thunk] (swap! wraps inc) thunk)}
                   identity
                   (range 7))))
    (is (= 3 @wraps)))
  (testing "one that takes an exception, or does not call its thunk, loses no item in silence"
    (doseq [wrap [(fn [_] (fn [] :nothing))
                  (fn [thunk] (fn [] (try (thunk) (catch Exception _ nil))))]]
      (is (= [:thrum/invalid :wrap]
             ((juxt :type :option)
              (ex-data (thrown (t/pmapv {:limit 2, :batch 3, :wrap wrap}
                                        #(if (= 1 %) (throw (ex-info "no" {})) %)
                                        (range 7)))))))))
  (testing "one whose own value is another does no harm"
    (is (= (range 7)
           (t/pmap {:limit 2, :batch 3, :wrap (fn [thunk] (fn [] (thunk) :other))}
                   identity
                   (range 7)))))
  (testing "one that calls its thunk twice throws at the last item, behind the values before it"
    (let [calls (atom 0)
          wrap (fn [thunk] (fn [] (thunk) (thunk)))
          f (fn [i] #(do (swap! calls inc) i))
          results (t/pmap {:limit 1, :batch 3, :wrap wrap} f [1 2 3])]
      (is (= [1 2] (map #(%) (take 2 results))))
      (is (= 2 @calls))
      (is (= [:thrum/invalid :wrap] ((juxt :type :option) (ex-data (thrown (doall results))))))))
  (testing "one that throws at the start throws at the first item of its batch"
    (let [failure (ex-info "wrap" {}), wraps (atom 0)
          wrap (fn [thunk] (if (= 2 (swap! wraps inc)) (throw failure) thunk))
          results (t/pmap {:limit 2, :batch 3, :wrap wrap} identity (range 9))]
      (is (= [0 1 2] (take 3 results)))
      (is (identical? failure (thrown (nth results 3))))))
  (testing "one that throws in the end throws at the last item of its batch"
    (let [wrap (fn [thunk] (fn [] (thunk) (throw (ex-info "wrap" {}))))]
      (is (= 2 (index-of (thrown (t/pmapv {:limit 1, :batch 3, :wrap wrap} inc (range 9)))))))))

(deftest a-reduction-that-ends-in-a-batch-ends-there
  (is (= 1 (transduce (t/pmap {:limit 1, :batch 4} inc) (completing (fn [_ x] (reduced x)))
                      nil (range 8)))))

;; Cancel and deadlines

(deftest a-cancel-ends-a-batch-after-the-item-that-runs
  (let [running (promise), ended (promise), calls (atom [])
        f (fn [i]
            (swap! calls conj i)
            (when (= 1 i)
              (deliver running true)
              ;; It takes its interrupt.
              (try (Thread/sleep 60000) (catch InterruptedException _)))
            i)
        task (t/future
               (try
                 (t/pmapv {:limit 1, :batch 10} f (range 10))
                 (finally (deliver ended true))))]
    (is (deref running 5000 nil))
    (t/cancel! task)
    (is (instance? CancellationException (thrown (t/value task))))
    (is (deref ended 5000 nil))
    (is (= [0 1] @calls))))

(deftest an-interrupt-that-an-item-leaves-behind-does-not-reach-the-next
  (is (= [false false false]
         (t/pmapv {:limit 1, :batch 3}
                  (fn [_]
                    (let [interrupted (.isInterrupted (Thread/currentThread))]
                      (.interrupt (Thread/currentThread))
                      interrupted))
                  (range 3)))))

(defn- sleep! [ms]
  (wait/sleep! (deadline/in-ms ms))
  ms)

(defn- in-virtual-time
  "Returns [value-or-type index ms] of f in virtual time."
  [f]
  (let [{:keys [value thrown nanos alive planned]} (virtual-clock/run 1 f)]
    (is (= [0 0] [alive planned]))
    [(if thrown (t/error-type thrown) value) (some-> thrown index-of) (quot (long nanos) 1000000)]))

(deftest a-deadline-around-ends-all-batches
  (let [calls (atom 0)]
    (is (= [:late nil 25]
           (in-virtual-time
             (fn []
               (t/with-timeout [25 :late]
                 (t/pmapv {:limit 2, :batch 4}
                          (fn [_] (swap! calls inc) (sleep! 10))
                          (range 8)))))))
    (is (= 6 @calls))))

(deftest each-item-of-a-batch-has-its-own-time
  (is (= [[9 9 9 9] nil 18]
         (in-virtual-time
           #(t/pmapv {:limit 2, :batch 2, :item-timeout-ms 10} sleep! [9 9 9 9]))))
  (testing "and a late one ends its batch, as any failure"
    (is (= [:thrum/timeout 2 23]
           (in-virtual-time
             #(t/pmapv {:limit 1, :batch 4, :item-timeout-ms 10} sleep! [9 4 50 1]))))))

;; Misuse

(deftest wrong-batches-are-refused
  (doseq [run [#(t/pmap {:limit 2, :batch 0} inc [1]) #(t/pmap {:limit 2, :batch nil} inc [1])
               #(t/pmap {:limit 2, :batch 3, :window 5} inc [1])
               #(t/pmapv {:limit 2, :batch "3"} inc [1])
               #(t/pmap-tasks {:limit 2, :batch 3} inc [1])]]
    (is (= :thrum/invalid (t/error-type (thrown (run))))))
  (is (= [2] (t/pmap {:limit 2, :batch 3, :window 6} inc [1]))))

(deftest a-batch-may-be-larger-than-any-window
  (doseq [form [t/pmap t/pmapv]]
    (is (= [2 3] (form {:limit 2, :batch Long/MAX_VALUE} inc [1 2])))))
