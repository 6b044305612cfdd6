(ns thrum.async.pipeline-test
  "What a pipeline promises: exactly n at once, the order, the two ends, and that nothing is left."
  (:require
   [clojure.core.async :as async]
   [clojure.core.async.impl.protocols :as impl]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.async :as a]
   [thrum.async.impl.handler :as handler]
   [thrum.async.pipes :as pipes :refer [all each-kind end through]]
   [thrum.core :as t]
   [thrum.spi.fan-out]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (clojure.core.async.impl.channels ManyToManyChannel)
   (java.lang ScopedValue ScopedValue$Carrier)
   (java.lang.ref WeakReference)
   (java.util.concurrent CancellationException CountDownLatch Semaphore TimeUnit)
   (java.util.concurrent.atomic AtomicLong)
   (java.util.concurrent.locks Lock)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- waits?
  "True if a put waits in the channel."
  [^ManyToManyChannel ch]
  (pos? (count (.-puts ch))))

(defn- full
  "Returns a closed channel that has all the items at hand."
  [items]
  (let [ch (async/chan (count items))]
    (run! #(async/offer! ch %) items)
    (async/close! ch)
    ch))

;; Values and order

(deftest results-come-in-the-order-of-the-items
  (each-kind start
    (let [[results totals] (through start 7 inc (range 500))]
      (is (= (range 1 501) (sort results)))
      (when-not (identical? start (pipes/kinds "upipeline")) (is (= (range 1 501) results)))
      (is (= {:taken 500, :put 500, :dropped 0, :failed 0} totals)))))

(deftest a-slow-item-comes-in-its-place
  (let [gate (promise)
        slow-first #(do
                      (when (zero? (long %)) (deref gate 5000 :late))
                      (when (= 3 %) (deliver gate :go))
                      %)]
    (is (= [0 1 2 3 4]
           (first (through (pipes/kinds "pipeline-blocking") 4 slow-first (range 5)))))))

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

(deftest an-asynchronous-function-may-put-by-itself
  (let [to (async/chan)
        done (a/pipeline-async 3
                               to
                               (fn [v ch]
                                 (dotimes [i 40] (a/>!! ch [v i]))
                                 (async/close! ch))
                               (async/to-chan! (range 5))
                               {})]
    (is (= (for [v (range 5), i (range 40)] [v i]) (all to)))
    (is (= {:taken 5, :put 200, :dropped 0, :failed 0} (end done)))))

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
            ;; Tickets go to the first that comes: the oldest item may have to wait.
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
    (doseq [[options window] [[{:window 6} 6] [{} 16]]]
      (let [taken (AtomicLong.)
            from (async/chan 1 (map #(do (.incrementAndGet taken) %)))
            feeder (t/future (loop [i 0] (when (a/>!! from i) (recur (inc i)))))
            to (async/chan)
            done (start 2 to inc from options)]
        (is (gate/eventually 5000 #(waits? to)))
        ;; One result waits at `to`, more in the window, one item and one more wait in `from` and
        ;; before it.
        (is (gate/eventually 5000 #(<= (+ 2 window) (.get taken))))
        (is (<= (.get taken) (+ 3 window)))
        (async/close! to)
        (is (<= (:taken (end done)) (+ 2 window)))
        (is (future-cancel feeder))))))

(deftest a-result-that-leaves-the-window-makes-room
  (each-kind start
    (let [to (async/chan 9), done (start 1 to inc (async/to-chan! (range 9)) {:window 1})]
      (is (= {:taken 9, :put 9, :dropped 0, :failed 0} (end done)))
      (is (= (range 1 10) (all to))))))

(deftest a-call-begins-before-the-result-before-it-is-put
  (each-kind start
    (let [begun (promise)
          put (fn [v] [v (if (= 1 v) (deref begun 5000 :late) :any)])
          to (async/chan 2 (map put))
          alone? #(= 1 (count (leak/threads)))
          f (fn [v]
              ;; The thread of the start has seen that the first call runs.
              (if (= 0 v) (gate/eventually 5000 alone?) (deliver begun :begun))
              (inc (long v)))]
      (start 1 to f (full [0 1]) {})
      (is (= [[1 :begun] [2 :any]] (all to))))))

;; The ends

(deftest a-closed-input-ends-it
  (each-kind start
    (is (= [[] {:taken 0, :put 0, :dropped 0, :failed 0}] (through start 3 inc [])))
    (testing "`to` stays open with :close? false"
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
                   ^Lock mutex (.-mutex ^ManyToManyChannel from)
                   takes #(do (.lock mutex)
                              (try
                                (->> (vec (.-takes ^ManyToManyChannel from))
                                     (filter impl/active?)
                                     count)
                                (finally (.unlock mutex))))]
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

(deftest a-cancelled-pipeline-withdraws-what-it-offers
  (each-kind start
    (let [to (async/chan)
          done (t/with-scope [_s]
                 (let [done (start 2 to inc (async/to-chan! (range 9)) {:close? false})]
                   (is (gate/eventually 5000 #(waits? to)))
                   done))]
      (is (not (waits? to)))
      (is (nil? (async/poll! to)))
      (is (= 0 (:put (end done))))
      (async/close! to)
      (is (nil? (a/<!! to))))))

(defn- throwing-later
  "Returns [from go-on!]: a port whose first value is 1, whose second is 2 when (go-on!) is called,
  and whose third take throws."
  []
  (let [takes (atom 0)
        second-take (promise)]
    [(reify
       impl/ReadPort
       (take! [_ handler]
         (case (long (swap! takes inc))
           1 (do (impl/commit handler) (volatile! 1))
           2 (do (deliver second-take handler) nil)
           (throw (ex-info "no third" {})))))
     #((impl/commit (deref second-take 5000 nil)) 2)]))

(deftest a-failed-pipeline-withdraws-what-it-offers
  (each-kind start
    (let [[from go-on!] (throwing-later)
          to (async/chan)
          done (start 2 to inc from {:close? false})]
      (is (gate/eventually 5000 #(waits? to)))
      (go-on!)
      (is (= "no third" (ex-message (end done))))
      (is (not (waits? to)))
      (is (nil? (async/poll! to)))
      (async/close! to)
      (is (nil? (a/<!! to))))))

(deftest each-value-that-a-cancelled-pipeline-has-put-is-counted
  (each-kind start
    (dotimes [i 50]
      (let [to (async/chan (when (odd? i) 2))
            taken (rem i 5)
            done (t/with-scope [_s]
                   (let [done (start 3 to inc (async/to-chan! (range 20)) {})]
                     (dotimes [_ taken] (a/<!! to))
                     done))
            more (count (all to))]
        (is (= (+ taken more) (:put (end done))))))))

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
             ;; Before it passes, the pipeline is to be started, also on a busy machine.
             (t/with-timeout [1500 :late]
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
    (is (= {:taken 1, :put 0, :dropped 0, :failed 0} (end @done)))))

(defn- committed-take
  "Returns [done callback]: of a pipeline whose take is committed, and its value still to come."
  [start to]
  (let [taking (promise)
        from (reify impl/ReadPort (take! [_ handler] (deliver taking handler) nil))
        done (start 1 to inc from {})
        ^java.util.concurrent.locks.Lock handler (deref taking 5000 nil)]
    (.lock handler)
    (try
      [done (impl/commit handler)]
      (finally (.unlock handler)))))

(deftest an-item-whose-take-was-committed-before-the-end-counts-as-taken
  (each-kind start
    (doseq [[v taken] {1 1, nil 0}]
      (let [to (async/chan)
            [done callback] (committed-take start to)]
        (async/close! to)
        (callback v)
        (is (= {:taken taken, :put 0, :dropped 0, :failed 0} (end done)))))))

(def ^:private nothing {:taken 0, :put 0, :dropped 0, :failed 0})

(deftest an-end-in-the-middle-of-a-take-takes-nothing
  (each-kind start
    (let [to (async/chan), from (async/to-chan! [1]), once handler/once, closes? (atom true)
          ending #(do
                    (when (compare-and-set! closes? true false) (async/close! to))
                    (once))]
      (with-redefs [handler/once ending]
        (is (= nothing (end (start 1 to inc from {})))))
      (is (= 1 (async/<!! from))))))

(deftest a-port-that-is-closed-already-has-nothing-taken
  (each-kind start
    (let [from (async/to-chan! [1])
          to (reify
               impl/WritePort
               (put! [_ _ _] (volatile! false))
               impl/Channel
               (close! [_])
               (closed? [_] true))]
      (is (= nothing (end (start 1 to inc from {}))))
      (is (= 1 (async/<!! from))))))

(deftest the-channel-of-a-call-that-is-cancelled-is-closed
  (let [given (promise), to (async/chan)
        done (a/pipeline-async 1 to (fn [_ ch] (deliver given ch)) (async/to-chan! [1]) {})
        ch (deref given 5000 nil)]
    (async/close! to)
    (is (map? (end done)))
    (is (false? (async/put! ch 1)))))

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

(deftest a-close-while-it-starts-ends-it
  (let [to (async/chan), watch handler/watch-close!]
    (with-redefs [handler/watch-close! (fn [port k f] (async/close! port) (watch port k f))]
      (is (map? (end (a/pipeline-fn 1 to inc (async/chan))))))))

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
  ;; whose take from the item's channel gets that interrupt
  (doseq [[kind start] (dissoc pipes/kinds "pipeline-async")]
    (testing kind
      (let [seen (fn [_] [*who* (.isInterrupted (Thread/currentThread)) (t/cancelled?)])
            ;; Room for all, so that nothing is transformed by the thread that takes.
            to (async/chan 50 (map seen))
            interrupting (fn [v] (.interrupt (Thread/currentThread)) v)
            done (binding [*who* :me]
                   (start 2 to interrupting (async/to-chan! (range 50)) {:on-error :skip}))]
        (is (= #{[:me false false]} (set (all to))))
        (is (map? (end done)))))))

(defn- with-class-loader
  "Returns (f), called with that context class loader."
  [loader f]
  (let [thread (Thread/currentThread), before (.getContextClassLoader thread)]
    (.setContextClassLoader thread loader)
    (try
      (f)
      (finally (.setContextClassLoader thread before)))))

(defn- new-class-loader []
  (clojure.lang.DynamicClassLoader.))

(deftest items-inherit-nothing-but-the-callers-class-loader
  (each-kind start
    (let [local (InheritableThreadLocal.)
          look (fn [_]
                 (let [thread (Thread/currentThread)
                       seen [(.get local) (.getContextClassLoader thread)]]
                   (.set local :item)
                   (.setContextClassLoader thread (new-class-loader))
                   seen))
          loader (new-class-loader)
          from (async/chan)
          to (async/chan)]
      (try
        (.set local :caller)
        (with-class-loader loader #(start 1 to look from {}))
        (.set local :putter)
        (with-class-loader (new-class-loader)
          #(dotimes [_ 9]
             (a/>!! from 1)
             (is (= [nil loader] (a/<!! to)))))
        (async/close! from)
        (finally (.remove local)))))
  (testing "nor what the item before them left"
    (each-kind start
      (let [local (InheritableThreadLocal.)
            look (fn [_] (let [seen (.get local)] (.set local :item) [seen]))
            to (async/chan 9)]
        (start 1 to look (full [1 2 3 4 5 6 7 8 9]) {})
        (is (= (repeat 9 [nil]) (all to))))))
  (testing "nor does a channel's transducer have an item's class loader"
    (let [loader (new-class-loader)
          ;; Room for all, so that no taker transforms anything.
          to (async/chan 50 (map (fn [_] (.getContextClassLoader (Thread/currentThread)))))
          replace-loader #(do
                            (.setContextClassLoader (Thread/currentThread) (new-class-loader))
                            %)]
      (with-class-loader loader #(a/pipeline-fn 2 to replace-loader (async/to-chan! (range 50))))
      (is (= #{loader} (set (all to)))))))

(deftest items-have-the-scoped-values-of-the-caller
  (each-kind start
    (if (<= 25 (.feature (Runtime/version)))
      (let [k (ScopedValue/newInstance), to (async/chan 9)
            start! #(start 2 to (fn [_] (.orElse ^ScopedValue k :unbound)) (full [1 2 3])
                           {:scoped-values [k]})]
        (.run ^ScopedValue$Carrier (ScopedValue/where k :callers) start!)
        (is (= [:callers :callers :callers] (all to))))
      (is (thrown-with-msg? clojure.lang.ExceptionInfo #"on JDK 25 or newer"
            (start 2 (async/chan 9) inc (full [1]) {:scoped-values [:any]}))))))

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
               (testing "a port that cannot be closed"
                 (let [put-only (reify impl/WritePort (put! [_ _ _] (volatile! true)))]
                   (doseq [options [{} {:close? false}]]
                     (is (= :thrum/invalid (refused #(start 2 put-only inc from options)))))))
               (is (= :thrum/invalid (refused #(start 2 to inc [1 2 3] {})))))
    (is (= :thrum/invalid (refused #(a/pipeline-fn 2 to 3 from))))
    (is (= :thrum/invalid (refused #(a/pipeline-blocking 2 to (map inc) from true 3))))
    (testing "no options without braces, whose :close? would close"
      (is (= :thrum/invalid (refused #(a/pipeline-blocking 2 to (map inc) from :close? false)))))
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
