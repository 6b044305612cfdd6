(ns thrum.running-test
  "The slots of children: a cancel finds all that run."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.running :as running]
   [thrum.impl.task :as task]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util Random)
   (java.util.concurrent CountDownLatch LinkedBlockingQueue)
   (thrum.impl.running Running)
   (thrum.impl.task Done Task)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- settled-at-random!
  "Adds n latches, settles some of them meanwhile, and takes some of those out. Returns the
  latches."
  [^Running running ^Random random n]
  (reduce (fn [latches i]
            (let [latch (task/latch (str i))]
              (.add running latch)
              (dotimes [_ (.nextInt random 3)]
                (let [^Task ending (nth (conj latches latch) (.nextInt random (inc i)))]
                  (.settle ending (Done. nil))
                  (when (.nextBoolean random) (.forget running ending))))
              (conj latches latch)))
          [] (range n)))

(deftest a-cancel-finds-all-that-run-and-no-other
  (dotimes [seed 50]
    (let [running (running/running)
          latches (settled-at-random! running (Random. seed) 200)
          open (filterv (complement realized?) latches)]
      (.cancelAll running :enough)
      (is (every? future-cancelled? open) seed)
      (is (= (- 200 (count open)) (count (remove future-cancelled? latches)))))))

(defn- forget-as-they-come!
  "Takes out each of n children that the queue hands out. Returns how many were in."
  [^Running running ^LinkedBlockingQueue added n]
  (count (filterv (fn [_] (.forget running (.take added))) (range n))))

(deftest a-child-that-leaves-while-the-slots-are-doubled-is-out
  (dotimes [_ 300]
    (let [running (running/running)
          added (LinkedBlockingQueue.)
          n 40
          [_ outs] (gate/start "leaver" #(forget-as-they-come! running added n))]
      (dotimes [i n]
        (let [latch (task/latch (str i))]
          (.add running latch)
          (.put added latch)))
      (is (= {:value n} (deref outs 5000 :stuck)) "each was in, once")
      (is (empty? (.children running))))))

(deftest a-task-that-runs-for-long-keeps-its-slot-while-others-come-and-go
  (let [gate (promise), cancelled (CountDownLatch. 3)
        f (fn [i]
            (if (< i 3)
              (try
                (deref gate)
                (finally (.countDown cancelled)))
              i))]
    (is (= (range 3 1003) (t/with-scope [_] (doall (sort (take 1000 (t/upmap 4 f (range))))))))
    (is (= 0 (.getCount cancelled)) "the end of the scope has cancelled and joined all three")))

(def ^:private forms
  {"pmap" #(doall (t/pmap 3 % (range 40)))
   "upmap" #(doall (t/upmap 3 % (range 40)))
   "fmap" #(run! deref (t/fmap 3 % (range 40)))
   "pmapv" #(t/pmapv 3 % (range 40))
   "prun!" #(t/prun! 3 % (range 40))
   "transducer" #(into [] (t/pmap 3 %) (range 40))})

(defn- thread-that-cannot-start []
  (doto (Thread. (fn [])) .start .join))

(deftest a-start-that-fails-counts-as-none
  (doseq [[form run] forms, k [1 2 20]]
    (testing [form k]
      (let [made (atom 0), next-thread jdk/next-thread
            e (with-redefs [jdk/next-thread (fn [threads body]
                                              (if (= k (swap! made inc))
                                                (thread-that-cannot-start)
                                                (next-thread threads body)))]
                (gate/in-time 5000 #(t/with-scope [_] (thrown (run identity)))))]
        (is (instance? IllegalThreadStateException e))))))
