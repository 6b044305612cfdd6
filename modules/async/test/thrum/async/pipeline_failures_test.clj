(ns thrum.async.pipeline-failures-test
  "Failures in a pipeline: of an item's call, of a transducer, and of a channel."
  (:require
   [clojure.core.async :as async]
   [clojure.core.async.impl.protocols :as impl]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.async :as a]
   [thrum.async.pipes :refer [all each-kind end through]]
   [thrum.core :as t]
   [thrum.impl.jdk]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.uncaught :as uncaught])
  (:import
   (java.util.concurrent CancellationException)
   (java.util.concurrent.locks Lock)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- reported-by
  "Returns [value messages]: of (f), and of what reached the default uncaught exception handler
  meanwhile."
  [f]
  (let [seen (atom [])]
    (uncaught/reporting
      (fn [thread t] (swap! seen conj [(.getName ^Thread thread) (ex-message t)]))
      (fn [] [(f) @seen]))))

(defn- odd-fails [v]
  (if (odd? (long v)) (throw (ex-info (str "no " v) {})) v))

(deftest a-failure-drops-its-item-and-is-reported
  (each-kind start
             (let [[[results totals] reported]
                   (reported-by #(through start 1 odd-fails (range 4) {:name "dropping"}))]
               (is (= [0 2] results))
               (is (= {:taken 4, :put 2, :dropped 0, :failed 2} totals))
               (is (= ["no 1" "no 3"] (map second reported)))
               (is (every? #(re-matches #"dropping-\d+/\d+" (first %)) reported)
                   "on a thread that has a name")))
  (testing "as core.async does, with its arguments"
    (let [[results reported]
          (reported-by #(let [to (async/chan)]
                          (a/pipeline-blocking 1 to (map odd-fails) (async/to-chan! (range 4)))
                          (all to)))]
      (is (= [0 2] results))
      (is (= 2 (count reported))))))

(deftest a-failure-can-be-skipped-or-answered
  (each-kind
    start
    (let [[[results totals] reported] (reported-by
                                        #(through start 2 odd-fails (range 6) {:on-error :skip}))]
      (is (= #{0 2 4} (set results)))
      (is (= {:taken 6, :put 3, :dropped 0, :failed 3} totals))
      (is (= [] reported)))
    (is (= #{0 2 "no 1" "no 3"}
           (set (first (through start 2 odd-fails (range 4) {:on-error ex-message})))))
    (testing "also where the function got it from a cancel of something else"
      (let [cancelled (fn [v] (if (= 1 v) (throw (CancellationException. "no")) v))
            [results] (through start 2 cancelled (range 3) {:on-error ex-message})]
        (is (= #{0 2 "no"} (set results)))))
    (testing "by nil"
      (is (= #{0 2} (set (first (through start 2 odd-fails (range 4) {:on-error (fn [_] nil)}))))))
    (testing "by an answer that throws itself"
      (let [[[results] reported]
            (reported-by #(through start
                            2
                            odd-fails
                            (range 3)
                            {:on-error (fn [_] (throw (ex-info "worse" {})))}))]
        (is (= [0 2] (sort results)))
        (is (= ["worse"] (map second reported)))))))

(deftest an-answer-that-the-pipelines-end-interrupts-is-not-reported
  (each-kind start
    (let [answering (promise)
          answer (fn [_]
                   (deliver answering true)
                   (Thread/sleep 60000))
          to (async/chan)
          [totals reported] (reported-by
                              #(let [done (start 1
                                                 to
                                                 (fn [_] (throw (ex-info "no" {})))
                                                 (async/to-chan! [1])
                                                 {:on-error answer})]
                                 (is (true? (deref answering 5000 :late)))
                                 (async/close! to)
                                 (end done)))]
      (is (= {:taken 1, :put 0, :dropped 0, :failed 1} totals))
      (is (= [] reported)))))

(deftest a-failure-that-only-comes-with-the-pipelines-end-is-reported
  (each-kind start
    (let [running (promise)
          fail #(try
                  (deliver running true)
                  (Thread/sleep 60000)
                  (catch InterruptedException _ (throw (ex-info "no" {:item %}))))
          to (async/chan)
          [totals reported] (reported-by
                              #(let [done (start 1 to fail (async/to-chan! [1]) {})]
                                 (is (true? (deref running 5000 :late)))
                                 (async/close! to)
                                 (end done)))]
      (is (= {:taken 1, :put 0, :dropped 0, :failed 1} totals))
      (is (= ["no"] (map second reported))))))

(deftest a-failure-can-end-it
  (each-kind start
             (let [[results thrown] (through start 1 odd-fails (range 9) {:on-error :close})]
               (is (= [0] results))
               (is (= "no 1" (ex-message thrown)))))
  (testing "after the results before it, and what comes later is cancelled"
    (let [gate (promise)
          later (promise)
          to (async/chan)
          done (a/pipeline-blocking 3
                                    to
                                    (map #(case (long %)
                                            0 (deref gate 5000 :late)
                                            1 (do
                                                @later
                                                (throw (ex-info "one" {})))
                                            (try
                                              (deliver later :runs)
                                              (Thread/sleep 60000)
                                              (finally
                                                (deliver gate :zero)))))
                                    (async/to-chan! (range 9))
                                    {:on-error :close})]
      (is (= [:zero] (all to)))
      (is (= "one" (ex-message (end done))))))
  (testing "an Error is a failure as well"
    (is (= "x"
           (ex-message
             (second
               (through a/pipeline-fn 1 (fn [_] (throw (Error. "x"))) [1] {:on-error :close})))))))

(deftest a-failure-that-would-end-it-is-counted-once
  (each-kind start
    (let [failed (promise)
          f (fn [v]
              (if (zero? (long v))
                v
                (do
                  (deliver failed true)
                  (throw (ex-info "no" {})))))
          from (async/chan)
          ;; Each result of 0 waits here, so the failure after it is not due yet.
          to (async/chan)
          done (start 1 to f from {:on-error :close})]
      (a/>!! from 0)
      (a/>!! from 1)
      (is (true? (deref failed 5000 :late)))
      (is (gate/eventually 5000 #(empty? (leak/threads))) "and has ended")
      (async/close! to)
      (is (= {:taken 2, :put 0, :dropped 0, :failed 1} (end done))))))

(deftest a-transducer-that-makes-no-function-is-a-failure
  (let [[results totals] (through a/upipeline 1 inc [1 2] {:on-error :skip})]
    (is (= [[] 2] [results (:failed totals)])))
  (let [[results thrown] (through a/pipeline-blocking 1 (constantly nil) [1] {:on-error :close})]
    (is (= [[] :thrum/invalid] [results (:type (ex-data thrown))]))))

(deftest what-came-before-a-failure-in-the-same-item-goes-on
  (doseq [pipeline [async/pipeline-blocking a/pipeline-blocking]]
    (let [to (async/chan 10)
          xf (comp (mapcat identity) (map #(/ 6 (long %))) (partition-all 2))]
      (pipeline 1 to xf (async/to-chan! [[1 2 3 0 6] [6]]) true (constantly :failed))
      (is (= [[6 3] :failed [2] [1]] (all to))))))

(deftest a-failure-that-says-a-scope-has-ended-is-one-all-the-same
  (each-kind start
             (let [[_ ended] (through start
                                      1
                                      (fn [_] (throw (ex-info "mine" {:type :thrum/closed})))
                                      [1]
                                      {:on-error :close})]
               (is (= "mine" (ex-message ended))))))

(deftest a-nil-result-is-dropped-or-an-error
  (is (= [[1 3] {:taken 4, :put 2, :dropped 2, :failed 0}]
         (through a/pipeline-fn 2 #(when (odd? (long %)) %) (range 4))))
  (is (= [[false] {:taken 1, :put 1, :dropped 0, :failed 0}]
         (through a/pipeline-fn 2 (constantly false) [1])))
  (doseq [start [a/pipeline-blocking a/upipeline]]
    (let [[results thrown]
          (through start 1 (map #(when (odd? (long %)) %)) [1 2 3] {:on-error :close})]
      (is (= [1] results))
      (is (= :thrum/invalid (:type (ex-data thrown)))))))

(deftest a-transducer-that-cannot-even-begin-is-a-failure
  (is
    (=
      [[] "broken"]
      (update
        (through a/pipeline-blocking 1 (fn [_] (throw (ex-info "broken" {}))) [1 2]
          {:on-error :close})
        1
        ex-message))))

(deftest an-asynchronous-function-that-throws-hangs-nothing
  (let [channels (atom [])
        [results totals] (through
                           a/pipeline-async
                           2
                           (fn [v ch]
                             (swap! channels conj ch)
                             (async/put! ch v)
                             (if (odd? (long v)) (throw (ex-info "no" {})) (async/close! ch)))
                           (range 6)
                           {:on-error :skip})]
    (is (= [0 2 4] (filter even? results)))
    (is (= 3 (:failed totals)))
    (is (every? impl/closed? @channels))))

(deftest a-wrap-that-drops-or-replaces-the-outputs-ends-it
  (each-kind start
    (doseq [instead [nil 5]]
      (let [[results ended]
            (through start 2 inc (range 9) {:wrap (fn [thunk] #(do (thunk) instead))})]
        (is (= [] results))
        (is (= [:thrum/invalid instead] ((juxt :type :value) (ex-data ended))))))))

(deftest a-wrap-that-runs-its-thunk-elsewhere-or-twice-is-refused
  (doseq [wrap [(fn [thunk] #(deref (future (thunk))))
                (fn [thunk]
                  #(do
                     (thunk)
                     (thunk)))]]
    (let [[_ ended] (through a/pipeline-fn 1 inc [1] {:wrap wrap})]
      (is (= [:thrum/invalid :wrap]
             ((juxt :type :option) (ex-data (or (ex-cause ended) ended))))))))

(deftest what-still-puts-for-an-item-ends-with-it
  (let [putter (fn [ended]
                 (fn [_ ch]
                   (a/thread
                     (dotimes [_ 100] (a/>!! ch 1))
                     (deliver ended true))))]
    (testing "that is cancelled"
      (let [begun (promise)
            ended (promise)
            to (async/chan)
            af (fn [v ch]
                 ((putter ended) v ch)
                 (deliver begun true)
                 (deref (promise)))
            done (a/pipeline-async 1 to af (async/to-chan! [1]) {})]
        (is (true? (deref begun 5000 :late)))
        (async/close! to)
        (is (map? (end done)))
        (is (true? (deref ended 5000 :late)))))
    (testing "that throws"
      (let [ended (promise)
            af (fn [v ch]
                 ((putter ended) v ch)
                 (throw (ex-info "no" {})))]
        (is (= [] (first (through a/pipeline-async 1 af [1] {:on-error :skip}))))
        (is (true? (deref ended 5000 :late)))))))

(deftest a-channel-that-throws-ends-it
  (let [to (reify
             impl/Channel
             (closed? [_] false)
             (close! [_])
             impl/WritePort
             (put! [_ _ _] (throw (AssertionError. "no more than 1024"))))
        [ended reported] (reported-by
                           #(end (a/pipeline-blocking 2 to (map inc) (async/to-chan! (range 9)))))]
    (is (= "no more than 1024" (ex-message ended)))
    (is (= [] reported)))
  (testing "a closed one that only says so at a put"
    (let [to (reify
               impl/Channel
               (closed? [_] false)
               (close! [_])
               impl/WritePort
               (put! [_ _ _] (volatile! false)))]
      (is (= 0 (:put (end (a/pipeline-fn 2 to inc (async/to-chan! (range 9))))))))))

(deftest a-channel-that-cannot-be-asked-whether-it-is-closed-starts-nothing
  (let [to (reify
             impl/Channel
             (closed? [_] (throw (ex-info "no answer" {})))
             (close! [_])
             impl/WritePort
             (put! [_ _ _] (volatile! true)))
        from (async/chan)
        thrown (gate/in-time 10000
                             #(t/with-scope [_]
                                (try (a/pipeline-fn 1 to inc from) (catch Exception e e))))]
    (is (= "no answer" (ex-message thrown)))
    (is (nil? (async/offer! from 1)) "nothing waits there")))

(deftest a-channel-that-cannot-be-closed-ends-it
  (let [to (reify
             impl/Channel
             (closed? [_] false)
             (close! [_] (throw (ex-info "no end" {})))
             impl/WritePort
             (put! [_ _ _] (volatile! true)))
        running (promise)
        joined (promise)
        ended (gate/in-time 10000
                            #(t/with-scope [s]
                               (t/fork s
                                 {:daemon? true}
                                 (try
                                   (deliver running true)
                                   (a/<!! (async/chan))
                                   (finally
                                     (deliver joined true))))
                               @running
                               (end (a/pipeline-fn 1 to inc (async/to-chan! [1])))))]
    (is (= "no end" (ex-message ended)))
    (is (realized? joined) "its scope has seen which of the tasks it was")))

(deftest a-thread-that-does-not-start-ends-it
  (each-kind
    start
    (let [next-thread thrum.impl.jdk/next-thread
          made (atom 0)]
      (with-redefs [thrum.impl.jdk/next-thread
                    (fn [threads body]
                      (if (< 3 (long (swap! made inc)))
                        (throw (OutOfMemoryError. "unable to create native thread"))
                        (next-thread threads body)))]
        (let [to (async/chan 10)
              done (start 1 to inc (async/to-chan! (range 9)) {:name "unstartable"})]
          (is (instance? OutOfMemoryError (end done)))
          (is (<= (count (all to)) 3)))))))

(deftest a-pipeline-goes-on-where-no-thread-can-be-started-for-its-steps
  (each-kind start
    (with-redefs [spi/clean-thread
                  (fn [_ _] (throw (OutOfMemoryError. "unable to create native thread")))]
      (let [to (async/chan 9), done (start 2 to inc (async/to-chan! (range 9)) {})]
        (is (= 9 (:put (end done))))
        (is (= (set (range 1 10)) (set (all to))))))))

(defn- port-of
  "Returns a port of one value: a second take returns what (another-value) does."
  [v another-value]
  (let [taken (atom 0)]
    (reify
      impl/ReadPort
      (take! [_ handler]
        (.lock ^Lock handler)
        (try
          (impl/commit handler)
          (finally (.unlock ^Lock handler)))
        (volatile! (if (= 1 (swap! taken inc)) v (another-value)))))))

(deftest a-failure-as-an-item-is-taken-is-the-one-delivered
  (let [failing (promise), taking (promise), failure (ex-info "no" {})
        f (fn [_]
            (deliver failing (Thread/currentThread))
            (deref taking 5000 nil)
            (throw failure))
        ;; The item comes when the failure has ended all.
        from (port-of 1
                      (fn []
                        (deliver taking true)
                        (.join ^Thread (deref failing 5000 nil))
                        2))
        done (a/upipeline 2 (async/chan) (map f) from {:on-error :close})]
    (is (identical? failure (end done)))))
