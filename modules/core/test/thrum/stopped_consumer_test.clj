(ns thrum.stopped-consumer-test
  "A consumer of a fan-out that is interrupted or cancelled starts nothing more, also where it never
  has to wait."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent CancellationException ConcurrentHashMap)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private stops
  "By what is thrown then: a function that stops the calling thread, whose work is task. A cancel's
  interrupt is used up."
  {InterruptedException (fn [_] (.interrupt (Thread/currentThread)))
   CancellationException (fn [task] (future-cancel task) (Thread/interrupted))})

(defn- in-task
  "Returns (f task), called in a task."
  [f]
  (let [self (promise), result (promise)]
    (deliver self (t/future (deliver result (f @self))))
    (deref result 20000 :late)))

(defn- items
  "Returns {:f :called :ended?}: the identity, how often it was called, and whether the task of an
  item is over."
  []
  (let [threads (ConcurrentHashMap.)]
    {:f (fn [i] (.put threads i (Thread/currentThread)) i)
     :called #(.size threads)
     :ended? (fn [i]
               (when-some [^Thread thread (.get threads i)]
                 (not (.isAlive thread))))}))

(def ^:private lazy-forms {"pmap" t/pmap, "upmap" t/upmap})

(def ^:private eager-forms
  {"prun!" #(t/prun! %1 %2 %3)
   "pmapv" #(t/pmapv %1 %2 %3)
   "pmap as a transducer" #(transduce (t/pmap %1 %2) conj [] %3)})

(deftest a-result-that-is-due-starts-no-other-item
  (doseq [[name form] lazy-forms, [expected stop!] stops]
    (testing name
      (let [{:keys [f called ended?]} (items)
            at-stop (volatile! nil)
            consume (fn [task]
                      (loop [s (seq (form {:limit 4, :window 40} f (vec (range 300)))), i 0]
                        (when (= 50 i)
                          (vreset! at-stop (called))
                          (stop! task))
                        (when s
                          (gate/eventually 5000 #(or (= 299 i) (ended? (inc i))))
                          (recur (next s) (inc i)))))]
        (is (instance? expected (in-task #(thrown (consume %)))))
        (is (<= (called) (+ 4 @at-stop)) "what had been started")))))

(deftest an-item-that-the-consumer-was-stopped-in-pulling-is-not-started
  (doseq [[name form] (merge lazy-forms eager-forms), [expected stop!] stops, limit [1 8]]
    (testing name
      (let [started (volatile! 0)
            wrap (fn [f] (vswap! started inc) f)
            pulled (fn [task i]
                     (when (= 50 i) (stop! task))
                     i)
            consume (fn [task]
                      (dorun (form {:limit limit, :wrap wrap}
                                   identity
                                   (map #(pulled task %) (iterate inc 0)))))]
        (is (instance? expected (in-task #(thrown (consume %)))))
        (is (= 50 @started))))))

;; The task of each item is over before the next item is pulled, so the consumer never waits.
(deftest a-slow-source-starts-no-other-item
  (doseq [[name form] eager-forms, [expected stop!] stops]
    (testing name
      (let [{:keys [f called ended?]} (items)
            pulled (fn [task i]
                     (when (pos? i) (gate/eventually 5000 #(ended? (dec i))))
                     (when (= 50 i) (stop! task))
                     i)
            consume (fn [task] (form {:limit 1} f (map #(pulled task %) (iterate inc 0))))]
        (is (instance? expected (in-task #(thrown (consume %)))))
        (is (= 50 (called)))))))

(deftest who-was-stopped-before-starts-nothing
  (doseq [[name form] eager-forms, limit [1 8], [expected stop!] stops]
    (testing name
      (let [{:keys [f called]} (items)]
        (is (instance? expected
                       (in-task #(do
                                   (stop! %)
                                   (thrown (form {:limit limit} f (range 10)))))))
        (is (= 0 (called)))))))

;; With so high a limit it waits for nothing before the source ends.
(deftest a-caller-that-never-waits-sees-its-interrupt-and-its-cancel
  (doseq [[thrown-then stop!] {InterruptedException (fn [_] (.interrupt (Thread/currentThread)))
                               CancellationException #(do (t/cancel! %) (Thread/interrupted))}
          options [{:limit 200000}, {:limit 200000, :batch 10}]]
    (let [self (promise), ended (promise), pulled (volatile! 0)
          source (map (fn [i]
                        (vreset! pulled i)
                        (when (= 50 i) (stop! @self)))
                      (range 100000))
          task (t/future
                 (deliver ended (thrown (t/prun! options identity source))))]
      (deliver self task)
      (is (instance? thrown-then (deref ended 10000 :late)))
      (is (< @pulled 1000)))))

(deftest a-caller-whose-scope-is-cancelled-is-told-of-the-cancel
  (doseq [[name form] (merge eager-forms (update-vals lazy-forms #(comp doall %)))]
    (testing name
      (let [inside (promise)]
        (t/with-scope [s]
          (let [running (promise)
                f (fn [_] (deliver running true) (Thread/sleep 10000))]
            (t/fork s @running (t/cancel! s :enough))
            (deliver inside (thrown (form 2 f (range 4))))))
        (is (instance? CancellationException @inside))
        (is (= :thrum/cancelled (t/error-type @inside)))))))
