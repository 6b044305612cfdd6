(ns thrum.impl.turn-test
  "Who gets a turn where there is one carrier."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.core :as t]
   [thrum.impl.context :as context]
   [thrum.impl.task :as task]
   [thrum.impl.turn :as turn]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.jvm :as jvm])
  (:import
   (java.time Duration)
   (java.util.concurrent ConcurrentLinkedQueue Executor)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (java.util.concurrent.locks LockSupport)
   (thrum.impl.task Task)))

(set! *warn-on-reflection* true)

(def ^:private parallelism "-Djdk.virtualThreadScheduler.parallelism=1")
(def ^:private pool-size "-Djdk.virtualThreadScheduler.maxPoolSize=1")

(deftest ^{:time-limit-ms 600000} threads-that-each-start-another-leave-the-others-their-turn
  (doseq [[way one-carrier] [["give-way" pool-size]
                             ["future" parallelism]
                             ["thread" parallelism]
                             ["unpark" parallelism]
                             ["fork" parallelism]
                             ["pmapv" parallelism]
                             ["many" parallelism]
                             ;; On JDK 21 the lock's waiter keeps the carrier.
                             ["lock" parallelism]]]
    (let [command (jvm/command (jvm/this-home) ["-Xmx1g" one-carrier] 'thrum.one-carrier [way])
          {:keys [lines]} (jvm/quietly command 110000 jvm/quick)]
      (is (= "other" (jvm/last-line lines)) [way lines]))))

(deftest a-thread-gives-way-once-as-it-begins-and-its-starter-does-not
  (doseq [start [(fn [f] (deref (t/future (f))))
                 (fn [f] (let [seen (promise)]
                           (t/thread (deliver seen (f)))
                           (deref seen 20000 :late)))
                 (fn [f] (t/with-scope [s] @(t/fork s (f))))
                 (fn [f] (first (t/pmapv 2 (fn [_] (f)) [1])))]]
    (let [trail (atom [])]
      (with-redefs [turn/give-way-first! #(swap! trail conj (Thread/currentThread))]
        (let [thread (start #(do (swap! trail conj :work) (Thread/currentThread)))]
          (is (= [thread :work] @trail)))))))

(deftest a-thread-of-the-user's-gives-no-way
  (let [trail (atom [])
        direct (reify Executor (execute [_ f] (.run f)))
        ^Task of-another (task/task (context/capture nil nil) nil 0 (constantly :ran))]
    (with-redefs [turn/give-way-first! #(swap! trail conj (Thread/currentThread))]
      (is (= :ran @(t/future-via [direct] :ran)))
      (.setThread of-another (Thread.))
      (.join (.start (Thread/ofPlatform) of-another))
      (is (= :ran @of-another)))
    (is (= [] @trail))))

(deftest a-task-that-is-cancelled-before-its-turn-does-no-work
  (let [waiting (promise), worked (atom false)]
    (with-redefs [turn/give-way-first! #(do
                                          (deliver waiting (Thread/currentThread))
                                          (try @(promise) (catch InterruptedException _)))]
      (let [task (t/future (reset! worked true))]
        (is (instance? Thread (deref waiting 20000 nil)))
        (is (future-cancel task))
        (is (.join ^Thread @waiting (Duration/ofSeconds 20)))
        (is (false? @worked))))))

(defn- ago ^long [^long ms]
  (- (System/nanoTime) (* ms 1000000)))

(defmacro ^:private with-carrier
  "Runs body as with one carrier, in a world of its own: away holds this queue of waiters (nil: no
  scout is away) and a scout last left or returned so many ms ago."
  [[away waiters turned ms] & body]
  `(let [~away (AtomicReference. ~waiters), ~turned (AtomicLong. (ago ~ms))]
     (with-redefs [turn/one-carrier? true, turn/away ~away, turn/turned-ns ~turned
                   turn/left-id (AtomicLong.), turn/longest-first-ns Long/MAX_VALUE]
       ~@body)))

(defn- gave-way
  "Returns whether a thread that start-thread starts was still interrupted behind its call, having
  interrupted itself before or not."
  [start-thread interrupt?]
  (let [seen (promise)]
    (start-thread #(do
                     (when interrupt? (.interrupt (Thread/currentThread)))
                     (turn/give-way!)
                     (deliver seen (Thread/interrupted))))
    (deref seen 20000 :never)))

(defn- virtually ^Thread [^Runnable f] (Thread/startVirtualThread f))

(defn- all-wait? [threads]
  (gate/eventually 20000 (fn [] (every? #(= Thread$State/WAITING (.getState ^Thread %)) threads))))

(defn- waits? [thread]
  (all-wait? [thread]))

(deftest a-scout-comes-back
  (with-carrier [away nil turned 1000]
    (let [start (System/nanoTime), left (atom nil)]
      (with-redefs [turn/stand-behind! (let [stand-behind! @#'turn/stand-behind!]
                                         #(do
                                            (reset! left (.get turned))
                                            (stand-behind!)))]
        (is (false? (gave-way virtually false))))
      (is (nil? (.get away)))
      (is (<= start @left (.get turned))))))

(deftest an-interrupted-thread-is-no-scout
  (with-carrier [_away nil turned 1000]
    (let [before (.get turned)]
      (is (true? (gave-way virtually true)))
      (is (= before (.get turned))))))

(deftest a-thread-without-stack-for-its-way-back-is-no-scout
  (let [deep (fn deep [n]
               (turn/give-way!)
               (+ 1 (long (deep (inc (long n))))))]
    (with-redefs [turn/pause-ns -1, turn/longest-ns Long/MAX_VALUE, turn/stand-behind! (fn [])]
      (dotimes [_ 60]
        (with-carrier [away nil _turned 0]
          (let [thread (virtually #(try (deep 0) (catch StackOverflowError _)))]
            (is (.join thread (Duration/ofSeconds 20)))
            (is (nil? (.get away)))))))))

(deftest only-a-virtual-thread-gives-way-and-only-on-one-carrier
  (doseq [[one-carrier? start-thread] [[true #(.start (Thread/ofPlatform) ^Runnable %)]
                                       [false virtually]]]
    (with-carrier [_away nil turned 1000]
      (with-redefs [turn/one-carrier? one-carrier?]
        (let [before (.get turned)]
          (is (false? (gave-way start-thread false)))
          (is (= before (.get turned))))))))

(deftest what-fails-while-a-thread-gives-way-fails-no-work
  (doseq [failure [(StackOverflowError.) (OutOfMemoryError. "for the test")]]
    (with-carrier [away nil _turned 1000]
      (let [waiter (promise)]
        (with-redefs [turn/longest-ns Long/MAX_VALUE
                      turn/stand-behind! #(do
                                            (deliver waiter (virtually turn/give-way!))
                                            (is (waits? @waiter))
                                            (throw failure))]
          (is (= :ran (t/with-scope [s] @(t/fork s :ran)))))
        (is (nil? (.get away)))
        (is (.join ^Thread @waiter (Duration/ofSeconds 20)))))))

(deftest a-scout-leaves-only-some-time-after-the-return-of-another
  (let [times (AtomicLong.)]
    (with-redefs [turn/pause-ns 60000000000, turn/longest-ns Long/MAX_VALUE
                  turn/stand-behind! #(.incrementAndGet times)]
      (with-carrier [_away nil _turned 120000]
        (.join (virtually #(dotimes [_ 3] (turn/give-way!))))
        (is (= 1 (.get times)))))))

(deftest there-is-one-scout
  (let [other (ConcurrentLinkedQueue.), times (AtomicLong.)]
    (with-redefs [turn/stand-behind! #(.incrementAndGet times)]
      (with-carrier [away other _turned 1000]
        (#'turn/scout! (System/nanoTime))
        (is (identical? other (.get away)))
        (is (zero? (.get times)))))))

(deftest all-that-come-while-a-scout-is-away-wait-for-it
  (let [back (promise)]
    (with-redefs [turn/stand-behind! #(deref back 20000 nil), turn/longest-ns Long/MAX_VALUE]
      (with-carrier [away nil _turned 1000]
        (let [scout (virtually turn/give-way!)]
          (is (gate/eventually 20000 #(.get away)))
          (let [others (into [] (repeatedly 3 #(virtually turn/give-way!)))]
            (is (all-wait? others))
            (deliver back true)
            (doseq [^Thread thread (cons scout others)]
              (is (.join thread (Duration/ofSeconds 20)))))
          (is (nil? (.get away))))))))

(deftest an-interrupt-ends-the-wait-for-a-scout-and-is-not-lost
  (let [waiters (ConcurrentLinkedQueue.)]
    (with-redefs [turn/longest-ns Long/MAX_VALUE]
      (with-carrier [away waiters _turned 0]
        (is (true? (gave-way virtually true)) "before the wait")
        (is (true? (gave-way (fn [f]
                               (let [thread (virtually f)]
                                 (is (waits? thread))
                                 (.interrupt thread)))
                             false))
            "in it")
        (is (identical? waiters (.get away)))))))

(deftest ^{:time-limit-ms 60000} many-that-wait-for-a-scout-are-cancelled-in-a-moment
  (with-redefs [turn/longest-ns Long/MAX_VALUE]
    (with-carrier [_away (ConcurrentLinkedQueue.) _turned 0]
      (let [threads (into [] (repeatedly 40000 #(virtually turn/give-way!)))]
        (is (all-wait? threads))
        (let [start (System/nanoTime)]
          (run! #(.interrupt ^Thread %) threads)
          (run! #(.join ^Thread %) threads)
          ;; On a latch of the JDK's it takes 12 s.
          (is (< (- (System/nanoTime) start) 5000000000)))))))

(deftest one-that-comes-late-ends-the-wait-of-all-and-one-that-begins-later-still
  (doseq [[come! longest other-longest]
          [[turn/give-way! #'turn/longest-ns #'turn/longest-first-ns]
           [turn/give-way-first! #'turn/longest-first-ns #'turn/longest-ns]]]
    (with-carrier [away (ConcurrentLinkedQueue.) turned 0]
      (with-redefs-fn {longest Long/MAX_VALUE, other-longest 0}
        (fn []
          (let [waiting (virtually come!)]
            (is (waits? waiting))
            (.set turned (ago 1000))
            (let [other (virtually come!)]
              (is (waits? other) "the bound is its own")
              (with-redefs-fn {longest 10000000}
                #(is (.join (virtually come!) (Duration/ofSeconds 20))))
              (doseq [^Thread thread [waiting other]]
                (is (.join thread (Duration/ofSeconds 20))))
              (is (nil? (.get away))))))))))

(deftest a-task-that-was-made-before-the-scout-left-does-not-wait
  (let [waiters (ConcurrentLinkedQueue.)]
    (with-redefs [turn/longest-ns Long/MAX_VALUE]
      (with-carrier [away waiters _turned 1000]
        (with-redefs [turn/left-id (AtomicLong. Long/MAX_VALUE)]
          (is (= :ran (deref (t/future :ran) 20000 :waits)))
          (is (identical? waiters (.get away)))
          (is (waits? (virtually turn/give-way!)))
          (#'turn/back! waiters))))))

(deftest a-scout-leaves-behind-all-that-were-made
  (with-carrier [_away nil _turned 1000]
    (let [before (.threadId (.unstarted (Thread/ofVirtual) turn/give-way!))]
      (is (false? (gave-way virtually false)))
      (is (< before (.get ^AtomicLong @#'turn/left-id)
             (.threadId (.unstarted (Thread/ofVirtual) turn/give-way!)))))))

(deftest a-thread-that-is-unparked-before-its-turn-does-not-park
  (with-redefs [turn/longest-ns Long/MAX_VALUE]
    (with-carrier [away (ConcurrentLinkedQueue.) _turned 0]
      (let [waiters (.get away), ^Thread thread (t/thread (LockSupport/park))]
        (is (waits? thread))
        (LockSupport/unpark thread)
        (#'turn/back! waiters)
        (is (.join thread (Duration/ofSeconds 20))))))
  (with-redefs [turn/stand-behind! #(do
                                      (LockSupport/unpark (Thread/currentThread))
                                      (LockSupport/park))]
    (with-carrier [_away nil _turned 1000]
      (let [^Thread scout (t/thread (LockSupport/park))]
        (is (.join scout (Duration/ofSeconds 20)))))))

(deftest a-wake-up-from-elsewhere-ends-no-wait-for-a-scout
  (with-redefs [turn/longest-ns Long/MAX_VALUE]
    (with-carrier [away (ConcurrentLinkedQueue.) _turned 0]
      (let [waiters (.get away), waiting (virtually turn/give-way!)]
        (is (waits? waiting))
        (LockSupport/unpark waiting)
        (is (waits? waiting))
        (is (.isAlive waiting))
        (#'turn/back! waiters)
        (is (.join waiting (Duration/ofSeconds 20)))))))

(deftest a-scout-that-comes-back-late-ends-no-wait-for-another
  (let [other (ConcurrentLinkedQueue.)]
    (with-carrier [away nil _turned 1000]
      (with-redefs [turn/stand-behind! #(.set away other)]
        (is (false? (gave-way virtually false))))
      (is (identical? other (.get away))))))

(deftest a-waiter-that-cannot-be-woken-keeps-no-other-asleep
  (with-redefs [turn/longest-ns Long/MAX_VALUE]
    (with-carrier [away (doto (ConcurrentLinkedQueue.) (.add :no-thread)) _turned 0]
      (let [waiters (.get away), waiting (virtually turn/give-way!)]
        (is (waits? waiting))
        (#'turn/back! waiters)
        (is (.join waiting (Duration/ofSeconds 20)))))))
