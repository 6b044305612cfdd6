(ns thrum.adaptive-test
  "Limiters whose number of permits follows a function."
  (:require
   [clojure.datafy :refer [datafy]]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.wait :as wait]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]]
   [thrum.virtual-clock :as virtual-clock])
  (:import
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- following
  "Returns [limiter uses]: a limiter whose limit is what the atom holds, and an atom of the uses."
  [limit options]
  (let [uses (atom [])]
    [(t/limiter @limit
                (assoc options
                       :adaptive
                       (fn [use] (swap! uses conj use) @limit))) uses]))

(defn- counts [limiter]
  (select-keys (datafy limiter) [:permits :in-use :waiting]))

(deftest it-is-a-limiter
  (is (every? spi/limiter? [(t/limiter {:adaptive (constantly 1)}) (t/limiter 1)]))
  (is (not (spi/limiter? (t/rate-limiter 1)))))

(deftest each-use-is-shown
  (let [{:keys [value]}
        (virtual-clock/run 1
          #(let [[limiter uses] (following (atom 3) {})]
             (t/with-permit limiter
               (t/with-permit limiter (wait/sleep! (deadline/in-ms 5)))
               (wait/sleep! (deadline/in-ms 2)))
             @uses))]
    (is (= [{:latency-ns 5000000, :in-flight 2, :dropped? false}
            {:latency-ns 7000000, :in-flight 1, :dropped? false}]
           value))))

(deftest a-function-that-is-too-slow-keeps-no-caller-and-not-all-uses
  (let [gate (promise), asked (promise), calls (AtomicLong.)
        slow (fn [_]
               (.incrementAndGet calls)
               (deliver asked true)
               (deref gate 10000 nil)
               20)
        limiter (t/limiter 20 {:adaptive slow})
        use! #(t/with-permit limiter nil)
        [_ first-caller] (gate/start "first" use!)]
    (deref asked 5000 nil)
    (dotimes [_ 5000] (use!))
    (deliver gate :go)
    (is (contains? (deref first-caller 5000 {}) :value))
    (is (= 100 (.get calls)) "the others are left to the next callers")
    (dotimes [_ 20] (use!))
    (is (= (+ 1 1000 20) (.get calls)) "of those that waited, the first 1000")))

(deftest what-is-dropped-is-stated-and-other-failures-are-not-shown
  (let [[limiter uses] (following (atom 3) {})
        dropped (fn [f]
                  (reset! uses [])
                  (thrown (t/with-permit limiter (f)))
                  (mapv :dropped? @uses))]
    (is (= [true] (dropped #(t/with-timeout 1 (Thread/sleep 5000)))))
    (is (= [true] (dropped #(t/acquire! (doto (t/limiter 1 {:queue 0}) t/acquire!)))))
    (is (= [true] (dropped #(deref (t/future (t/acquire! (doto (t/limiter 1 {:queue 0})
                                                           t/acquire!)))))))
    (is (= [true] (dropped #(throw (InterruptedException.)))))
    (is (= [] (dropped #(throw (ex-info "no" {})))))
    (is (= [false] (dropped #(do 1))))
    (testing "a permit that is returned by hand was used well"
      (reset! uses [])
      (t/release! (t/acquire! limiter))
      (with-open [_ ^java.lang.AutoCloseable (t/try-acquire! limiter)])
      (is (= [false false] (mapv :dropped? @uses))))
    (is (= {:permits 3, :in-use 0, :waiting 0} (counts limiter)))))

(deftest the-permit-is-back-before-the-function-is-called
  (let [limiter (promise)
        in-use (atom [])
        _ (deliver limiter (t/limiter {:adaptive (fn [_]
                                                   (swap! in-use conj (:in-use (counts @limiter)))
                                                   20)}))]
    (t/with-permit @limiter nil)
    (t/release! (t/acquire! @limiter))
    (is (= [0 0] @in-use))))

(deftest a-limit-that-rises-lets-waiters-in
  (let [limit (atom 1)
        [limiter] (following limit {})
        held (t/acquire! limiter)
        waiters (mapv (fn [i]
                        (let [waiter (gate/start "waiter" #(t/acquire! limiter))]
                          (is (gate/eventually 5000 #(= (inc i) (:waiting (datafy limiter)))))
                          waiter))
                      (range 4))]
    (reset! limit 3)
    (t/release! held)
    (let [permits (mapv #(:value (deref (second %) 5000 nil)) (take 3 waiters))]
      (is (every? some? permits))
      (is (= {:permits 3, :in-use 3, :waiting 1} (counts limiter)))
      (run! t/release! permits)
      (t/release! (:value (deref (second (peek waiters)) 5000 nil))))
    (is (= {:permits 3, :in-use 0, :waiting 0} (counts limiter)))))

(deftest a-limit-that-falls-takes-nothing-back
  (let [limit (atom 3)
        [limiter] (following limit {:queue 0})
        [a b c] (repeatedly 3 #(t/acquire! limiter))]
    (reset! limit 1)
    (t/release! a)
    (is (= {:permits 1, :in-use 2, :waiting 0} (counts limiter)))
    (is (nil? (t/try-acquire! limiter)))
    (is (= :thrum/rejected (t/error-type (thrown (t/acquire! limiter)))))
    (t/release! b)
    (is (nil? (t/try-acquire! limiter)))
    (t/release! c)
    (t/release! (t/try-acquire! limiter))))

(deftest a-function-that-fails-leaves-the-limit-as-it-is
  (doseq [f [(fn [_] (throw (ex-info "no" {}))) (constantly 0) (constantly nil) (constantly 1.5)]]
    (let [seen (promise)
          limiter (t/limiter 2 {:adaptive f})
          thread (doto (Thread. #(t/with-permit limiter :done))
                   (.setUncaughtExceptionHandler
                     (reify Thread$UncaughtExceptionHandler
                       (uncaughtException [_ _ t] (deliver seen t))))
                   .start)]
      (is (instance? Throwable (deref seen 5000 nil)))
      (.join ^Thread thread 5000)
      (is (= {:permits 2, :in-use 0, :waiting 0} (counts limiter))))))

(deftest a-limit-begins-at-20-or-where-it-is-told-to
  (is (= 20 (:permits (datafy (t/limiter {:adaptive :x})))))
  (is (= 7 (:permits (datafy (t/limiter 7 {:adaptive :x})))))
  (doseq [make [#(t/limiter {}) #(t/limiter {:queue 1}) #(t/limiter 0 {:adaptive :x})
                #(t/limiter {:adaptive 1}) #(t/limiter nil)
                #(t/limiter (sorted-map 1 2)) #(t/acquire! (t/limiter {:adaptive :x}) 2)]]
    (is (= :thrum/invalid (t/error-type (thrown (make))))))
  (testing "and what was given is named"
    (is (= {:queue 1} (:value (ex-data (thrown (t/limiter {:queue 1})))))))
  (testing "and a wrong option is named"
    (is (= :adaptve (:option (ex-data (thrown (t/limiter {:adaptve :x}))))))))

(deftest a-permit-is-returned-once
  (let [[limiter uses] (following (atom 2) {})
        permit (t/acquire! limiter)]
    (t/release! permit)
    (is (= :thrum/invalid (t/error-type (thrown (t/release! permit)))))
    (is (= 1 (count @uses)))))

(deftest a-thread-with-all-permits-does-not-wait-for-ever
  (let [[limiter] (following (atom 1) {})]
    (is (= :thrum/deadlock
           (t/error-type (thrown (t/with-permit limiter (t/with-permit limiter 1))))))))

(deftest who-waits-for-more-than-a-limit-that-fell-is-refused
  (let [limit (atom 3)
        [limiter] (following limit {})
        [a b] (repeatedly 2 #(t/acquire! limiter))
        waiting? (fn [n] (gate/eventually 5000 #(= n (:waiting (datafy limiter)))))
        inside (promise), go-on (promise)
        nested (second (gate/start "nested" #(t/with-permit limiter
                                               (deliver inside true)
                                               @go-on
                                               (t/with-permit limiter :never))))
        _ (is (deref inside 5000 nil))
        first-waiter (second (gate/start "first" #(t/acquire! limiter)))]
    (is (waiting? 1))
    (deliver go-on true)
    (is (waiting? 2))
    (let [last-waiter (second (gate/start "last" #(t/acquire! limiter)))]
      (is (waiting? 3))
      (reset! limit 1)
      (run! t/release! [a b])
      (t/release! (:value (deref first-waiter 5000 nil)))
      (is (= :thrum/deadlock (t/error-type (:thrown (deref nested 5000 nil)))))
      (t/release! (:value (deref last-waiter 5000 nil))))
    (is (= {:permits 1, :in-use 0, :waiting 0} (counts limiter)))))

(deftest a-function-that-uses-up-an-interrupt-does-not-lose-it
  (let [limiter (t/limiter 2 {:adaptive (fn [_] (Thread/sleep 1) 2)})]
    (is (= [true false]
           (gate/in-time 5000
             (fn []
               (.setUncaughtExceptionHandler (Thread/currentThread)
                 (reify Thread$UncaughtExceptionHandler (uncaughtException [_ _ _])))
               (t/with-permit limiter (.interrupt (Thread/currentThread)))
               [(Thread/interrupted) (Thread/interrupted)]))))))

(deftest a-deadline-that-interrupts-the-function-leaves-no-interrupt
  (let [limiter (t/limiter 2 {:adaptive (fn [_] (Thread/sleep 60000) 2)})]
    (is (= [:value false]
           (gate/in-time 5000
             (fn []
               (.setUncaughtExceptionHandler (Thread/currentThread)
                 (reify Thread$UncaughtExceptionHandler (uncaughtException [_ _ _])))
               [(t/with-timeout 10 (t/with-permit limiter :value)) (Thread/interrupted)]))))))

(deftest a-full-stack-does-not-end-the-adapting
  (let [uses (atom 0)
        f (fn [_] (if (= 1 (swap! uses inc)) (throw (StackOverflowError.)) 2))
        limiter (t/limiter 2 {:adaptive f})]
    (with-redefs [jdk/uncaught! (fn [_] (throw (StackOverflowError.)))]
      (is (instance? StackOverflowError (thrown (t/release! (t/acquire! limiter))))))
    (dotimes [_ 3] (t/with-permit limiter :used))
    (is (= 4 @uses))))

(deftest a-full-stack-loses-no-permit
  (let [limiter (t/limiter 2 {:adaptive (constantly 2)})]
    (with-redefs [deadline/now (fn ^long [] (throw (StackOverflowError.)))]
      (doseq [ask [#(t/with-permit limiter 1) #(t/acquire! limiter) #(t/try-acquire! limiter)]]
        (is (instance? StackOverflowError (thrown (ask))))))
    (is (= {:permits 2, :in-use 0, :waiting 0} (counts limiter)))))

(deftest under-a-crowd-no-permit-is-lost-and-f-is-called-by-one-thread-at-a-time
  (let [inside (AtomicLong.), overlaps (AtomicLong.), uses (AtomicLong.), had (AtomicLong.)
        f (fn [_]
            (when (< 1 (.incrementAndGet inside)) (.incrementAndGet overlaps))
            (.decrementAndGet inside)
            (inc (mod (.incrementAndGet uses) 7)))
        limiter (t/limiter 3 {:adaptive f})]
    (gate/in-time 20000
      (fn []
        (t/pmapv 16
                 (fn [i]
                   (if (zero? (long (mod i 5)))
                     (when-some [permit (t/try-acquire! limiter)]
                       (.incrementAndGet had)
                       (t/release! permit))
                     (t/with-permit limiter (Thread/yield))))
                 ;; No more than may wait for f, should its thread be held up.
                 (range 1000))))
    ;; No caller may have come since for what a caller has left to the next: a hundred to each.
    (dotimes [_ 10] (t/with-permit limiter nil))
    (is (= 0 (.get overlaps)))
    (is (= (+ 800 (.get had) 10) (.get uses)))
    (is (= {:in-use 0, :waiting 0} (dissoc (counts limiter) :permits)))))
