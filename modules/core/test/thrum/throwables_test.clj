(ns thrum.throwables-test
  "Whatever is thrown, wherever: the same instance comes out, and nothing is left running. And wherever a thread cannot start."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.deadline :as deadline]
   [thrum.jdk :as jdk]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.virtual-clock :as virtual-clock]
   [thrum.wait :as wait]))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private throwables
  {"Exception" #(Exception. "e")
   "ex-info" #(ex-info "e" {})
   "Error" #(Error. "e")
   "StackOverflowError" #(StackOverflowError.)
   "InterruptedException, without an interrupt" #(InterruptedException.)})

(defn- for-ever []
  (wait/sleep! (deadline/in-ms 1000000)))

(defn- nothing [])

(def ^:private places
  "Functions of a function that throws: it is called in that place, beside others that run for ever where that is possible."
  {"body" #(t/with-scope [s] (t/fork s (for-ever)) (%))
   "body of a timeout" #(t/with-timeout 1000 (%))
   "body of a shield" #(t/shield 1000 (%))
   "fork" #(t/with-scope [s] (t/fork s (for-ever)) (t/fork s (%)) (for-ever))
   "fork, through deref" #(t/with-scope [s] (t/fork s (for-ever)) @(t/fork s (%)))
   "daemon" #(t/with-scope [s] (t/fork s {:daemon? true} (%)) (for-ever))
   "fork that collects" #(t/with-scope [s {:on-error :collect}] (t/fork s (%)) :value)
   "two forks, the same instance" #(t/with-scope [s {:on-error :collect}] (t/fork s (%)) (t/fork s (%)) :value)
   "body and fork, the same instance" #(t/with-scope [s {:on-error :collect}] (deref (t/fork s (try (%) (catch Throwable _)))) (t/fork s (%)) (%))
   "all" #(t/all (for-ever) (%) (for-ever))
   "plet" #(t/plet [_ (for-ever), b (%)] b)
   "race" #(t/race (for-ever) (%))
   "any" #(t/any (%) (%))
   "settle" #(throw (:error (second (t/settle :value (%)))))
   "close function" #(t/with-scope [s] (t/use! s :x (fn [_] (%))) (t/fork s (nothing)) :value)
   "two close functions, the same instance" #(t/with-scope [s] (t/use! s :x (fn [_] (%))) (t/use! s :y (fn [_] (%))) :value)
   "fallback" #(t/with-timeout [1 (%)] (for-ever))
   "wrap" #(t/with-scope [s {:wrap (fn [_] (%))}] (t/fork s (nothing)) (for-ever))
   "what wrap returned" #(t/with-scope [s {:wrap (fn [_] (fn [] (%)))}] (t/fork s (nothing)) (for-ever))
   "wrap of pmapv" #(t/pmapv {:limit 2, :wrap (fn [_] (%))} identity [1 2 3])
   "f of pmapv" #(t/pmapv 2 (fn [i] (if (= 1 i) (%) (for-ever))) (range 5))
   "permit" #(let [limiter (t/limiter 1)] (t/all (t/with-permit limiter (%)) (t/with-permit limiter (for-ever))))})

(defn- run [f]
  (gate/in-time 10000 #(virtual-clock/run 1 f)))

(def ^:private clean {:interrupted false, :alive 0, :planned 0})

(defn- rides-on-itself? [^Throwable t]
  (some #(identical? t %) (.getSuppressed t)))

(deftest the-same-instance-comes-out
  (doseq [[what make] throwables, [where call] places]
    (testing (str what " in " where)
      (let [^Throwable t (make)
            result (run (fn [] (call #(throw t))))]
        (is (identical? t (:thrown result)) (pr-str result))
        (is (not (rides-on-itself? t)))
        (is (= clean (select-keys result (keys clean))))))))

;; Threads that do not start

(def ^:private forms
  "Forms with several threads, each with a value."
  {"forks" #(t/with-scope [s] (let [a (t/fork s 1), b (t/fork s 2), c (t/fork s 3)] (+ @a @b @c)))
   "forks that run" #(t/with-scope [s] (t/fork s {:daemon? true} (for-ever)) (t/fork s {:daemon? true} (for-ever)) @(t/fork s 3))
   "forks that collect" #(t/with-scope [s {:on-error :collect}] (t/fork s 1) (t/fork s 2) 3)
   "forks of forks" #(t/with-scope [s] @(t/fork s @(t/fork s @(t/fork s 3))))
   "used" #(t/with-scope [s] (t/use! s 1 identity) (t/fork s 1) (t/fork s 2) 3)
   "timeout" #(t/with-timeout 100 (t/all 1 2 3))
   "timeout with fallback" #(t/with-timeout [100 :late] (t/all 1 2 3))
   "shield" #(t/shield 100 (t/all 1 2 3))
   "all" #(t/all 1 2 3)
   "plet" #(t/plet [a 1, b 2] (+ a b))
   "race" #(t/race (for-ever) (for-ever) (wait/sleep! (deadline/in-ms 3)))
   "any" #(t/any (for-ever) (for-ever) (wait/sleep! (deadline/in-ms 3)))
   "settle" #(t/settle 1 2 3)
   "pmapv" #(t/pmapv 2 inc [1 2 3 4])
   "pmap" #(doall (t/pmap 2 inc [1 2 3 4]))
   "upmap" #(doall (t/upmap 2 inc [1 2 3 4]))
   "pvalues" #(doall (t/pvalues 1 2 3))
   "nested" #(t/with-scope [s] (t/fork s (t/all 1 2)) (t/all 3 4))})

(defn- failing-at
  "Returns thrum.jdk/virtual-thread, but its k-th call throws t; started counts them."
  [start started k t]
  (fn [name body]
    (when (= k (swap! started inc)) (throw t))
    (start name body)))

(defn- failed-start
  "Runs the form with a k-th thread that cannot start. Returns its result with the :failure, or nil where there are fewer threads."
  [form k]
  (let [started (atom 0), failure (OutOfMemoryError. "no thread")
        result (run #(with-redefs [jdk/virtual-thread (failing-at jdk/virtual-thread started k failure)] (form)))]
    (when (<= (long k) (long @started))
      (assoc result :failure failure))))

(deftest a-thread-that-cannot-start-leaves-nothing
  (doseq [[where form] forms]
    (let [results (take-while some? (map #(failed-start form %) (iterate inc 1)))]
      (is (seq results) where)
      (doseq [[k {:keys [failure thrown] :as result}] (map-indexed vector results)]
        (testing (str where ", thread " (inc (long k)))
          (is (identical? failure thrown) (pr-str (:value result)))
          (is (= clean (select-keys result (keys clean)))))))))

(deftest the-matrix-sees-another-instance
  (testing "control: a place that wraps what is thrown"
    (let [t (Exception. "e")]
      (is (not (identical? t (:thrown (run (fn [] @(t/future (throw t)))))))))))
