(ns thrum.spi-test
  "The spi: attachments, tasks without a callback, and fan-outs that are polled."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.jdk :as jdk]
   [thrum.spi :as spi]
   [thrum.spi.fan-out :as fan-out]
   [thrum.spi.watch :as watch]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.uncaught :as uncaught]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent Future)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- attach!
  "Attaches something that ends at its cancel, and is then among cancelled."
  [k cancelled]
  (let [attachment (promise)]
    (deliver attachment
             (spi/attach! #(do (swap! cancelled conj k) (spi/detach! @attachment))))))

(deftest an-attachment-that-is-detached-twice-takes-no-other-child-out
  (let [cancelled (atom #{})]
    (t/with-scope [_]
      (let [attachment @(attach! :twice cancelled)]
        (attach! :first cancelled)
        (attach! :second cancelled)
        (spi/detach! attachment)
        (spi/detach! attachment)))
    (is (= #{:first :second} @cancelled))))

(deftest what-is-attached-to-no-scope-can-be-detached
  (let [attachment (spi/attach! (fn []))]
    (is (nil? attachment))
    (is (nil? (spi/detach! attachment)))))

(deftest a-cancel-that-throws-keeps-no-other-child-running
  (let [e (ex-info "x" {}), uncaught (promise), fork (promise)
        canceller (fn [scope]
                    (doto (Thread. #(t/cancel! scope))
                      (.setUncaughtExceptionHandler
                        (reify
                          Thread$UncaughtExceptionHandler
                          (uncaughtException [_ _ t] (deliver uncaught t))))))]
    (is (= :interrupted
           (t/with-scope [s]
             (let [attachment (spi/attach! #(throw e))]
               (deliver fork (t/fork s (Thread/sleep 5000)))
               (.start ^Thread (canceller s))
               (try
                 (Thread/sleep 5000)
                 (catch InterruptedException _ :interrupted)
                 (finally (spi/detach! attachment)))))))
    (is (t/cancelled? @fork))
    (is (identical? e (deref uncaught 0 :nothing)))))

(deftest a-task-without-an-end-callback-ends
  (let [uncaught (atom [])]
    (uncaught/reporting
      (fn [_ t] (swap! uncaught conj t))
      (fn []
        (is (= 1 @(spi/start! {:name "started"} (fn [] 1))))
        (is (= 2 (t/with-scope [_] @(spi/start-in-scope! {:name "started"} (fn [] 2)))))
        (is (= 3 (t/with-scope [s] @(spi/fork! s {:name "started"} (fn [] 3)))))
        (is (gate/eventually 10000 #(empty? (leak/threads))))))
    (is (= [] @uncaught))))

(deftest an-end-that-throws-keeps-no-scope-open
  (let [reported (promise), e (ex-info "no" {})]
    (uncaught/reporting
      (fn [_ t] (deliver reported t))
      (fn []
        (is (= :value
               (gate/in-time 5000
                 #(t/with-scope [_]
                    (spi/start-in-scope! {:name "ends", :on-end (fn [_] (throw e))} (fn []))
                    :value))))
        (is (identical? e (deref reported 5000 :late)))))))

(deftest what-is-called-at-the-end-of-a-cancelled-task-is-not-interrupted
  (let [running (promise), release (promise), at-end (promise), gate (promise), seen (promise)
        on-end (fn [_]
                 (deliver at-end true)
                 (deliver seen (try
                                 [(deref gate 10000 :late) (Thread/interrupted)]
                                 (catch InterruptedException _ :interrupted))))]
    (t/with-scope [s]
      (let [task (spi/fork! s {:name "cancelled", :on-end on-end}
                   (fn []
                     ;; It has a record of its interrupts.
                     (t/with-scope [_])
                     (deliver running true)
                     (deref release 10000 :late)))]
        @running
        (is (.cancel ^Future task false))
        (deliver release :go)
        @at-end
        (t/cancel! task)
        (deliver gate :go)))
    (is (= [:go false] (deref seen 10000 :late)))))

(deftest a-failure-is-known-before-the-task-has-ended
  (let [task (promise), ended? (promise)]
    (deliver task (spi/start-in-scope! {:name "fails"
                                        :on-failed (fn [_] (deliver ended? (future-done? @task)))}
                                       #(throw (ex-info "no" {:task @task}))))
    (is (= false (deref ended? 5000 :late)))))

(deftest what-an-uncaught-exception-handler-throws-is-dropped
  (let [seen (promise), returned (promise)]
    (doto (Thread. #(deliver returned
                             (try
                               (spi/uncaught! (ex-info "no" {}))
                               (catch Throwable t t))))
      (.setUncaughtExceptionHandler
        (reify
          Thread$UncaughtExceptionHandler
          (uncaughtException [_ _ t] (deliver seen t) (throw (Error. "worse")))))
      (.start))
    (is (nil? (deref returned 5000 :late)))
    (is (= "no" (ex-message (deref seen 5000 nil))))))

(deftest a-reporter-hands-on-what-is-new-and-after-a-minute-what-is-not
  (let [seen (atom [])]
    (uncaught/reporting
      (fn [_ t] (swap! seen conj (class t)))
      (fn []
        (let [report! (spi/reporter)]
          (run! report! [(Error.) (Error.) (Exception.) (Exception.) (Error.)])
          (is (= [Error Exception Error] @seen))
          (with-redefs [spi/again-ns -1]
            (report! (Error.)))
          (is (= [Error Exception Error Error] @seen)))))))

(def ^:private inherited (InheritableThreadLocal.))

(deftest a-clean-thread-inherits-nothing
  (let [here (Thread/currentThread), loader (.getContextClassLoader here), seen (promise)
        other (clojure.lang.DynamicClassLoader. loader)
        see #(deliver % [(.get ^ThreadLocal inherited)
                         (.getContextClassLoader (Thread/currentThread))])
        seen-too (promise)]
    (try
      (.set ^ThreadLocal inherited :ours)
      (.setContextClassLoader here other)
      (.start (spi/clean-thread "clean" #(see seen)))
      (.start (.newThread (spi/clean-threads "clean") #(see seen-too)))
      (is (= [nil (ClassLoader/getSystemClassLoader)]
             (deref seen 5000 nil)
             (deref seen-too 5000 nil)))
      (finally
        (.setContextClassLoader here loader)
        (.remove ^ThreadLocal inherited)))))

(deftest the-spare-descriptors-are-those-that-are-free-less-a-reserve
  (doseq [[open most-open spare] [[10 100 74] [100 1000 800] [990 1000 1] [1 1000000 4096]]]
    (with-redefs [jdk/file-descriptors (constantly {:open open, :max most-open})]
      (is (= spare (spi/spare-descriptors 4096)))))
  (with-redefs [jdk/file-descriptors (constantly nil)]
    (is (= 4096 (spi/spare-descriptors 4096)))))

(deftest who-works-for-a-scope-is-known
  (t/with-scope [s]
    (let [works #(spi/works-for? s)]
      (is (= [true true] [(works) @(t/fork s (works))]))
      (is (true? (t/with-scope [inner] @(t/fork inner (works)))))
      (is (false? @(t/future (works)))))))

(defn- polled
  "Returns [values end]: what a fan-out hands over, and true when it is idle, or what it throws."
  [fan-out]
  (let [values (atom [])
        poll-all! #(while (fan-out/poll! fan-out (partial swap! values conj)))
        end (try
              (gate/eventually 5000 #(do (poll-all!) (fan-out/idle? fan-out)))
              (catch Exception e e))]
    [@values end]))

(defn- of-threes [& thunks]
  (let [fan-out (fan-out/fan-out
                  {:order :ordered, :name "polled", :limit 2, :window 12, :batch 3})]
    (run! #(fan-out/launch! fan-out %) thunks)
    fan-out))

(deftest a-fan-out-with-batches-can-be-polled
  (let [fan-out (of-threes (fn [] 0) (fn [] nil) (fn [] 2) (fn [] 3))
        started #(:started (watch/facts fan-out))]
    (is (= 1 (started)) "the fourth waits for others")
    (fan-out/exhaust! fan-out)
    (is (= 2 (started)))
    (is (= [[0 nil 2 3] true] (polled fan-out))))
  (let [e (ex-info "x" {}), fan-out (of-threes (fn [] 0) (fn [] (throw e)) (fn [] 2))]
    (fan-out/exhaust! fan-out)
    (is (= [[0] e] (polled fan-out)))))

(deftest a-launch-after-a-failure-throws-the-failure
  (let [e (ex-info "x" {})
        ended (promise)
        fan-out (fan-out/fan-out {:order :as-completed
                                  :name "polled"
                                  :limit 2
                                  :window 2
                                  :on-ended (partial deliver ended)})]
    (fan-out/launch! fan-out #(throw e))
    (is (deref ended 5000 nil))
    (is (identical? e (thrown (fan-out/launch! fan-out (fn [] 2)))))
    (is (identical? e (thrown (fan-out/poll! fan-out identity))))))
