(ns thrum.async.mapped-test
  "pmap->chan: when a result leaves, how far the work goes ahead, and how it fails."
  (:require
   [clojure.core.async :as async]
   [clojure.core.async.impl.protocols :as impl]
   [clojure.core.protocols :as protocols]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.async :as a]
   [thrum.async.pipes :refer [all]]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (clojure.core.async.impl.channels ManyToManyChannel)
   (clojure.lang Counted)
   (java.lang.ref WeakReference)
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- next-of [ch]
  (gate/in-time 5000 #(a/<!! ch)))

(defn- failing-source
  "Returns a lazy seq of the numbers below n, without chunks, that ends by throwing e; reached is
  delivered just before."
  [n e reached]
  (map (fn [i]
         (when (= n i)
           (deliver reached true)
           (throw e))
         i)
       (iterate inc 0)))

(deftest a-result-leaves-while-the-source-waits
  (let [in (async/chan), out (a/pmap->chan 8 inc (a/chan->reducible in))]
    (dotimes [i 3]
      (a/>!! in i)
      (is (= (inc i) (next-of out))))
    (async/close! in)
    (is (= [] (all out)))))

(deftest a-sources-failure-comes-after-every-result-before-it
  (let [e (ex-info "src" {}), reached (promise)
        slow-inc (fn [i] (deref reached 5000 :late) (inc (long i)))]
    (is (= [1 2 3 e] (all (a/pmap->chan 4 slow-inc (failing-source 3 e reached))))))
  (testing "in any order"
    (dotimes [_ 100]
      (let [e (ex-info "src" {})]
        (is (= [1 2 3 4 5 e] (all (a/pmap->chan 2 inc (failing-source 5 e (promise))))))))))

(deftest calls-have-ended-when-a-sources-failure-is-delivered
  (let [reached (promise), channel (promise)
        ;; Each call looks, once the source has failed, whether the channel ends before it does.
        look (fn [_]
               (deref reached 5000 :late)
               (boolean (gate/eventually 200 #(impl/closed? (deref channel 5000 nil)))))
        e (ex-info "src" {})
        out (a/pmap->chan 4 look (failing-source 3 e reached))]
    (deliver channel out)
    (is (= [false false false e] (all out)))))

(deftest a-failure-ends-the-wait-for-the-source-and-the-calls-after-it
  (let [in (async/chan), started (CountDownLatch. 2), ended (CountDownLatch. 2)
        ^Throwable e (ex-info "x" {})
        f (fn [i]
            (case (long i)
              0 :first
              1 (do (.await started) (throw e))
              (try
                (.countDown started)
                (Thread/sleep 60000)
                (finally (.countDown ended)))))
        out (a/pmap->chan 4 f (a/chan->reducible in))]
    (dotimes [i 4] (a/>!! in i))
    (is (= :first (next-of out)))
    (is (identical? e (next-of out)))
    (is (zero? (.getCount ended)))
    (is (nil? (async/offer! in :lost)) "nothing waits for an item any more")
    (is (= [] (all out)))
    (is (= [{:type :thrum/context, :index 1, :dropped 0}]
           (map #(dissoc (ex-data %) :task) (.getSuppressed e))))))

(deftest a-failure-of-an-item-comes-before-one-of-the-source
  (let [reached (promise), e (ex-info "x" {})
        f (fn [i]
            (deref reached 5000 :late)
            (if (= 1 i) (throw e) i))]
    (is (= [0 e] (all (a/pmap->chan 4 f (failing-source 3 (ex-info "src" {}) reached)))))))

(deftest no-call-starts-while-a-result-waits-to-be-taken
  (let [tickets (vec (repeatedly 100 promise))
        started (AtomicLong.)
        f (fn [i]
            (.incrementAndGet started)
            (deref (tickets i) 5000 :late)
            i)
        ^ManyToManyChannel out (a/pmap->chan 2 f (range 100))]
    (dotimes [i 2]
      (deliver (tickets i) :go)
      (is (gate/eventually 5000 #(= (inc i) (.count ^Counted (.-buf out))))))
    (deliver (tickets 2) :go)
    (is (gate/eventually 5000 #(seq (.-puts out))))
    ;; Two results in the channel, one that waits, and two calls that ran beside it.
    (run! #(deliver % :go) tickets)
    (is (not (gate/eventually 100 #(< 5 (.get started)))))
    (is (= (range 100) (all out)))))

(deftest an-item-may-be-nil-and-the-source-anything-that-can-be-reduced
  (is (= [true false true] (all (a/pmap->chan 2 nil? [nil 1 nil]))))
  (is (= [] (all (a/pmap->chan 2 inc nil))))
  (is (= [1 2 3] (all (a/pmap->chan 2 inc (eduction (filter number?) [0 :a 1 2])))))
  (is (= [1 2] (all (a/pmap->chan 2
                                  inc
                                  (reify protocols/CollReduce
                                    (coll-reduce [_ f init] (reduce f init [0 1]))))))))

(deftest what-cannot-be-reduced-is-refused-at-the-call
  (doseq [coll [5 :k inc (Object.)]]
    (let [refused (try (a/pmap->chan 2 inc coll) (catch Exception e e))]
      (is (= :thrum/invalid (:type (ex-data refused)))))))

(deftest arguments-in-another-order-are-told-what-comes-first
  (let [refused (try (a/pmap->chan inc 2 [1]) (catch Exception e e))]
    (is (= :limit (:option (ex-data refused))))))

(deftest a-call-may-have-a-deadline
  (is (= [:thrum/timeout]
         (map (comp :type ex-data)
              (all (a/pmap->chan {:limit 1, :item-timeout-ms 1}
                                 (fn [_] (Thread/sleep 60000))
                                 [1]))))))

(deftest the-source-runs-inside-the-wrap
  (let [local (ThreadLocal.)
        wrap (fn [thunk]
               (fn []
                 (.set local :wrapped)
                 (try (thunk) (finally (.remove local)))))
        source (map (fn [_] (.get local)) (range 3))]
    (is (= (repeat 3 [:wrapped :wrapped])
           (all (a/pmap->chan {:limit 2, :wrap wrap} (fn [seen] [seen (.get local)]) source))))))

(deftest a-wrap-may-do-what-it-may-around-pmap
  (let [done (fn [thunk] #(do (thunk) :done))
        caught (fn [thunk] #(try (thunk) (catch Exception _ :failed)))
        elsewhere (fn [thunk] #(deref (future (thunk))))
        f (fn [i] (if (= 2 i) (throw (ex-info "x" {})) i))]
    (doseq [batch [nil 2]
            :let [options (fn [wrap] (cond-> {:limit 2, :wrap wrap} batch (assoc :batch batch)))]]
      (is (= [:done :done :done] (all (a/pmap->chan (options done) inc (range 3)))))
      (is (= [0 1 :failed 3 4] (all (a/pmap->chan (options caught) f (range 5)))))
      (is (= [1 2 3] (all (a/pmap->chan (options elsewhere) inc (range 3))))))
    (is (= [] (all (a/pmap->chan {:limit 2, :wrap (fn [thunk] #(do (thunk) nil))} inc [1]))))))

(deftest a-wrap-swallows-no-failure-of-the-source
  (let [e (ex-info "src" {})]
    (is (= [0 1 2 e]
           (all (a/pmap->chan {:limit 2, :wrap (fn [thunk] #(try (thunk) (catch Exception _ nil)))}
                              identity
                              (failing-source 3 e (promise)))))))
  (testing "nor its own"
    (let [e (ex-info "wrap" {}), wrap (fn [thunk] #(do (thunk) (throw e)))]
      (is (= [e] (all (a/pmap->chan {:limit 2, :wrap wrap} inc []))))))
  (testing "nor the source itself"
    (is (= [:thrum/invalid]
           (map (comp :type ex-data)
                (all (a/pmap->chan {:limit 2, :wrap (fn [_] (fn []))} inc [1])))))))

(deftest a-wrap-calls-each-thunk-once
  (is (= [[:thrum/invalid :wrap]]
         (map (comp (juxt :type :option) ex-data)
              (all (a/pmap->chan {:limit 2, :wrap (fn [thunk] #(do (thunk) (thunk)))} inc [1]))))))

(deftest the-source-is-read-two-items-ahead-at-most
  (dotimes [_ 20]
    (let [gate (promise), read (AtomicLong.), started (AtomicLong.)
          source (concat [0 1 2]
                         (lazy-seq (deref gate 5000 :late)
                           (map (fn [i] (.incrementAndGet read) i) (iterate inc 3))))
          ^ManyToManyChannel out (a/pmap->chan 2 (fn [i] (.incrementAndGet started) i) source)]
      (is (gate/eventually 5000 #(= 3 (.get started))))
      (deliver gate :go)
      (is (not (gate/eventually 10 #(< 2 (- (+ 3 (.get read)) (.get started))))))
      (async/close! out))))

;; Batches

(deftest the-items-of-a-batch-share-a-task
  (let [thread-name (fn [_] (.getName (Thread/currentThread)))
        names (all (a/pmap->chan {:limit 2, :batch 3} thread-name (range 7)))]
    (is (= [3 3 1] (map count (partition-by identity names))))
    (is (= 3 (count (set names)))))
  (is (= (remove #(zero? (mod % 3)) (range 100))
         (all (a/pmap->chan {:limit 3, :batch 7} #(when-not (zero? (mod % 3)) %) (range 100))))))

(deftest what-precedes-a-failure-in-its-batch-is-delivered
  (doseq [batch [2 5 9], limit [1 3]]
    (let [^Throwable e (ex-info "x" {})
          f (fn [i] (if (= 6 i) (throw e) i))
          out (a/pmap->chan {:limit limit, :batch batch} f (range 40))]
      (is (= [0 1 2 3 4 5 e] (all out)))
      (is (= 6 (:index (ex-data (first (.getSuppressed e))))))))
  (testing "and so is what precedes one of the source"
    (let [e (ex-info "src" {})]
      (is (= [1 2 3 4 e]
             (all (a/pmap->chan {:limit 2, :batch 3} inc (failing-source 4 e (promise)))))))))

(deftest nothing-of-the-source-is-held
  (let [reference (promise), go-on (promise), seen (promise)
        source (fn []
                 (map (fn [i]
                        (let [item (Object.)]
                          (when (zero? (long i)) (deliver reference (WeakReference. item)))
                          (when (= 9 i) (deliver seen true) (deref go-on 10000 :late))
                          item))
                      (iterate inc 0)))
        out (a/pmap->chan 2 (fn [_] 1) (take 12 (source)))]
    (dotimes [_ 9] (next-of out))
    (is (true? (deref seen 5000 :late)))
    (is (gate/eventually 5000 #(do (System/gc) (nil? (.get ^WeakReference @reference)))))
    (deliver go-on true)
    (is (= [1 1 1] (all out)))))
