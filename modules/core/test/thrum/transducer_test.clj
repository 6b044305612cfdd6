(ns thrum.transducer-test
  "The map family as transducers: (pmap limit f) without a collection."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent CancellationException CountDownLatch)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:dynamic *tenant* :nobody)

(deftest it-works-in-every-transducing-context
  (let [xf (t/pmap 3 inc)]
    (is (= (range 1 11) (into [] xf (range 10))))
    (is (= 55 (transduce xf + (range 10))))
    (is (= (range 1 11) (into [] (eduction xf (range 10)))))
    (is (= 55 (reduce + 0 (eduction xf (range 10)))))
    (is (= (range 1 11) (sequence xf (range 10))))
    (is (= [1 2 3] (into [] (comp xf (take 3)) (range 10))))
    (is (= (range 1 11) (sort (into [] (t/upmap 3 inc) (range 10)))))
    (is (= (range 1 11) (map deref (into [] (t/fmap 3 inc) (range 10)))))
    (is (= [] (into [] xf [])))))

(deftest several-inputs-work-as-in-map
  (is (= (sequence (map +) [1 2 3] [10 20 30]) (sequence (t/pmap 2 +) [1 2 3] [10 20 30])))
  (is (= (sequence (map vector) [1 2] [3 4] [5 6]) (sequence (t/pmap 2 vector) [1 2] [3 4] [5 6]))))

(deftest completion-flushes-and-completes-the-next-step-once
  (let [trail (atom [])
        rf (fn ([acc] (swap! trail conj :completed) acc)
               ([acc x] (swap! trail conj x) (conj acc x)))]
    (is (= [1 2 3] (transduce (t/pmap 8 inc) rf [] [0 1 2])))
    (is (= [1 2 3 :completed] @trail)))
  (testing "also when the next step stopped early"
    (let [completions (atom 0)
          rf (fn ([acc] (swap! completions inc) acc) ([acc x] (reduced (conj acc x))))]
      (is (= [1] (transduce (t/pmap 8 inc) rf [] (range 100))))
      (is (= 1 @completions)))))

(deftest reduced-cancels-and-joins-what-runs
  ;; Of 3 items the first leaves at the completion.
  (doseq [n [100 3]
          :let [consumer (Thread/currentThread)
                running (CountDownLatch. 2)
                ended (AtomicLong.)
                f (fn [i]
                    (if (zero? i)
                      (do
                        (.await running)
                        (gate/eventually 5000 #(= Thread$State/WAITING (.getState consumer)))
                        nil)
                      (do
                        (.countDown running)
                        (try
                          (Thread/sleep 60000)
                          (finally
                            (.incrementAndGet ended))))))]]
    (is (= [nil] (into [] (comp (t/pmap 3 f) (take 1)) (range n))))
    (is (= 2 (.get ended)))))

(deftest reduced-by-the-last-batch-is-the-end
  (let [gate (promise), items (concat [1 2 3] (lazy-seq (deliver gate :go) nil))]
    (is (= [2] (transduce (comp (t/pmap {:limit 1, :batch 2} #(do @gate (inc %))) (take 1))
                          conj [] items)))))

(deftest reduced-within-a-batch-is-the-end-before-its-failure
  (is (= [0] (into []
                   (comp (t/pmap {:limit 1, :batch 2} #(if (zero? %) % (throw (ex-info "1" {}))))
                         (take 1))
                   [0 1]))))

(deftest a-throwing-step-cancels-and-joins-what-runs
  (let [running (promise)
        ended (promise)
        failure (ex-info "step" {})
        f (fn [i]
            (if (zero? i)
              (do
                @running
                i)
              (do
                (deliver running true)
                (try
                  (Thread/sleep 60000)
                  (finally
                    (deliver ended true))))))]
    (is (identical? failure
                    (thrown
                      (transduce (t/pmap 2 f) (fn ([_]) ([_ _] (throw failure))) nil (range 10)))))
    (is (realized? ended))))

(deftest a-failing-f-cancels-joins-and-is-thrown
  (let [running (promise)
        ended (promise)
        failure (ex-info "f" {})
        f (fn [i]
            (if (zero? i)
              (do
                @running
                (throw failure))
              (do
                (deliver running true)
                (try
                  (Thread/sleep 60000)
                  (finally
                    (deliver ended true))))))]
    (is (identical? failure (thrown (into [] (t/pmap 2 f) (range 10)))))
    (is (realized? ended))))

(deftest a-throwing-source-leaves-at-most-limit-calls-which-a-surrounding-form-joins
  (let [running (promise), ended (promise), failure (ex-info "source" {})
        f (fn [_] (deliver running true) (try (Thread/sleep 60000) (finally (deliver ended true))))
        source (concat [0] (lazy-seq @running (throw failure)))]
    (is (= [failure] (t/pmapv 1 (fn [_] (thrown (into [] (t/pmap 2 f) source))) [:outer])))
    (is (realized? ended))))

(deftest each-process-has-a-context-of-its-own
  (let [wrapped (atom 0), xf (t/pmap 2 identity)]
    (binding [t/*wrap* (fn [body] (swap! wrapped inc) body)] (into [] xf [1 2]))
    (is (= 2 @wrapped)))
  (let [xf (t/pmap 2 (fn [_] *tenant*))]
    (is (= [:acme] (binding [*tenant* :acme] (into [] xf [1]))))
    (is (= [:other] (binding [*tenant* :other] (into [] xf [1]))))))

(deftest an-abandoned-sequence-lets-at-most-limit-calls-run-out
  (let [gate (promise)
        started (AtomicLong.)]
    (is (= 0
           (first
             (sequence
               (t/pmap 3
                 (fn [i] (when (< 40 (.incrementAndGet started)) (deref gate 10000 :late)) i))
               (range)))))
    (deliver gate :go)
    (is (gate/eventually 10000 #(pos? (.get started))))))

(deftest an-inner-process-never-mistakes-the-outer-end-for-its-own
  (let [inner (promise), running (promise)
        source (concat [1 2 3] (lazy-seq (deliver running true)
                                         (try (Thread/sleep 60000) (catch InterruptedException _))
                                         nil))
        f (fn [i]
            (if (zero? i)
              @running
              (deliver inner (thrown (into [] (t/pmap 8 inc) source)))))]
    (is (= [true] (into [] (comp (t/pmap 2 f) (take 1)) [0 1])))
    (is (= :thrum/cancelled (t/error-type (deref inner 10000 :stuck))))))

(deftest reduced-is-the-end-also-where-a-sibling-has-failed
  (let [failed (promise)
        steps (atom [])
        rf (fn ([acc] acc) ([acc x] (swap! steps conj x) (reduced (conj acc x))))
        f (fn [i]
            (if (zero? i)
              (do
                @failed
                :ok)
              (try
                (throw (ex-info "1" {}))
                (finally
                  (deliver failed true)))))]
    (is (= [:ok] (transduce (t/pmap 2 f) rf [] [0 1])))
    (is (= [:ok] @steps))))

(deftest another-threads-interrupt-is-not-thrown-again-by-a-process-that-moved-on
  (let [gate (promise), rf ((t/pmap 1 (fn [_] @gate)) conj)
        [_ first-outcome] (gate/start "first"
                            #(let [acc (rf [] 1)]
                               (.interrupt (Thread/currentThread))
                               (rf acc 2)))]
    (is (instance? InterruptedException (:thrown (deref first-outcome 5000 nil))))
    (is (instance? CancellationException (thrown (rf [] 3))))
    (is (instance? CancellationException (thrown (rf []))))))

;; As the process of a channel with an ex-handler does.
(deftest a-process-that-goes-on-after-a-failure-gets-it-again-and-does-not-wait
  (doseq [limit [1 4 {:limit 1, :batch 2}]
          xf [t/pmap t/upmap]
          by [:f :step]]
    (testing (pr-str limit by)
      (let [failure (ex-info "failed" {})
            fail #(if (= by %) (throw failure) %2)
            rf ((xf limit #(fail :f %)) (completing #(fail :step (conj %1 %2))))
            outcome (fn [& args] (try (apply rf [] args) (catch Exception e e)))]
        (gate/in-time 5000
          (fn []
            (is (gate/eventually 5000 #(identical? failure (outcome :item))))
            (is (every? #(identical? failure %)
                        (conj (vec (repeatedly 5 #(outcome :item))) (outcome))))))))))

;; A channel completes again at each take after its close.
(deftest a-process-that-is-completed-again-hands-on-nothing-more
  (doseq [limit [1 {:limit 2, :batch 2}]
          xf [t/pmap t/upmap t/pmap-tasks]
          :when (not (and (map? limit) (identical? t/pmap-tasks xf)))]
    (testing (pr-str limit)
      (let [rf ((xf limit inc) conj)
            acc (rf (reduce rf [] [1 2 3]))]
        (is (= 3 (count acc)))
        (is (= [acc acc] [(rf acc) (rf acc)]))))))

(deftest a-failed-process-that-is-completed-again-fails-once
  (let [failure (ex-info "failed" {})
        gate (promise)
        rf ((t/pmap 1 (fn [_] @gate (throw failure))) conj)]
    (rf [] 1)
    (deliver gate :go)
    (is (identical? failure (thrown (rf []))))
    (is (= [] (rf [])))))
