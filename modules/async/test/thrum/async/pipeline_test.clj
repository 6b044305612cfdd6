(ns thrum.async.pipeline-test
  "What a pipeline promises: exactly n at once, the order, the two ends, what becomes of failures,
  and that nothing is left."
  (:require
   [clojure.core.async :as async]
   [clojure.core.async.impl.protocols :as impl]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.async :as a]
   [thrum.async.impl.handler :as handler]
   [thrum.core :as t]
   [thrum.impl.jdk]
   [thrum.spi.fan-out]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (clojure.core.async.impl.channels ManyToManyChannel)
   (java.lang.ref WeakReference)
   (java.util.concurrent CancellationException CountDownLatch Semaphore TimeUnit)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- all
  "Returns what the channel delivers until it is closed, which it is within 10 s."
  [ch]
  (gate/in-time 10000 #(into [] (a/chan->reducible ch))))

(defn- end
  "Returns what a pipeline's channel delivers; :late when that takes longer than 10 s."
  [done]
  (first (async/alts!! [done (async/go (async/<! (async/timeout 10000)) :late)])))

(defn- through
  "Returns [results end] of (start n to f from) over the items."
  ([start n f items] (through start n f items {}))
  ([start n f items options]
   (let [to (async/chan)
         done (start n to f (async/to-chan! items) options)]
     [(all to) (end done)])))

(def ^:private kinds
  "By name: every kind of pipeline, with the same function, of an item."
  {"pipeline-blocking" (fn [n to f from options] (a/pipeline-blocking n to (map f) from options))
   "pipeline-fn" a/pipeline-fn
   "upipeline" (fn [n to f from options] (a/upipeline n to (map f) from options))
   "pipeline-async"
   (fn [n to f from options]
     (a/pipeline-async n to (fn [v ch] (async/put! ch (f v)) (async/close! ch)) from options))})

(defmacro ^:private each-kind
  "Runs the body with start bound to each kind of pipeline."
  [start & body]
  `(doseq [[kind# ~start] kinds]
     (testing kind# ~@body)))

(defn- waits?
  "True if a put waits in the channel."
  [^ManyToManyChannel ch]
  (pos? (count (.-puts ch))))

;; Values and order

(deftest results-come-in-the-order-of-the-items
  (each-kind start
    (let [[results totals] (through start 7 inc (range 500))]
      (is (= (range 1 501) (sort results)))
      (when-not (identical? start (kinds "upipeline")) (is (= (range 1 501) results)))
      (is (= {:taken 500, :put 500, :dropped 0, :failed 0} totals)))))

(deftest a-slow-item-comes-in-its-place
  (let [gate (promise)
        slow-first #(do
                      (when (zero? (long %)) (deref gate 5000 :late))
                      (when (= 3 %) (deliver gate :go))
                      %)]
    (is (= [0 1 2 3 4] (first (through (kinds "pipeline-blocking") 4 slow-first (range 5)))))))

(deftest upipeline-does-not-wait-for-a-slow-item
  (let [gate (promise)
        to (async/chan)
        done (a/upipeline 2
                          to
                          (map #(do
                                  (when (zero? (long %)) (deref gate 5000 :late))
                                  %))
                          (async/to-chan! (range 4))
                          {:window 8})]
    (is (= #{1 2 3} (set (repeatedly 3 #(a/<!! to)))))
    (deliver gate :go)
    (is (= [0] (all to)))
    (is (= 4 (:put (end done))))))

(deftest each-item-has-a-transducer-of-its-own
  (let [pipe #(first (through (fn [n to xf from options] (a/pipeline-blocking n to xf from options))
                              3
                              %1
                              %2))]
    (is (= [0 0 1 0 1 2] (pipe (mapcat range) [1 2 3])))
    (is (= [1 3] (pipe (filter odd?) (range 5))))
    (testing "one that ends early ends its item"
      (is (= [0 1 2] (pipe (take 1) (range 3))))
      (is (= [] (pipe (take 0) (range 3)))))
    (testing "with its completion" (is (= [[0] [1] [2]] (pipe (partition-all 5) (range 3)))))
    (testing "false is a value" (is (= [true false] (pipe (map even?) [2 3]))))))

(deftest an-item-may-give-more-than-anybody-takes
  (let [to (async/chan)
        done (a/pipeline-blocking 1 to (mapcat range) (async/to-chan! [1000]))]
    (is (= [0 1 2] (repeatedly 3 #(a/<!! to))))
    (async/close! to)
    (is (nil? (end done)))))

(deftest an-asynchronous-function-gives-any-number-of-results
  (let [to (async/chan)
        done (a/pipeline-async 3
                               to
                               (fn [v ch]
                                 (async/go (dotimes [_ v] (async/>! ch v)) (async/close! ch)))
                               (async/to-chan! (range 5)))]
    (is (= [1 2 2 3 3 3 4 4 4 4] (all to)))
    (is (nil? (end done)))))

;; How wide

(defn- counting
  "Returns [f running most]: f runs (g item) and keeps track of how many calls run, and of the most
  that ever did."
  [g]
  (let [running (AtomicLong.), most (atom 0)]
    [(fn [v]
       (swap! most max (.incrementAndGet running))
       (try (g v) (finally (.decrementAndGet running))))
     running most]))

(deftest exactly-n-run-at-once
  (each-kind start
    (doseq [n [1 4 10]]
      (let [tickets (Semaphore. 0)
            [f ^AtomicLong running most] (counting #(do (.acquire tickets) %))
            to (async/chan 100)
            ;; Tickets go to whoever comes first: the oldest item may have to wait.
            done (start n to f (async/to-chan! (range 40)) {:window 40})]
        (dotimes [i 40]
          (is (gate/eventually 5000 #(= (min n (- 40 i)) (.get running))))
          (.release tickets))
        (is (= 40 (count (all to))))
        (is (= n @most))
        (is (= 40 (:put (end done))))))))

(deftest n-has-no-bound
  (each-kind start
    (is (= [[2] 1] (update (through start Long/MAX_VALUE inc [1]) 1 :put)))))

(deftest an-item-is-taken-when-its-call-can-start
  (each-kind start
    (let [gate (promise), from (async/chan 10), to (async/chan)]
      (dotimes [i 10] (a/>!! from i))
      (let [[f ^AtomicLong running _] (counting #(do (deref gate 5000 :late) %))
            done (start 3 to f from {})]
        (is (gate/eventually 5000 #(= 3 (.get running))))
        (is (= 7 (.count ^clojure.lang.Counted (.-buf ^ManyToManyChannel from))))
        (async/close! from)
        (deliver gate :go)
        (is (= 10 (count (all to))))
        (is (= 10 (:taken (end done))))))))

(deftest no-more-are-taken-than-the-window
  (each-kind start
    (let [taken (AtomicLong.)
          from (async/chan 1 (map #(do (.incrementAndGet taken) %)))
          feeder (t/future (loop [i 0] (when (a/>!! from i) (recur (inc i)))))
          to (async/chan)
          done (start 2 to inc from {:window 6})]
      (is (gate/eventually 5000 #(waits? to)))
      ;; One result waits at `to`, 6 more in the window, one item and one more wait in `from` and
      ;; before it.
      (is (gate/eventually 5000 #(<= 8 (.get taken))))
      (is (<= (.get taken) 9))
      (async/close! to)
      (is (<= (:taken (end done)) 8))
      (is (future-cancel feeder)))))

;; The ends

(deftest a-closed-input-ends-it
  (each-kind start
    (is (= [[] {:taken 0, :put 0, :dropped 0, :failed 0}] (through start 3 inc [])))
    (testing "`to` stays open when told so"
      (let [to (async/chan 10)]
        (is (= 3 (:put (end (start 3 to inc (async/to-chan! [1 2 3]) {:close? false})))))
        (is (true? (a/>!! to :more)))
        (is (= #{2 3 4 :more} (set (repeatedly 4 #(a/<!! to)))))))))

(deftest positional-arguments-are-those-of-core-async
  (doseq [pipeline [async/pipeline-blocking a/pipeline-blocking a/upipeline]]
    (let [to (async/chan 10)]
      (pipeline 1 to (map inc) (async/to-chan! [1 2 3]))
      (is (= [2 3 4] (all to))))
    (let [to (async/chan 10)]
      (pipeline 1 to (map inc) (async/to-chan! [1 2 3]) false)
      (is (= [2 3 4] (repeatedly 3 #(a/<!! to))))
      (is (true? (a/>!! to :more))))
    (let [to (async/chan 10)]
      (pipeline 1 to (map #(/ 6 (long %))) (async/to-chan! [1 0 3]) true (fn [t] (class t)))
      (is (= [6 ArithmeticException 2] (all to)))))
  (testing "and the channel then delivers nothing"
    (is (nil? (end (a/pipeline-blocking 1 (async/chan 10) (map inc) (async/to-chan! [1])))))
    (is (nil? (end (a/pipeline-async 1
                                     (async/chan 10)
                                     (fn [_ ch] (async/close! ch))
                                     (async/to-chan! [1])
                                     false))))))

(defn- endless
  "Returns [from taken]: a channel that never runs dry, and how many values have left it."
  []
  (let [taken (AtomicLong.)
        value (AtomicLong.)]
    [(reify
       impl/ReadPort
       (take! [_ handler]
         (.lock ^java.util.concurrent.locks.Lock handler)
         (let [callback (when (impl/active? handler) (impl/commit handler))]
           (.unlock ^java.util.concurrent.locks.Lock handler)
           (when callback
             (.incrementAndGet taken)
             (volatile! (.getAndIncrement value))))))
     taken]))

(deftest nothing-is-taken-after-the-output-was-closed
  (each-kind start
    (dotimes [_ 20]
      (let [[from ^AtomicLong taken] (endless)
            to (async/chan 5)
            done (start 3 to inc from {})]
        (dotimes [_ 10] (a/<!! to))
        (async/close! to)
        (let [at-close (.get taken)]
          (is (map? (end done)))
          ;; One may have been on its way.
          (is (<= (.get taken) (inc at-close))))))))

(deftest a-take-that-waits-is-withdrawn-when-the-output-closes
  (each-kind start
             (let [from (async/chan)
                   to (async/chan)
                   done (start 3 to inc from {})
                   takes #(count (filter impl/active? (vec (.-takes ^ManyToManyChannel from))))]
               (is (gate/eventually 5000 #(= 1 (takes))))
               (async/close! to)
               (is (zero? (takes)) "at once, not some time later")
               (is (= 0 (:taken (end done))))
               (is (gate/eventually 5000 #(empty? (.-takes ^ManyToManyChannel from)))
                   "and what was withdrawn is not held")
               (is (nil? (async/offer! from 1))))))

(deftest what-runs-is-interrupted-when-the-output-closes
  (each-kind start
             (let [running (CountDownLatch. 3)
                   interrupted (CountDownLatch. 3)
                   to (async/chan)
                   done (start 3
                               to
                               (fn [_]
                                 (.countDown running)
                                 (try
                                   (Thread/sleep 60000)
                                   (finally
                                     (.countDown interrupted))))
                               (async/to-chan! (range 9))
                               {})]
               (is (.await running 5 TimeUnit/SECONDS))
               (async/close! to)
               (is (= {:taken 3, :put 0, :dropped 0, :failed 0} (end done)))
               (is (zero? (.getCount interrupted)) "and has ended before the pipeline has"))))

(deftest an-output-that-is-closed-already-starts-nothing
  (each-kind start
    (let [to (doto (async/chan) async/close!), from (async/to-chan! (range 3))]
      (is (= 0 (:taken (end (start 3 to inc from {})))))
      (is (= 0 (a/<!! from))))))

(deftest what-waits-at-a-closed-output-can-still-be-taken
  (let [to (async/chan)
        done (a/pipeline-blocking 2 to (map inc) (async/to-chan! (range 9)) {})]
    (is (gate/eventually 5000 #(waits? to)))
    (async/close! to)
    (is (map? (end done)))
    (is (= [1 nil] [(a/<!! to) (a/<!! to)]))))

;; Abandoned

(defn- alive [prefix]
  (filter #(.startsWith (.getName ^Thread %) ^String prefix) (leak/threads)))

(deftest an-abandoned-pipeline-holds-no-thread-and-is-garbage
  (each-kind start
    (let [reference
          (let [to (async/chan), from (async/to-chan! (range 1000))
                done (start 50 to inc from {:name "abandoned"})]
            (dotimes [_ 3] (a/<!! to))
            (is (gate/eventually 5000 #(waits? to)))
            (is (gate/eventually 5000 #(empty? (alive "abandoned"))))
            (is (nil? (async/poll! done)))
            (WeakReference. to))]
      (is (gate/eventually 10000 #(do (System/gc) (nil? (.get ^WeakReference reference))))))))

(deftest a-watch-does-not-outlive-its-pipeline
  (let [to (async/chan 10)]
    (dotimes [_ 3]
      (end (a/pipeline-fn 1 to inc (async/to-chan! [1]) {:close? false})))
    (is (empty? (.getWatches ^clojure.lang.IRef (.-closed ^ManyToManyChannel to))))))

;; Failures

(defn- uncaught
  "Returns [value messages]: of (f), and of what reached the default uncaught exception handler
  meanwhile."
  [f]
  (let [seen (atom [])
        before (Thread/getDefaultUncaughtExceptionHandler)]
    (try
      (Thread/setDefaultUncaughtExceptionHandler
        (reify
          Thread$UncaughtExceptionHandler
          (uncaughtException [_ thread t]
            (swap! seen conj [(.getName ^Thread thread) (ex-message t)]))))
      [(f) @seen]
      (finally
        (Thread/setDefaultUncaughtExceptionHandler before)))))

(defn- odd-fails [v]
  (if (odd? (long v)) (throw (ex-info (str "no " v) {})) v))

(deftest a-failure-drops-its-item-and-is-reported
  (each-kind start
             (let [[[results totals] reported]
                   (uncaught #(through start 1 odd-fails (range 4) {:name "dropping"}))]
               (is (= [0 2] results))
               (is (= {:taken 4, :put 2, :dropped 0, :failed 2} totals))
               (is (= ["no 1" "no 3"] (map second reported)))
               (is (every? #(re-matches #"dropping-\d+/\d+" (first %)) reported)
                   "on a thread that has a name")))
  (testing "as core.async does, with its arguments"
    (let [[results reported]
          (uncaught #(let [to (async/chan)]
                       (a/pipeline-blocking 1 to (map odd-fails) (async/to-chan! (range 4)))
                       (all to)))]
      (is (= [0 2] results))
      (is (= 2 (count reported))))))

(deftest a-failure-can-be-skipped-or-answered
  (each-kind
    start
    (let [[[results totals] reported] (uncaught
                                        #(through start 2 odd-fails (range 6) {:on-error :skip}))]
      (is (= #{0 2 4} (set results)))
      (is (= {:taken 6, :put 3, :dropped 0, :failed 3} totals))
      (is (= [] reported)))
    (is (= #{0 2 "no 1" "no 3"}
           (set (first (through start 2 odd-fails (range 4) {:on-error ex-message})))))
    (testing "by nil"
      (is (= #{0 2} (set (first (through start 2 odd-fails (range 4) {:on-error (fn [_] nil)}))))))
    (testing "by an answer that throws itself"
      (let [[[results] reported]
            (uncaught #(through start
                                2
                                odd-fails
                                (range 3)
                                {:on-error (fn [_] (throw (ex-info "worse" {})))}))]
        (is (= [0 2] (sort results)))
        (is (= ["worse"] (map second reported)))))))

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

(deftest a-channel-that-throws-ends-it
  (let [to (reify
             impl/Channel
             (closed? [_] false)
             (close! [_])
             impl/WritePort
             (put! [_ _ _] (throw (AssertionError. "no more than 1024"))))
        [ended reported] (uncaught
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
    (is (realized? joined) "its scope has told it from the others")))

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

;; Scopes, context

(deftest a-scopes-end-ends-what-was-started-in-it
  (each-kind start
             (let [running (CountDownLatch. 2)
                   interrupted (CountDownLatch. 2)
                   to (async/chan)
                   from (async/chan 10)
                   done (t/with-scope [_s]
                          (dotimes [i 5] (a/>!! from i))
                          (let [done (start 2
                                            to
                                            (fn [_]
                                              (.countDown running)
                                              (try
                                                (Thread/sleep 60000)
                                                (finally
                                                  (.countDown interrupted))))
                                            from
                                            {})]
                            (.await running 5 TimeUnit/SECONDS)
                            done))]
               (is (zero? (.getCount interrupted)))
               (is (impl/closed? to))
               (is (= 2 (:taken (end done))))
               (is (= 2 (a/<!! from)) "what it has not taken stays")))
  (testing "and one that only waits"
    (let [from (async/chan)
          to (async/chan)
          done (t/with-scope [_s]
                 (let [done (a/pipeline-fn 2 to inc from)]
                   (is (gate/eventually 5000 #(seq (.-takes ^ManyToManyChannel from))))
                   done))]
      (is (impl/closed? to))
      (is (nil? (async/offer! from 1)))
      (is (= 0 (:taken (end done))))))
  (testing "and a deadline"
    (let [to (async/chan)]
      (is (= :late
             (t/with-timeout [20 :late]
                             (a/pipeline-fn 2 to (fn [_] (Thread/sleep 60000)) (async/to-chan! [1]))
                             (a/<!! (async/chan)))))
      (is (impl/closed? to)))))

(deftest in-an-ended-scope-none-starts
  (let [from (async/chan), refusal (promise)]
    (is (thrown? CancellationException
          (t/with-scope [s]
            (t/cancel! s)
            (deliver refusal (try (a/pipeline-fn 1 (async/chan) inc from) (catch Exception e e)))
            (a/<!! from))))
    (is (= :thrum/closed (:type (ex-data @refusal))))
    (is (empty? (.-takes ^ManyToManyChannel from)))))

(deftest an-item-that-comes-after-the-scopes-end-is-no-failure
  (let [scope (atom nil), done (atom nil)]
    (with-redefs [thrum.spi.fan-out/launch! (fn [& _]
                                              (t/cancel! @scope)
                                              (throw (ex-info "Ended" {:type :thrum/closed})))]
      (is (thrown? CancellationException
            (t/with-scope [s]
              (reset! scope s)
              (reset! done (a/pipeline-fn 1 (async/chan) inc (async/to-chan! [1])))
              (a/<!! (async/chan))))))
    (is (= {:taken 0, :put 0, :dropped 0, :failed 0} (end @done)))))

(deftest a-cancel-while-it-starts-leaves-no-watch
  (let [scope (atom nil)
        to (async/chan)
        watch handler/watch-close!
        unwatch handler/unwatch-close!
        unwatched (promise)]
    (with-redefs [handler/watch-close! (fn [port k f]
                                         (t/cancel! @scope)
                                         (Thread/interrupted)
                                         ;; Time for a pipeline that is over too soon.
                                         (deref unwatched 100 :not-yet)
                                         (watch port k f))
                  handler/unwatch-close! (fn [port k] (unwatch port k) (deliver unwatched true))]
      (is (thrown? CancellationException
                   (t/with-scope [s]
                     (reset! scope s)
                     (a/<!! (a/pipeline-fn 1 to inc (async/chan) {:close? false}))))))
    (is (empty? (.getWatches ^clojure.lang.IRef (.-closed ^ManyToManyChannel to))))))

(def ^:dynamic *who* :nobody)

(deftest items-run-in-the-callers-bindings-on-named-virtual-threads
  (each-kind start
             (let [names (atom #{})
                   [results] (binding [*who* :me]
                               (through start
                                        2
                                        (fn [_]
                                          (swap! names conj (.getName (Thread/currentThread)))
                                          [*who* (.isVirtual (Thread/currentThread))])
                                        (range 5)
                                        {:name "who"}))]
               (is (= (repeat 5 [:me true]) results))
               (is (= 5 (count @names)))
               (is (every? #(re-matches #"who-\d+/\d" %) @names))))
  (testing "wrapped"
    (is (= [[:wrapped 1]]
           (first (through a/pipeline-fn
                           1
                           vector
                           [1]
                           {:wrap (fn [thunk] #(mapv (partial into [:wrapped]) (thunk)))}))))))

(deftest a-channels-own-transducer-sees-the-callers-bindings-and-no-interrupt-of-an-item
  ;; whose take from the item's channel hears that interrupt
  (doseq [[kind start] (dissoc kinds "pipeline-async")]
    (testing kind
      (let [seen (fn [_] [*who* (.isInterrupted (Thread/currentThread)) (t/cancelled?)])
            ;; Room for all, so that nothing is transformed by whoever takes.
            to (async/chan 50 (map seen))
            interrupting (fn [v] (.interrupt (Thread/currentThread)) v)
            done (binding [*who* :me]
                   (start 2 to interrupting (async/to-chan! (range 50)) {:on-error :skip}))]
        (is (= #{[:me false false]} (set (all to))))
        (is (map? (end done)))))))

;; Misuse

(defn- refused [f]
  (:type (ex-data (try (f) (catch Exception e e)))))

(deftest wrong-arguments-are-answered-at-the-call
  (let [to (async/chan)
        from (async/chan)]
    (each-kind start
               (doseq [n [0 -1 nil 1.5 "4"]]
                 (is (= :thrum/invalid (refused #(start n to inc from {}))))
                 (is (thrown-with-msg? Exception #"^n is " (start n to inc from {}))))
               (doseq [options [{:closed? true} {:on-error :explode} {:window 1} {:window 0}
                                {:close? 1} {:name ""}]]
                 (is (= :thrum/invalid (refused #(start 2 to inc from options)))))
               (is (= :thrum/invalid (refused #(start 2 :to inc from {}))))
               (is (= :thrum/invalid (refused #(start 2 to inc [1 2 3] {})))))
    (is (= :thrum/invalid (refused #(a/pipeline-fn 2 to 3 from))))
    (is (= :thrum/invalid (refused #(a/pipeline-blocking 2 to (map inc) from true 3))))
    (testing "no ex-handler beside the options, which name one"
      (is (= :thrum/invalid (refused #(a/pipeline-blocking 2 to (map inc) from {} identity))))
      (is (= :thrum/invalid (refused #(a/upipeline 2 to (map inc) from {} nil)))))
    (is (empty? (.-takes ^ManyToManyChannel from)))))

;; Under load

(deftest many-pipelines-in-a-row-lose-nothing
  (dotimes [_ 20]
    (let [n 2000
          chans (vec (repeatedly 5 #(async/chan 3)))
          dones
          (mapv (fn [from to] (a/pipeline-blocking 8 to (map inc) from {})) chans (rest chans))]
      (async/onto-chan! (first chans) (range n))
      (is (= (range 4 (+ 4 n)) (all (peek chans))))
      (is (every? #(= n (:put %)) (map end dones))))))

(deftest closing-in-the-middle-always-ends-it
  (each-kind start
    (dotimes [i 200]
      (let [[from] (endless)
            to (async/chan (inc (rem i 3)))
            done (start (inc (rem i 5)) to inc from {})]
        (dotimes [_ (rem i 7)] (a/<!! to))
        (async/close! to)
        (is (map? (end done)))))))
