(ns thrum.bridge-test
  "Tasks and CompletableFutures: each ends as the other does. Tasks and scopes as data."
  (:require
   [clojure.datafy :refer [datafy]]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.jdk :as jdk]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (clojure.lang IExceptionInfo)
   (java.util.concurrent CancellationException CompletableFuture CompletionException ExecutionException Future TimeUnit)
   (java.util.function Function)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- joined [^CompletableFuture future]
  (.join (.orTimeout future 5 TimeUnit/SECONDS)))

(deftest a-future-ends-as-its-task
  (doseq [v [1 nil false]]
    (is (= v (joined (t/->completable-future (t/future v))))))
  (let [ended (t/future 1)]
    (t/value ended)
    (is (= 1 (joined (t/->completable-future ended)))))
  (doseq [failure [(ex-info "no" {}) (AssertionError. "no")]]
    (let [e (thrown (joined (t/->completable-future (t/future (throw failure)))))]
      (is (instance? CompletionException e))
      (is (identical? failure (ex-cause e))))))

(deftest a-cancelled-task-cancels-its-future
  (let [gate (promise), task (t/future @gate)
        future (t/->completable-future task)]
    (t/cancel! task :enough)
    (let [e (thrown (joined future))]
      (is (instance? CancellationException e))
      ;; Newer JDKs wrap it in one of their own.
      (is (= [:thrum/cancelled :enough]
             ((juxt :type :reason) (some ex-data [e (ex-cause e)])))))
    (is (.isCancelled ^CompletableFuture future))))

(deftest a-cancelled-future-cancels-its-task
  (let [running (promise), ended (promise)
        task (t/future (try
                         (deliver running true)
                         (Thread/sleep 60000)
                         (finally (deliver ended true))))
        ^CompletableFuture future (t/->completable-future task)]
    (is (deref running 5000 nil))
    (is (.cancel future true))
    (is (deref ended 5000 nil))
    (is (t/cancelled? task))))

(deftest a-future-sends-no-interrupt-that-its-tasks-cancel-did-not-send
  (let [running (promise), gate (promise), ended (promise)
        task (t/future
               (deliver running true)
               (deliver ended (try
                                (deref gate 10000 :late)
                                (catch InterruptedException _ :interrupted))))
        future (t/->completable-future task)]
    @running
    (is (.cancel ^Future task false))
    (is (instance? CancellationException (thrown (joined future))))
    (is (not (gate/eventually 50 #(realized? ended))))
    (deliver gate :go)
    (is (= :go (deref ended 10000 :late)))))

(deftest what-depends-on-a-future-runs-outside-of-the-task
  (let [gate (promise), name-of (fn [_] (.getName (Thread/currentThread)))
        scope-of (fn [_] (t/remaining-ms))
        [a b] (t/with-timeout 60000
                (t/with-scope [s]
                  (let [future (t/->completable-future (t/fork s (deref gate 5000 nil)))
                        results (mapv #(.thenApply ^CompletableFuture future
                                                   (reify Function (apply [_ x] (% x))))
                                      [name-of scope-of])]
                    (deliver gate true)
                    (mapv joined results))))]
    (is (re-find #"-completion$" a))
    (is (nil? b))))

(deftest a-task-ends-as-its-stage
  (is (= 1 (t/value (t/->task (CompletableFuture/completedFuture 1)) 5000 :late)))
  (let [future (CompletableFuture.), task (t/->task future)]
    (is (= :late (t/value task 1 :late)))
    (.complete future :value)
    (is (= :value (t/value task 5000 :late))))
  (let [failure (ex-info "no" {})
        future (CompletableFuture/supplyAsync (fn [] (throw failure)))]
    (is (identical? failure (thrown (t/value (t/->task future) 5000 :late))))))

(deftest a-stages-own-execution-exception-is-its-failure
  (doseq [cause [(Exception. "no") (CancellationException.) nil]
          :let [failure (ExecutionException. "The stage waited for another" cause)]
          thrown-by [failure (CompletionException. failure)]]
    (let [task (t/->task (CompletableFuture/failedFuture thrown-by))]
      (is (not (t/cancelled? task)))
      (is (identical? failure (thrown (t/value task 5000 :late)))))))

(deftest a-cancel-of-the-task-cancels-the-stage
  (let [future (CompletableFuture.)]
    (is (t/cancel! (t/->task future)))
    (is (.isCancelled future)))
  (let [future (CompletableFuture.), task (t/->task (.minimalCompletionStage future))]
    (is (t/cancel! task))
    (is (t/cancelled? task))
    (is (not (.isDone future)) "a minimal stage cannot be cancelled")))

(deftest a-cancel-of-the-stage-cancels-the-task
  (let [future (CompletableFuture.), task (t/->task future)]
    (.cancel future true)
    (is (t/cancelled? task))
    (is (= :future-cancel (:reason (ex-data (thrown (t/value task 5000 :late)))))))
  (let [task (t/future (Thread/sleep 60000))
        there-and-back (t/->task (t/->completable-future task))]
    (t/cancel! task :enough)
    (is (= :enough (:reason (ex-data (thrown (t/value there-and-back 5000 :late))))))))

(deftest a-stage-whose-cancellation-cannot-be-read-ends-its-task-all-the-same
  (let [future (CompletableFuture.), task (t/->task future)]
    (.completeExceptionally
      future
      (proxy [CancellationException IExceptionInfo] [] (getData [] (throw (Error. "No data")))))
    (is (= :future-cancel (:reason (ex-data (thrown (t/value task 5000 :late))))))))

(deftest what-is-neither-is-refused
  (is (= :thrum/invalid (t/error-type (thrown (t/->completable-future 1)))))
  (is (= :thrum/invalid (t/error-type (thrown (t/->task (t/future 1)))))))

(deftest a-stage-that-fails-without-a-cause-is-no-value
  (let [failure (CompletionException. "no" nil)
        task (t/->task (CompletableFuture/failedFuture failure))]
    (is (identical? failure (thrown (t/value task))))))

(deftest a-future-ends-also-where-no-thread-can-be-started
  (let [gate (promise), task (t/future @gate)
        ^CompletableFuture future (t/->completable-future task)]
    (with-redefs [jdk/virtual-thread (fn [_ _] (throw (OutOfMemoryError. "no thread")))]
      (deliver gate :value)
      (is (= :value (.get future 5 TimeUnit/SECONDS))))))

(deftest tasks-and-scopes-are-data
  (let [failure (ex-info "no" {}), failed (t/future (throw failure)), done (t/future 7)]
    (thrown (t/value failed))
    (t/value done)
    (is (= {:status :done, :value 7} (dissoc (datafy done) :name)))
    (is (= {:status :failed, :error failure} (dissoc (datafy failed) :name)))
    (is (re-matches #"future-\d+" (:name (datafy done)))))
  (let [gate (promise), escaped (atom nil)]
    (t/with-scope [s {:name "cart", :timeout-ms 60000}]
      (let [fork (t/fork s (deref gate 5000 nil))]
        (reset! escaped s)
        (is (= {:status :open, :running 1, :forks [fork]}
               (select-keys (datafy s) [:status :running :forks])))
        (is (re-matches #"cart-\d+" (:name (datafy s))))
        (is (<= 0 (:remaining-ms (datafy s)) 60000))
        (is (= {:status :running} (dissoc (datafy fork) :name)))
        (t/cancel! fork :enough)
        (is (= {:status :cancelled, :cancelled :enough} (dissoc (datafy fork) :name)))
        (is (gate/eventually 5000 #(= 0 (:running (datafy s)))))))
    (is (= :ended (:status (datafy @escaped))))
    (t/with-scope [s] (is (= [[]] (t/all (:forks (datafy s))))))
    (thrown (t/with-scope [s]
              (t/cancel! s :enough)
              (is (= [:cancelled :enough] ((juxt :status :cancelled) (datafy s))))))))
