(ns thrum.impl.turn-test
  "Who gets a turn where there is one carrier."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.core :as t]
   [thrum.impl.turn :as turn]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.jvm :as jvm])
  (:import
   (java.time Duration)
   (java.util.concurrent CountDownLatch Executor)
   (java.util.concurrent.atomic AtomicLong AtomicReference)))

(set! *warn-on-reflection* true)

(def ^:private parallelism "-Djdk.virtualThreadScheduler.parallelism=1")
(def ^:private pool-size "-Djdk.virtualThreadScheduler.maxPoolSize=1")

(deftest ^{:time-limit-ms 600000} threads-that-each-start-another-leave-the-others-their-turn
  (doseq [[way one-carrier] [["give-way" pool-size]
                             ["future" parallelism]
                             ["thread" parallelism]
                             ["fork" parallelism]
                             ["pmapv" parallelism]
                             ;; On JDK 21 the lock's waiter keeps the carrier.
                             ["lock" parallelism]]]
    (let [command (jvm/command (jvm/this-home) ["-Xmx1g" one-carrier] 'thrum.one-carrier [way])
          {:keys [lines]} (jvm/quietly command 110000 jvm/quick)]
      (is (= "other" (jvm/last-line lines)) [way lines]))))

(deftest a-thread-gives-way-once-as-it-begins-and-its-starter-does-not
  (doseq [start [#(deref (t/future (Thread/currentThread)))
                 #(let [seen (promise)]
                    (t/thread (deliver seen (Thread/currentThread)))
                    (deref seen 20000 :late))
                 #(t/with-scope [s] @(t/fork s (Thread/currentThread)))
                 #(first (t/pmapv 2 (fn [_] (Thread/currentThread)) [1]))]]
    (let [trail (atom [])]
      (with-redefs [turn/give-way! #(swap! trail conj (Thread/currentThread))]
        (is (= [(start)] @trail))))))

(deftest a-task-on-a-thread-of-the-user's-gives-no-way
  (let [trail (atom []), direct (reify Executor (execute [_ f] (.run f)))]
    (with-redefs [turn/give-way! #(swap! trail conj (Thread/currentThread))]
      (is (= :ran @(t/future-via [direct] :ran))))
    (is (= [] @trail))))

(defn- ago ^long [^long ms]
  (- (System/nanoTime) (* ms 1000000)))

(defmacro ^:private with-carrier
  "Runs body as with one carrier, in a world of its own: away holds this latch (nil: no scout is
  away) and a scout last left or returned so many ms ago."
  [[away latch turned ms] & body]
  `(let [~away (AtomicReference. ~latch), ~turned (AtomicLong. (ago ~ms))]
     (with-redefs [turn/one-carrier? true, turn/away ~away, turn/turned-ns ~turned]
       ~@body)))

(defn- gave-way
  "Returns whether a thread that start-thread starts was still interrupted behind its call, having
  interrupted itself before or not."
  [start-thread interrupt?]
  (let [seen (promise)]
    (start-thread #(do
                     (when interrupt? (.interrupt (Thread/currentThread)))
                     (try (turn/give-way!) (catch StackOverflowError _))
                     (deliver seen (Thread/interrupted))))
    (deref seen 20000 :never)))

(defn- virtually ^Thread [^Runnable f] (Thread/startVirtualThread f))

(deftest a-scout-comes-back
  (doseq [interrupt? [false true]]
    (with-carrier [away nil turned 1000]
      (let [before (.get turned)]
        (is (= interrupt? (gave-way virtually interrupt?)))
        (is (nil? (.get away)))
        (is (< before (.get turned)))))))

(deftest a-platform-thread-is-no-scout
  (with-carrier [_away nil turned 1000]
    (let [before (.get turned)]
      (is (false? (gave-way #(.start (Thread/ofPlatform) ^Runnable %) false)))
      (is (= before (.get turned))))))

(deftest a-scout-that-has-no-stack-left-is-not-awaited
  (with-carrier [away nil _turned 1000]
    (let [latch (promise)]
      (with-redefs [turn/stand-behind! #(do (deliver latch (.get away))
                                            (throw (StackOverflowError.)))]
        (is (false? (gave-way virtually false))))
      (is (nil? (.get away)))
      (is (zero? (.getCount ^CountDownLatch @latch))))))

(deftest a-scout-leaves-only-some-time-after-the-return-of-another
  (let [times (AtomicLong.)]
    (with-redefs [turn/pause-ns 60000000000, turn/longest-ns Long/MAX_VALUE
                  turn/stand-behind! #(.incrementAndGet times)]
      (with-carrier [_away nil _turned 120000]
        (.join (virtually #(dotimes [_ 3] (turn/give-way!))))
        (is (= 1 (.get times)))))))

(defn- waits? [^Thread thread]
  (= Thread$State/WAITING (.getState thread)))

(deftest all-that-come-while-a-scout-is-away-wait-for-it
  (let [back (promise)]
    (with-redefs [turn/stand-behind! #(deref back 20000 nil), turn/longest-ns Long/MAX_VALUE]
      (with-carrier [away nil _turned 1000]
        (let [scout (virtually turn/give-way!)]
          (is (gate/eventually 20000 #(.get away)))
          (let [others (into [] (repeatedly 3 #(virtually turn/give-way!)))]
            (is (gate/eventually 20000 #(every? waits? others)))
            (deliver back true)
            (doseq [^Thread thread (cons scout others)]
              (is (.join thread (Duration/ofSeconds 20)))))
          (is (nil? (.get away))))))))

(deftest an-interrupt-ends-the-wait-for-a-scout-and-is-not-lost
  (let [latch (CountDownLatch. 1)]
    (with-redefs [turn/longest-ns Long/MAX_VALUE]
      (with-carrier [away latch _turned 0]
        (is (true? (gave-way virtually true)) "before the wait")
        (is (true? (gave-way (fn [f]
                               (let [thread (virtually f)]
                                 (is (gate/eventually 20000 #(waits? thread)))
                                 (.interrupt thread)))
                             false))
            "in it")
        (is (identical? latch (.get away)))
        (is (= 1 (.getCount latch)))))))

(deftest a-thread-that-comes-late-ends-the-wait-of-all
  (let [latch (CountDownLatch. 1)]
    (with-carrier [away latch _turned 1000]
      (is (false? (gave-way virtually false)))
      (is (nil? (.get away)))
      (is (zero? (.getCount latch))))))

(deftest a-scout-that-comes-back-late-ends-no-wait-for-another
  (let [other (CountDownLatch. 1)]
    (with-carrier [away nil _turned 1000]
      (with-redefs [turn/stand-behind! #(.set away other)]
        (is (false? (gave-way virtually false))))
      (is (identical? other (.get away)))
      (is (= 1 (.getCount other))))))
