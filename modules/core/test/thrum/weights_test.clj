(ns thrum.weights-test
  "Several permits of a limiter as one, and permits without a wait."
  (:require
   [clojure.datafy :refer [datafy]]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- at-rest? [limiter]
  (= {:in-use 0, :waiting 0} (select-keys (datafy limiter) [:in-use :waiting])))

(defn- waiter
  "Starts a thread that asks for so many permits; returns [thread outcome] when it waits as the
  n-th."
  [limiter permits n]
  (let [started (gate/start "waiter" #(t/acquire! limiter permits))]
    (is (gate/eventually 5000 #(= n (:waiting (datafy limiter)))))
    started))

(defn- permit-of [[_ outcome]]
  (:value (deref outcome 5000 {:value :late})))

(deftest a-weight-counts
  (let [limiter (t/limiter 5)]
    (t/with-permit [limiter 3]
      (is (= 3 (:in-use (datafy limiter))))
      (t/with-permit limiter
        (is (= 4 (:in-use (datafy limiter))))
        (is (nil? (t/try-acquire! limiter 2)))
        (t/release! (t/try-acquire! limiter))))
    (is (at-rest? limiter))))

(deftest no-weight-is-too-large-for-a-limiter-that-has-as-many
  (let [most Long/MAX_VALUE, limiter (t/limiter most {:wait-ms 0})]
    (t/with-permit [limiter 5]
      (is (nil? (t/try-acquire! limiter most)))
      (is (= :thrum/deadlock (t/error-type (thrown (t/acquire! limiter most))))))
    (let [permit (t/acquire! limiter most)]
      (is (= :thrum/rejected (t/error-type (thrown (t/acquire! limiter)))))
      (t/release! permit))
    (is (at-rest? limiter))))

(deftest a-small-one-does-not-overtake-a-large-one
  (let [limiter (t/limiter 3)
        held (t/acquire! limiter 2)
        large (waiter limiter 3 1)
        small (waiter limiter 1 2)]
    (is (nil? (t/try-acquire! limiter)) "one is free, and others wait")
    (t/release! held)
    (let [permit (permit-of large)]
      (is (= {:in-use 3, :waiting 1} (select-keys (datafy limiter) [:in-use :waiting])))
      (t/release! permit)
      (t/release! (permit-of small)))
    (is (at-rest? limiter))))

(deftest one-return-lets-several-in
  (let [limiter (t/limiter 3)
        held (t/acquire! limiter 3)
        waiters (mapv #(waiter limiter 1 (inc %)) (range 4))]
    (t/release! held)
    (run! #(t/release! (permit-of %)) (take 3 waiters))
    (t/release! (permit-of (last waiters)))
    (is (at-rest? limiter))))

(deftest a-large-one-that-gives-up-lets-the-small-ones-in
  (let [limiter (t/limiter 3)
        held (t/acquire! limiter 1)
        [^Thread thread :as large] (waiter limiter 3 1)
        small (mapv #(waiter limiter 1 (+ 2 %)) (range 2))]
    (.interrupt thread)
    (is (instance? InterruptedException (:thrown (deref (second large) 5000 nil))))
    (run! #(t/release! (permit-of %)) small)
    (t/release! held)
    (is (at-rest? limiter))))

(deftest more-than-the-others-can-return-is-a-deadlock
  (let [limiter (t/limiter 5)]
    (t/with-permit [limiter 3]
      (is (= :thrum/deadlock (t/error-type (thrown (t/acquire! limiter 3)))))
      (t/release! (t/acquire! limiter 2)))
    (is (at-rest? limiter)))
  (doseq [n [0 -1 6 1.5 nil]]
    (is (= :thrum/invalid (t/error-type (thrown (t/acquire! (t/limiter 5) n)))))
    (is (= :thrum/invalid (t/error-type (thrown (t/try-acquire! (t/limiter 5) n)))))))

(deftest never-more-than-there-are-and-none-is-lost
  (let [limiter (t/limiter 4), inside (AtomicLong.), most (atom 0)]
    (gate/in-time
      20000
      (fn []
        (t/with-scope [s]
          (dotimes [i 8]
            (t/fork s
                    (dotimes [j 500]
                      (let [n (inc (mod (+ i j) 4))]
                        (if (zero? (mod j 7))
                          (when-some [permit (t/try-acquire! limiter n)] (t/release! permit))
                          (t/with-permit [limiter n]
                            (swap! most max (.addAndGet inside n))
                            (.addAndGet inside (- n)))))))))))
    (is (<= 1 @most 4))
    (is (at-rest? limiter))))
