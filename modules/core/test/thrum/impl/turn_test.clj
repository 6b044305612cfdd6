(ns thrum.impl.turn-test
  "Who gets a turn where there is one carrier."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.core :as t]
   [thrum.impl.inspect :as inspect]
   [thrum.impl.turn :as turn]
   [thrum.test-kit.jvm :as jvm])
  (:import
   (java.util.concurrent.atomic AtomicBoolean AtomicLong)))

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

(defn- way-given
  "Returns [scouted? interrupted?] where a thread that start-thread starts has given way with one
  carrier, interrupted by itself or not: whether it was the scout and is back, and still
  interrupted."
  [start-thread interrupt?]
  (let [before (- (System/nanoTime) 1000000000)
        turned (AtomicLong. before), scouting (AtomicBoolean.), seen (promise)]
    (with-redefs [turn/one-carrier? true, turn/scouting scouting, turn/turned-ns turned]
      (start-thread #(do
                       (when interrupt? (.interrupt (Thread/currentThread)))
                       (try (turn/give-way!) (catch StackOverflowError _))
                       (deliver seen [(and (< before (.get turned)) (not (.get scouting)))
                                      (Thread/interrupted)])))
      (deref seen 20000 :never))))

(defn- on-platform-thread [^Runnable f]
  (.start (Thread/ofPlatform) f))

(deftest a-scout-comes-back
  (is (= [true false] (way-given #(Thread/startVirtualThread %) false))))

(deftest an-interrupt-does-not-hold-a-scout-and-is-not-lost
  (is (= [true true] (way-given #(Thread/startVirtualThread %) true))))

(deftest a-platform-thread-is-no-scout
  (is (= [false false] (way-given on-platform-thread false))))

(deftest a-scout-that-has-no-stack-left-is-not-awaited
  (with-redefs [turn/stand-behind! #(throw (StackOverflowError.))]
    (is (= [true false] (way-given #(Thread/startVirtualThread %) false)))))

(deftest a-scout-that-is-lost-is-not-awaited-for-ever
  (let [stale (- (System/nanoTime) 11000000000)
        turned (AtomicLong. stale), scouting (AtomicBoolean. true), given (promise)]
    (with-redefs [turn/one-carrier? true, turn/scouting scouting, turn/turned-ns turned]
      (Thread/startVirtualThread #(do (turn/give-way!) (deliver given true)))
      (is (deref given 20000 false))
      (is (not (.get scouting))))))

(defn- stood-behind
  "Returns how many of n calls on a virtual thread stand behind the others; none of them awaits a
  lost scout."
  [n ^AtomicBoolean scouting ^AtomicLong turned]
  (let [turned-before (.get turned), times (AtomicLong.)]
    (with-redefs [turn/one-carrier? true, turn/scouting scouting, turn/turned-ns turned
                  turn/pause-ns 60000000000, turn/longest-ns Long/MAX_VALUE
                  turn/stand-behind! #(do
                                        (.set turned turned-before)
                                        (.incrementAndGet times))]
      (.join (Thread/startVirtualThread #(dotimes [_ n] (turn/give-way!)))))
    (.get times)))

(defn- minutes-ago ^long [^long n]
  (- (System/nanoTime) (* n 60000000000)))

(deftest a-scout-leaves-only-some-time-after-the-return-of-another
  (let [turned (AtomicLong. (minutes-ago 2))]
    (is (= 1 (stood-behind 3 (AtomicBoolean.) turned)))
    (is (= 0 (stood-behind 3 (AtomicBoolean.) turned)))))

(deftest all-stand-behind-while-a-scout-is-away
  (doseq [minutes [0 2] :let [scouting (AtomicBoolean. true)]]
    (is (= 3 (stood-behind 3 scouting (AtomicLong. (minutes-ago minutes)))))
    (is (.get scouting) "the scout is still away")))

(deftest a-start-gives-no-way-where-a-monitor-pins
  (doseq [pins? [true false]]
    (let [trail (atom [])]
      (with-redefs [turn/one-carrier? true, turn/pins? pins?
                    turn/give-way! #(swap! trail conj :gave-way)]
        (turn/give-way-to-start!))
      (is (= (if pins? [] [:gave-way]) @trail)))))

(deftest a-task-shows-its-name-and-its-thread-while-its-starter-gives-way
  (let [starter (Thread/currentThread), titles (atom nil)]
    (t/with-scope [s]
      (with-redefs [turn/give-way-to-start!
                    #(when (identical? starter (Thread/currentThread))
                       (reset! titles (mapv inspect/title (:children (inspect/facts s)))))]
        (t/fork s nil)))
    (is (= 1 (count @titles)))
    (is (every? string? (map :name @titles)))
    (is (every? #(instance? Thread %) (map :thread @titles)))))
