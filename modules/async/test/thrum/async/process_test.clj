(ns thrum.async.process-test
  "Threads that deliver through channels, processes of a scope, and the bridges between channels and
  tasks."
  (:require
   [clojure.core.async :as async]
   [clojure.core.async.impl.protocols :as impl]
   [clojure.pprint :as pprint]
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.async :as a]
   [thrum.async.impl.process :as process]
   [thrum.async.pipes :refer [all]]
   [thrum.core :as t]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.uncaught :as uncaught])
  (:import
   (clojure.core.async.impl.channels ManyToManyChannel)
   (java.util.concurrent CancellationException CompletableFuture CountDownLatch TimeUnit)
   (java.util.concurrent.locks Lock)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- thrown-by [f]
  (try (f) :nothing (catch Throwable t t)))

(defn- refused [f]
  (:type (ex-data (thrown-by f))))

;; What is carried

(def ^:private ^ThreadLocal here (ThreadLocal.))

(defn- carry
  "A wrap that carries what is here, as those of logs and traces do."
  [thunk]
  (let [there (.get here)]
    (fn []
      (.set here there)
      (try (thunk) (finally (.remove here))))))

(defn- in-tasks
  "Returns what the tasks of each form have here."
  []
  (let [look (fn [_] (str (.get here)))
        af (fn [_ out] (async/put! out (look 1)) (async/close! out))
        through (fn [pipeline f]
                  (let [out (async/chan 3)]
                    (pipeline 2 out f (async/to-chan! [1 2 3]))
                    (all out)))]
    {:blocking (through a/pipeline-blocking (map look))
     :async (through a/pipeline-async af)
     :fn (through a/pipeline-fn look)
     :unordered (through a/upipeline (map look))
     :pmap (all (a/pmap->chan 2 look [1 2 3]))
     :thread [(a/<!! (a/thread (look 1)))]
     :process (t/with-scope [s] [(a/<!! (a/process s (look 1)))])}))

(deftest what-the-caller-has-is-in-every-task
  (.set here "the caller's")
  (try
    (let [seen (binding [t/*wrap* carry] (in-tasks))]
      (is (= [3 3 3 3 3 1 1]
             (map (comp count seen) [:blocking :async :fn :unordered :pmap :thread :process])))
      (is (= #{"the caller's"} (into #{} (mapcat val) seen)) (pr-str seen)))
    (is (= "the caller's" (.get here)))
    (finally (.remove here))))

(deftest a-pipelines-wrap-is-called-once
  (let [calls (atom 0), wrap (fn [thunk] (swap! calls inc) thunk), out (async/chan 3)]
    (a/pipeline-fn 2 out inc (async/to-chan! [1 2 3]) {:wrap wrap})
    (is (= [2 3 4] (all out)))
    (is (= 1 @calls)))
  (is (= :thrum/invalid
         (refused #(a/pipeline-fn 1 (async/chan) inc (async/chan) {:wrap (constantly nil)})))))

;; thread

(deftest a-thread-delivers-its-value-and-closes
  (let [ch (a/thread 1)]
    (is (= [1 nil nil] [(a/<?!! ch) (a/<?!! ch) (a/<!! ch)])))
  (is (= [[] [false]] [(all (a/thread nil)) (all (a/thread false))]))
  (is (re-matches #"poll-\d+"
                  (a/<!! (a/thread {:name "poll"} (.getName (Thread/currentThread)))))))

(deftest a-thread-delivers-its-failure
  (let [e (ex-info "x" {})]
    (is (identical? e (a/<!! (a/thread (throw e)))))
    (is (identical? e (thrown-by #(a/<?!! (a/thread (throw e))))))
    (is (instance? StackOverflowError (a/<!! (a/thread ((fn f [x] (inc (long (f x)))) 1)))))))

(def ^:dynamic *who* :nobody)

(deftest a-thread-has-a-name-and-the-callers-bindings
  (let [facts (fn [] [(.getName (Thread/currentThread)) (.isVirtual (Thread/currentThread)) *who*])
        [[name-1 & more] [name-2]] (binding [*who* :me]
                                     [(a/<!! (a/thread-call facts)) (a/<!! (a/thread (facts)))])]
    (is (= [true :me] more))
    (is (every? #(re-matches #"async-\d+" %) [name-1 name-2]))
    (is (not= name-1 name-2))
    (let [[thread-name & others] (a/<!! (a/thread-call {:name "mine"} facts))]
      (is (re-matches #"mine-\d+" thread-name))
      (is (= [true :nobody] others)))
    (is (= [:wrapped] (binding [t/*wrap* (fn [_] (fn [] [:wrapped]))] (a/<!! (a/thread 1)))))))

(deftest a-thread-belongs-to-no-scope
  (let [gate (promise), ch (t/with-scope [_] (a/thread (deref gate 5000 :late)))]
    (deliver gate :outlived)
    (is (= :outlived (a/<!! ch)))))

(deftest wrong-arguments-of-a-thread-throw
  (is (= :thrum/invalid (refused #(a/thread-call 1))))
  (is (= :thrum/invalid (refused #(a/thread-call {:nome "x"} inc)))))

;; process

(deftest a-process-lives-as-long-as-the-body
  (let [in (async/chan), out (async/chan), ended (promise)]
    (t/with-scope [s]
      (let [done (a/process s {:closes [out], :name "adder"}
                   (try (loop [] (when-some [v (a/<!! in)] (a/>!! out (inc (long v))) (recur)))
                        (finally (deliver ended (.getName (Thread/currentThread))))))]
        (is (true? (a/>!! in 1)))
        (is (= 2 (a/<!! out)))
        (is (nil? (async/poll! done)))))
    (is (re-matches #"scope-\d+/adder-0" (deref ended 0 "not ended")) "joined")
    (is (impl/closed? out))
    (is (empty? (.-takes ^ManyToManyChannel in)))))

(deftest a-process-that-ends-delivers-and-closes
  (let [out (async/chan 10)]
    (t/with-scope [s]
      (is (= [:v] (all (a/process s {:closes [out]} (a/>!! out 1) :v))))
      (is (= [1] (all out)))
      (is (= [] (all (a/process s nil)))))))

(deftest a-process-that-fails-cancels-the-scope
  (let [e (ex-info "x" {}), delivered (promise), never (async/chan)]
    (is (identical? e (thrown-by #(t/with-scope [s]
                                    (deliver delivered (a/process s {:closes [never]} (throw e)))
                                    (a/<!! (async/chan))))))
    (is (identical? e (a/<!! @delivered)))
    (is (impl/closed? never))))

;; The last channel of :closes keeps the process until the reader of the first has its end.
(deftest a-process-that-fails-cancels-the-scope-before-it-closes-its-channels
  (let [e (ex-info "x" {}), out (async/chan 1), seen (promise)
        waiting (reify
                  impl/Channel
                  (closed? [_] false)
                  (close! [_] (deref seen 5000 :late)))]
    (is (identical? e (thrown-by #(t/with-scope [s]
                                    (a/process s {:closes [out waiting]} (a/>!! out 1) (throw e))
                                    (try
                                      (deliver seen (into [] (a/chan->reducible out)))
                                      (finally (deliver seen :thrown)))))))
    (is (= :thrown (deref seen 5000 :late)))
    (is (impl/closed? out))))

(deftest a-process-that-is-cancelled-before-it-begins-closes-its-channels
  (dotimes [_ 100]
    (let [out (async/chan), done (promise)]
      (is (thrown? CancellationException
            (t/with-scope [s]
              (deliver done (a/process s {:closes [out]} (a/<!! (async/chan))))
              (t/cancel! s)
              (a/<!! (async/chan)))))
      (is (impl/closed? out))
      (is (= [] (all @done))))))

(deftest a-channel-that-cannot-be-closed-keeps-no-other-open
  (let [stuck (reify
                impl/Channel
                (closed? [_] false)
                (close! [_] (throw (ex-info "no end" {}))))
        other (async/chan)]
    (uncaught/reporting (fn [_ _])
                        (fn []
                          (is (= [:v] (t/with-scope [s]
                                        (all (a/process s {:closes [stuck other]} :v)))))))
    (is (impl/closed? other))))

(deftest all-channels-are-closed-though-some-throw
  (let [failures (mapv #(ex-info (str "no end " %) {}) (range 2))
        stuck (mapv #(reify
                       impl/Channel
                       (closed? [_] false)
                       (close! [_] (throw %)))
                    failures)
        others (vec (repeatedly 20000 async/chan))
        reported (promise)]
    (uncaught/reporting (fn [_ t] (deliver reported t))
                        (fn []
                          (is (= [:v] (t/with-scope [s]
                                        (all (a/process s {:closes (into stuck others)} :v)))))
                          (is (identical? (first failures) (deref reported 5000 :late)))))
    (is (every? impl/closed? others))
    (is (= (rest failures) (vec (.getSuppressed ^Throwable (first failures))))))
  (testing "the same throwable"
    (let [failure (ex-info "no end" {}), reported (promise)
          stuck (reify
                  impl/Channel
                  (closed? [_] false)
                  (close! [_] (throw failure)))]
      (uncaught/reporting (fn [_ t] (deliver reported t))
                          (fn []
                            (t/with-scope [s] (all (a/process s {:closes [stuck stuck]} :v)))
                            (is (identical? failure (deref reported 5000 :late))))))))

(deftest wrong-arguments-of-a-process-throw
  (is (= :thrum/invalid (refused #(a/process :no-scope 1))))
  (t/with-scope [s]
    (is (= :thrum/invalid (refused #(a/process s {:closes 1} 1))))
    (is (= :thrum/invalid (refused #(a/process s {:closes [1]} 1))))
    (is (= :thrum/invalid (refused #(a/process s {:daemon? true} 1))))
    (is (= {:a 1} (a/<!! (a/process s {:a 1}))) "a map alone is a body"))
  (is (= :thrum/closed (refused #(a/process (t/with-scope [s] s) 1)))))

(deftest processes-in-a-row-drain-when-the-body-waits-for-the-last
  (let [n 500]
    (t/with-scope [s]
      (let [chans (vec (repeatedly 4 async/chan))]
        (doseq [[in out] (map vector chans (rest chans))]
          (a/process s {:closes [out]} (run! #(a/>!! out (inc (long %))) (a/chan->reducible in))))
        (a/process s {:closes [(first chans)]} (dotimes [i n] (a/>!! (first chans) i)))
        (is (= (range 3 (+ 3 n)) (all (peek chans))))))))

;; Bridges

(deftest pmap-goes-into-a-channel
  (is (= (range 1 21) (all (a/pmap->chan 4 inc (range 20)))))
  (is (= [] (all (a/pmap->chan 4 inc []))))
  (is (= [1 3 false]
         (all (a/pmap->chan {:limit 2, :window 3}
                            #(if (number? %) (when (odd? (long %)) %) %)
                            [1 2 3 false]))))
  (testing "a failure comes last"
    (let [[a b e & more] (all (a/pmap->chan 2 #(/ 6 (long %)) [1 2 0 3]))]
      (is (= [6 3 nil] [a b more]))
      (is (instance? ArithmeticException e))))
  (is (= :thrum/invalid (refused #(a/pmap->chan 0 inc [1]))))
  (is (= :thrum/invalid (refused #(a/pmap->chan 1 2 [1])))))

(deftest closing-the-channel-ends-the-pmap
  (let [gate (promise), running (CountDownLatch. 1), interrupted (CountDownLatch. 1)
        sleeper #(try (.countDown running) (Thread/sleep 60000) (finally (.countDown interrupted)))
        ch (a/pmap->chan 2 #(if (zero? (long %)) (deref gate 5000 :late) (sleeper)) (range 9))]
    (is (.await running 5 TimeUnit/SECONDS))
    (async/close! ch)
    (deliver gate :first)
    (is (.await interrupted 5 TimeUnit/SECONDS))))

(deftest closing-the-channel-interrupts-what-runs-without-waiting-for-a-result
  (let [running (CountDownLatch. 2), interrupted (CountDownLatch. 2)
        sleeper (fn [_]
                  (try
                    (.countDown running)
                    (Thread/sleep 60000)
                    (finally (.countDown interrupted))))
        ch (a/pmap->chan 2 sleeper (range 9))]
    (is (.await running 5 TimeUnit/SECONDS))
    (async/close! ch)
    (is (.await interrupted 5 TimeUnit/SECONDS))))

(deftest closing-the-channel-ends-the-reading-of-its-source-also-where-no-thread-can-be-started
  (let [reading (promise), interrupted (promise)
        source (lazy-seq
                 (try
                   (deliver reading true)
                   (Thread/sleep 60000)
                   (finally (deliver interrupted true))))
        ch (a/pmap->chan 1 inc source)]
    (is (true? (deref reading 5000 :late)))
    (with-redefs [spi/clean-thread
                  (fn [_ _] (throw (OutOfMemoryError. "unable to create native thread")))]
      (async/close! ch)
      (is (true? (deref interrupted 5000 :late))))))

(deftest closing-the-full-channel-ends-the-pmap
  (doseq [limit [1 3]]
    (let [ch (a/pmap->chan limit identity (range 100))]
      (is (gate/eventually 5000 #(seq (.-puts ^ManyToManyChannel ch))))
      (is (seq (leak/threads)) "its put waits")
      (async/close! ch)
      (is (gate/eventually 5000 #(empty? (leak/threads))))
      (is (= (range limit) (all ch)) "what was in the channel can be taken"))))

(deftest a-scopes-end-ends-the-pmap-that-goes-into-a-channel
  (let [running (CountDownLatch. 2)
        ch (t/with-scope [_]
             (let [ch (a/pmap->chan 2 (fn [_] (.countDown running) (Thread/sleep 60000)) (range 9))]
               (is (.await running 5 TimeUnit/SECONDS))
               ch))]
    (is (impl/closed? ch))))

(deftest a-failure-that-comes-during-a-cancel-goes-into-the-channel
  (let [e (ex-info "x" {}), running (promise), channel (async/chan 1)
        work #(try
                (deliver running true)
                (Thread/sleep 60000)
                (catch InterruptedException _ (throw e)))]
    (is (thrown? CancellationException
          (t/with-scope [s]
            (process/in-current-scope "work" channel work)
            (is (true? (deref running 5000 :late)))
            (t/cancel! s)
            (t/checkpoint))))
    (is (= [e] (all channel)))))

(deftest a-task-goes-into-a-channel
  (let [e (ex-info "x" {})]
    (is (= [[1] [] [e]]
           (mapv #(all (a/task->chan %)) [(t/future 1) (t/future nil) (t/future (throw e))])))
    (is (= [[2] [e]]
           (mapv #(all (a/task->chan %)) [(future 2) (CompletableFuture/failedFuture e)])))
    (let [task (t/future (Thread/sleep 60000))
          ch (a/task->chan task)]
      (future-cancel task)
      (is (instance? CancellationException (a/<!! ch))))
    (is (= :thrum/invalid (refused #(a/task->chan 1))))))

(deftest a-channel-becomes-a-future
  (let [e (ex-info "x" {}), ch (async/to-chan! [1 e])]
    (is (= 1 @(a/chan->future ch)))
    (is (identical? e (ex-cause (thrown-by #(deref (a/chan->future ch))))))
    (is (nil? @(a/chan->future ch)))
    (is (future? (a/chan->future ch)))
    (let [failed (a/chan->future (async/to-chan! [e]))]
      (thrown-by #(deref failed))
      ;; As a load of Thrum does behind that of the pretty printer.
      (spi/pretty-as-printed! (class failed))
      (is (str/includes? (with-out-str (pprint/pprint failed)) ":failed")))
    (testing "which is no task, and is not called one"
      (is (= :thrum/invalid (refused #(t/value (a/chan->future ch)))))
      (is (nil? (ns-resolve 'thrum.async 'chan->task))))
    (is (= :thrum/invalid (refused #(a/chan->future 1)))))
  (let [ch (async/chan), task (a/chan->future ch)]
    (is (= [false false :late] [(realized? task) (future-done? task) (deref task 1 :late)]))
    (is (empty? (leak/threads)) "no thread waits")
    (is (true? (async/offer! ch 1)))
    (is (= [1 false false] [@task (future-cancel task) (future-cancelled? task)]))))

(deftest what-is-committed-cannot-be-cancelled-any-more
  (let [callback (promise)
        port (reify
               impl/ReadPort
               (take! [_ handler]
                 (.lock ^Lock handler)
                 (deliver callback (impl/commit handler))
                 (.unlock ^Lock handler)
                 nil))
        task (a/chan->future port)]
    (is (false? (future-cancel task)))
    (@callback :v)
    (is (= [:v false] [(deref task 5000 :late) (future-cancelled? task)]))))

(deftest no-value-is-lost-to-a-cancelled-chan->future
  (dotimes [i 5000]
    (let [ch (async/chan 1)
          task (a/chan->future ch)
          together (CountDownLatch. 1)
          put (future (.await together) (async/put! ch i))]
      (.countDown together)
      (let [cancelled (future-cancel task)]
        @put
        (if cancelled
          (is (= [i true true]
                 [(async/poll! ch) (future-cancelled? task)
                  (instance? CancellationException (thrown-by #(deref task)))]))
          (is (= i (deref task 5000 :late))))))))
