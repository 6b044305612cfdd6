(ns thrum.executor-test
  "with-executor and future-via: every task has ended when the form does, and other people's pools
  stay clean."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.task :as task]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent Callable CompletableFuture Executor ExecutorService Executors Future RejectedExecutionException TimeUnit)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:dynamic *tenant* :nobody)

(deftest it-returns-the-value-after-all-tasks-have-ended
  (let [gate (promise), trail (atom [])]
    (is (= :body
           (t/with-executor [exe]
             (t/future-via [exe] (deref gate 10000 :late) (swap! trail conj :task))
             (swap! trail conj :body)
             (deliver gate :go)
             :body)))
    (is (= [:body :task] @trail))))

(deftest each-task-has-a-virtual-thread-of-its-own
  (let [threads (t/with-executor [exe]
                  (mapv deref (doall (repeatedly 5 #(t/future-via [exe] (Thread/currentThread))))))]
    (is (= 5 (count (set (map #(.getName ^Thread %) threads)))))
    (is (every? #(.isVirtual ^Thread %) threads))
    (is (every? #(re-matches #"executor-\d+/\d+" (.getName ^Thread %)) threads))))

(deftest on-exit-cancel-cancels-what-runs
  (let [running (promise), ended (promise)
        task (t/with-executor [exe {:on-exit :cancel}]
               (let [task (t/future-via [exe]
                            (deliver running true)
                            (try (Thread/sleep 60000) (finally (deliver ended true))))]
                 @running
                 task))]
    (is (realized? ended))
    (is (future-cancelled? task))))

(deftest a-throwing-body-cancels-joins-and-rethrows
  (let [failure (ex-info "body" {})
        running (promise)
        ended (promise)
        task (promise)]
    (is (identical? failure
                    (thrown (t/with-executor [exe]
                                             (deliver task
                                                      (t/future-via [exe]
                                                                    (deliver running true)
                                                                    (try
                                                                      (Thread/sleep 60000)
                                                                      (finally
                                                                        (deliver ended true)))))
                                             @running
                                             (throw failure)))))
    (is (realized? ended))
    (is (future-cancelled? @task))))

(deftest an-interrupt-while-it-waits-cancels-joins-and-is-thrown
  (let [running (promise), ended (promise)
        [^Thread caller outcome]
        (gate/start "caller" #(t/with-executor [exe]
                                (t/future-via [exe]
                                  (deliver running true)
                                  (try (Thread/sleep 60000) (finally (deliver ended true))))))]
    @running
    (.interrupt caller)
    (is (instance? InterruptedException (:thrown (deref outcome 10000 :stuck))))
    (is (realized? ended))))

(deftest a-failing-task-is-no-matter-of-the-others
  (is (= [:failed 2]
         (t/with-executor [exe]
           (let [a (t/future-via [exe] (throw (ex-info "a" {})))
                 b (t/future-via [exe] 2)]
             [(if (thrown @a) :failed :done) @b])))))

(deftest it-is-an-executor-service-for-java-too
  (let [leaked (promise)]
    (t/with-executor
      [exe]
      (deliver leaked exe)
      (is (instance? ExecutorService exe))
      (is (= [1 2]
             (mapv #(.get ^Future %) (.invokeAll exe [^Callable (fn [] 1) ^Callable (fn [] 2)]))))
      (is (= 1 (.invokeAny exe [^Callable (fn [] 1) ^Callable (fn [] (Thread/sleep 60000) 2)])))
      (is (not (.isShutdown exe)))
      (is (not (.awaitTermination exe 1 TimeUnit/MILLISECONDS))))
    (let [^ExecutorService exe @leaked]
      (is (.isShutdown exe))
      (is (.isTerminated exe))
      (is (.awaitTermination exe 1 TimeUnit/SECONDS))
      (is (instance? RejectedExecutionException (thrown (.execute exe (fn [])))))
      (is (instance? RejectedExecutionException (thrown (t/future-via [exe] 1)))))))

(deftest a-submitted-future-of-java-is-cancelled-too
  (let [running (promise)
        submitted (t/with-executor [exe {:on-exit :cancel}]
                    (let [^Callable work (fn [] (deliver running true) (Thread/sleep 60000))
                          f (.submit exe work)]
                      @running
                      f))]
    (is (future-cancelled? submitted))))

(deftest a-completable-future-is-interrupted-too
  (let [running (promise), ended (promise)]
    (t/with-executor [exe {:on-exit :cancel}]
      (CompletableFuture/runAsync
        (fn [] (deliver running true) (try (Thread/sleep 60000) (finally (deliver ended true))))
        exe)
      @running)
    (is (realized? ended))))

(deftest a-failure-that-nobody-can-ask-for-is-reported
  (let [seen (promise), failure (ex-info "unseen" {})]
    (t/with-executor [exe]
      (.execute exe
                (fn []
                  (.setUncaughtExceptionHandler
                    (Thread/currentThread)
                    (reify Thread$UncaughtExceptionHandler
                      (uncaughtException [_ _ t] (deliver seen t))))
                  (throw failure))))
    (is (identical? failure (deref seen 10000 :lost)))
    (is (instance? NullPointerException (thrown (t/with-executor [exe] (.execute exe nil)))))))

(deftest closing-it-by-hand-is-fine
  (is (= 1 (t/with-executor [exe]
             (let [task (t/future-via [exe] 1)]
               (.close exe)
               (is (.isTerminated exe))
               @task)))))

(deftest misuse-is-answered-at-the-call
  (is (= {:type :thrum/invalid, :option :on-exit}
         (select-keys (ex-data (thrown (t/with-executor [_exe {:on-exit :stay}] 1)))
                      [:type :option])))
  (is (= :thrum/invalid (:type (ex-data (thrown (t/future-via [:not-an-executor] 1)))))))

(deftest on-a-foreign-pool-it-runs-there
  (with-open [pool (Executors/newSingleThreadExecutor)]
    (binding [*tenant* :acme]
      (let [task (t/future-via [pool] [*tenant* (.isVirtual (Thread/currentThread))])]
        (is (= [:acme false] @task))))
    (testing "and leaves the worker's bindings as they were"
      (is (= :nobody (.get (.submit pool ^Callable (fn [] *tenant*))))))))

(deftest on-a-foreign-pool-it-leaves-no-interrupt-behind
  (with-open [pool (Executors/newSingleThreadExecutor)]
    (dotimes [_ 200]
      (let [running (promise)
            task (t/future-via [pool]
                               (deliver running true)
                               (while (not (.isInterrupted (Thread/currentThread)))))]
        @running
        (is (future-cancel task))
        (is (false? (.get (.submit pool
                                   ^Callable (fn [] (.isInterrupted (Thread/currentThread)))))))))))

(deftest on-the-calling-thread-it-gives-everything-back
  (let [here (reify Executor (execute [_ work] (.run work)))]
    (binding [*tenant* :acme]
      (is (= :acme @(t/future-via [here] *tenant*)))
      (is (= :acme *tenant*)))))

;; The wrap

(def ^:dynamic ^:private *seen* nil)

(defn- wrap [seen]
  (fn [thunk]
    #(binding [*seen* seen] (thunk))))

(deftest every-task-is-wrapped-those-of-submit-too
  (binding [t/*wrap* (wrap :here)]
    (is (= [:here :here :here]
           (t/with-executor [exe]
             (let [executed (promise)]
               (.execute ^Executor exe #(deliver executed *seen*))
               [(.get (.submit exe ^Callable (fn [] *seen*)))
                @(t/future-via [exe] *seen*)
                (deref executed 5000 :late)]))))
    (is (= :here (t/abandon-on-interrupt (fn []) *seen*)))))

(deftest a-wrong-wrap-is-no-executor-that-was-shut-down
  (t/with-executor [exe]
    (binding [t/*wrap* (constantly nil)]
      (is (re-find #"^The :wrap returned nil" (ex-message (thrown (t/future-via [exe] 1))))))))

(deftest a-wrapped-future-is-cancelled-with-its-task
  (let [running (promise)]
    (binding [t/*wrap* (wrap :here)]
      (is (= [true true]
             (t/with-executor [exe]
               (let [sleep #(do
                              (deliver running true)
                              (Thread/sleep 10000))
                     future (.submit exe ^Runnable sleep)]
                 (deref running 5000 nil)
                 (.shutdownNow exe)
                 [(.isCancelled future) (.isDone future)])))))))

(deftest a-start-that-fails-while-others-shut-down-keeps-nobody-waiting
  (t/with-executor [exe]
    (let [failure (OutOfMemoryError. "no thread")]
      (with-redefs [task/start! (fn [_ _]
                                  (.shutdown ^ExecutorService exe)
                                  (throw failure))]
        (is (identical? failure (thrown (.execute ^ExecutorService exe (fn []))))))
      (is (.awaitTermination ^ExecutorService exe 5 TimeUnit/SECONDS)))))

(deftest a-pool-that-runs-a-task-again-runs-nothing
  (let [task-of-pool (promise)
        pool (reify Executor (execute [_ f] (deliver task-of-pool f) (.run f)))]
    (is (= 42 @(t/future-via [pool] (.run ^Runnable @task-of-pool) 42)))))
