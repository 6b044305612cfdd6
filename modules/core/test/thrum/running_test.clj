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
   (java.util.concurrent CountDownLatch)
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

(defn- forget-all!
  "Takes out the children, the last first. Returns how many were in."
  [^Running running children]
  (count (filterv #(.forget running %) (rseq children))))

(deftest children-that-leave-while-the-slots-are-doubled-are-out-once
  (dotimes [_ 100]
    (let [running (running/running)
          latches (mapv #(task/latch (str %)) (range 512))
          _ (run! #(.add running %) latches)
          leavers (mapv (fn [_] (second (gate/start "leaver" #(forget-all! running latches))))
                        (range 2))]
      (dotimes [i 600] (.add running (task/latch (str i))))
      (is (= 512 (transduce (map #(:value (deref % 5000 {:value -1}))) + leavers)))
      (is (= 600 (count (.children running)))))))

(deftest a-child-leaves-once-wherever-it-has-moved-to
  (let [running (running/running)
        move! @#'running/move!
        first-of-all (task/latch "first")
        outs (atom [])]
    (.add running first-of-all)
    (with-redefs [running/move! (fn [slots more i]
                                  (move! slots more i)
                                  ;; It has moved, and the new slots are not yet to be seen.
                                  (when (= i (.slot first-of-all))
                                    (is (.holds running first-of-all))
                                    (is (= 16 (count (.children running))))
                                    (dotimes [_ 2]
                                      (swap! outs conj (.forget running first-of-all)))))]
      (dotimes [i 20] (.add running (task/latch (str i)))))
    (is (= [true false] @outs))
    (is (not (.holds running first-of-all)))
    (is (= 20 (count (.children running))))))

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

(deftest slots-without-memory-fail-the-fan-out
  (doseq [[form run] {"upmap" #(doall (t/upmap 64 % (range 40)))
                      "fmap" #(run! deref (t/fmap 64 % (range 40)))
                      "pmapv" #(t/pmapv 64 % (range 40))}]
    (testing form
      (let [failure (OutOfMemoryError. "no slots"), gate (promise)]
        (with-redefs [running/move! (fn [_ _ _] (throw failure))]
          (is (identical? failure
                          (gate/in-time 5000
                                        #(t/with-scope [_]
                                           (thrown (run (fn [_] @gate))))))))))))
