(ns thrum.deadlines-test
  "What with-timeout, with-deadline and shield promise: the work is really stopped, and cleanup
  really runs."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.alarms :as alarms]
   [thrum.core :as t]
   [thrum.impl.callers :as callers]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.timer :as timer]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.uncaught :as uncaught]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.time Instant)
   (java.util.concurrent CancellationException CountDownLatch TimeUnit)
   (java.util.concurrent.atomic AtomicReference)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- here ^Thread [] (Thread/currentThread))

(defn- type-of [e]
  (:type (ex-data e)))

(defn- timeout? [e]
  (= :thrum/timeout (type-of e)))

(defn- reason-of [e]
  (:reason (ex-data e)))

(defn- sleep-until-interrupted [ended]
  (try (Thread/sleep 60000) (finally (deliver ended true))))

;; Answers

(deftest a-body-in-time-returns-its-value
  (is (= :value (t/with-timeout 60000 :value)))
  (is (nil? (t/with-timeout 60000)))
  (is (false? (t/with-timeout [60000 :late] false)))
  (is (identical? (here) (t/with-timeout 60000 (here))))
  (is (= :value (t/with-deadline (.plusSeconds (Instant/now) 60) :value))))

(defn- until-its-deadline
  "Returns a body, for deadlines by hand, that comes to its own and is interrupted there."
  [alarms ended]
  #(do
     (alarms/ring! alarms)
     (sleep-until-interrupted ended)))

(deftest at-the-deadline-the-body-is-stopped-and-the-timeout-thrown-with-its-cause
  (alarms/by-hand
    (fn [alarms]
      (let [ended (promise), body (until-its-deadline alarms ended)
            e (thrown (t/with-timeout 20 (body)))]
        (is (timeout? e))
        (is (= 20 (:timeout-ms (ex-data e))))
        (is (re-find #"20 ms" (ex-message e)))
        (is (instance? InterruptedException (ex-cause e)))
        (is (realized? ended))
        (is (not (Thread/interrupted))))))
  (testing "which the clock reaches"
    (is (timeout? (thrown (t/with-timeout 20 (Thread/sleep 60000)))))))

(deftest a-fallback-answers-instead
  (alarms/by-hand
    (fn [alarms]
      (let [ended (promise), body (until-its-deadline alarms ended)]
        (is (= :late (t/with-timeout [20 :late] (body))))
        (is (realized? ended))
        (is (not (Thread/interrupted))))))
  (is (nil? (t/with-timeout [1 nil] (Thread/sleep 60000))))
  (is (= :late (t/with-deadline [(.plusMillis (Instant/now) 20) :late] (Thread/sleep 60000))))
  (is (not (Thread/interrupted))))

(deftest a-fallback-is-evaluated-only-when-it-is-needed-and-may-throw
  (let [evaluated (atom 0)]
    (is (= 1 (t/with-timeout [60000 (swap! evaluated inc)] 1)))
    (is (zero? @evaluated))
    (is (= "fallback"
           (ex-message (thrown (t/with-timeout [1 (throw (ex-info "fallback" {}))]
                                               (Thread/sleep 60000))))))))

(deftest no-time-at-all-never-runs-the-body
  (let [ran (atom false)]
    (is (timeout? (thrown (t/with-timeout 0 (reset! ran true)))))
    (is (= :late (t/with-timeout [0 :late] (reset! ran true))))
    (is (= :late (t/with-deadline [(.minusSeconds (Instant/now) 1) :late] (reset! ran true))))
    (is (= :late (t/with-deadline [Instant/MIN :late] (reset! ran true))))
    (is (timeout? (thrown (t/with-scope [_ {:timeout-ms 0}] (reset! ran true)))))
    (is (false? @ran))))

(deftest the-longest-time-is-a-time
  (is (= 1 (t/with-timeout Long/MAX_VALUE 1)))
  (is (= 1 (t/with-deadline Instant/MAX 1))))

(deftest a-body-that-returns-late-returns-its-value
  (alarms/by-hand
    (fn [alarms]
      (is (= :value (t/with-timeout [60000 :late]
                      (alarms/ring! alarms)
                      (is (t/cancelled?))
                      :value)))
      (is (not (Thread/interrupted))))))

(deftest a-true-failure-after-the-deadline-is-thrown
  (alarms/by-hand
    (fn [alarms]
      (let [failure (ex-info "cleanup failed" {})
            body #(try
                    (alarms/ring! alarms)
                    (Thread/sleep 60000)
                    (catch InterruptedException _ (throw failure)))]
        (is (identical? failure (thrown (t/with-timeout 60000 (body)))))
        (is (identical? failure (thrown (t/with-timeout [60000 :late] (body)))))))))

(deftest misuse-is-answered-at-the-call
  (doseq [f [#(t/with-timeout -1 1) #(t/with-timeout nil 1) #(t/with-timeout "20" 1)
             #(t/with-timeout 1.5 1) #(t/with-deadline 20 1) #(t/with-deadline nil 1)
             #(t/shield -1 1) #(t/shield nil 1)]]
    (is (= :thrum/invalid (type-of (thrown (f)))))))

;; Nesting

(deftest the-earlier-of-two-nested-ones-wins
  (is (= :outer (t/with-timeout [20 :outer] (t/with-timeout [60000 :inner] (Thread/sleep 60000)))))
  (is (= :inner (t/with-timeout [60000 :outer] (t/with-timeout [20 :inner] (Thread/sleep 60000))))))

(deftest a-fallback-answers-for-its-own-deadline-only
  (is (timeout? (thrown (t/with-timeout 20 (t/with-timeout [60000 :inner] (Thread/sleep 60000))))))
  (is (= :enough
         (reason-of (thrown (t/with-scope [s]
                              (t/cancel! s :enough)
                              (t/with-timeout [20 :inner] (Thread/sleep 60000)))))))
  (testing "an interrupt from outside is none"
    (is (instance? InterruptedException
                   (gate/in-time 10000
                                 #(thrown (t/with-timeout [60000 :inner]
                                                          (.interrupt (here))
                                                          (Thread/sleep 60000))))))))

(deftest an-outer-cancel-that-meets-an-inner-deadline-still-interrupts
  (testing "the two interrupts became one, which the inner form used up"
    (doseq [[kind within] {:fallback #(t/with-timeout [60000 :late] (%) (Thread/sleep 60000))
                           :thrown #(thrown (t/with-timeout 60000 (%) (Thread/sleep 60000)))}]
      (testing kind
        (alarms/by-hand (fn [alarms]
                          (let [trail (atom [])]
                            (is (= :enough
                                   (reason-of (thrown (t/with-scope [s]
                                                        (within #(do
                                                                   (t/cancel! s :enough)
                                                                   (alarms/ring! alarms)))
                                                        (swap! trail conj :inner-has-ended)
                                                        (try
                                                          (Thread/sleep 2000)
                                                          (catch InterruptedException e
                                                            (swap! trail conj :interrupted)
                                                            (throw e))))))))
                            (is (= [:inner-has-ended :interrupted] @trail)))))))))

;; Inheritance

(deftest what-is-started-inside-is-stopped-and-has-ended
  (doseq [[kind run] {:all #(t/all (%))
                      :race #(t/race (%))
                      :any #(t/any (%))
                      :pmapv #(t/pmapv 2 (fn [_] (%)) [1])
                      :pmap #(doall (t/pmap 2 (fn [_] (%)) [1]))
                      :fork #(t/with-scope [s] (t/fork s (%)))
                      :prun! #(t/prun! 2 (fn [_] (%)) [1])
                      :pvalues #(doall (t/pvalues (%)))}]
    (testing kind
      (alarms/by-hand
        (fn [alarms]
          (let [ended (promise)]
            (is (timeout? (thrown (t/with-timeout 60000
                                                  (run #(do
                                                          (alarms/ring! alarms)
                                                          (sleep-until-interrupted ended)))))))
            (is (realized? ended))))))))

(deftest a-scopes-own-timeout-counts-for-its-forks
  (alarms/by-hand
    (fn [alarms]
      (let [ended (promise)
            e (thrown (t/with-scope [s {:timeout-ms 60000}]
                        (t/fork s (alarms/ring! alarms) (sleep-until-interrupted ended))
                        :body))]
        (is (timeout? e))
        (is (= 60000 (:timeout-ms (ex-data e))))
        (is (realized? ended))))))

(defn- await-end
  "Returns when the thread has ended, as no interrupt can end it."
  [^Thread thread]
  (when-not (try (.join thread) true (catch InterruptedException _ false))
    (recur thread)))

(defn- with-a-lost-fork
  "The value of a scope whose body returns one when the deadline around it has ended its fork."
  [options]
  (t/with-scope [s options]
    (let [runs (promise)]
      (t/fork s (deliver runs (here)) (Thread/sleep 60000))
      (await-end @runs)
      :value)))

(deftest a-body-that-has-seen-the-end-of-its-fork-does-not-hide-the-deadline
  (is (timeout? (thrown (with-a-lost-fork {:timeout-ms 20}))))
  (is (timeout? (thrown (t/with-timeout 20 (with-a-lost-fork {})))))
  (is (= :late (t/with-timeout [20 :late] (with-a-lost-fork {})))))

(deftest tasks-know-how-much-time-is-left
  (is (nil? (t/remaining-ms)))
  (t/with-timeout 60000
    (let [left (t/remaining-ms)]
      (is (< 0 left 60001))
      (doseq [inherited (concat (t/all (t/remaining-ms) (t/with-timeout 90000 (t/remaining-ms)))
                                (t/pmapv 2 (fn [_] (t/remaining-ms)) [1 2])
                                (t/with-scope [s] [@(t/fork s (t/remaining-ms))]))]
        (is (<= 0 inherited left)))
      (is (< (t/with-timeout 1000 (t/remaining-ms)) 1001))
      (testing "but not what is detached"
        (is (nil? @(t/future (t/remaining-ms))))))))

(deftest a-deadline-that-never-comes-is-later-than-all-that-have-passed
  (let [passed (deadline/now)
        never (deadline/in-ms Long/MAX_VALUE)
        ago (deadline/in-ms Long/MIN_VALUE)]
    (is (gate/eventually 5000 #(< passed (deadline/now))))
    (is (deadline/earlier? passed (deadline/in-ms Long/MAX_VALUE)))
    (is (deadline/earlier? passed never))
    (is (not (deadline/passed? never)))
    (is (deadline/passed? ago) "although no time is as long ago")))

(deftest a-fork-has-the-deadline-of-its-caller
  (alarms/by-hand
    (fn [alarms]
      (let [ended (promise)]
        (is (timeout?
              (thrown (t/with-scope [s]
                        @(t/with-timeout 60000
                           (t/fork s (alarms/ring! alarms) (sleep-until-interrupted ended)))))))
        (is (= 2 (count @alarms)))
        (is (realized? ended))))))

(deftest a-lazy-seq-must-be-realised-inside
  (let [escaped (t/with-timeout 60000 (t/pmap 2 inc (range 4)))]
    (is (= :thrum/closed (type-of (thrown (doall escaped))))))
  (is (= [1 2 3 4] (t/with-timeout 60000 (doall (t/pmap 2 inc (range 4)))))))

(deftest what-is-left-of-a-lazy-seq-does-not-delay-the-answer
  (let [running (promise)
        ended (promise)]
    (is (= 0
           (gate/in-time 5000
                         #(t/with-timeout 60000
                                          (first (t/pmap 2
                                                         (fn [i]
                                                           (if (zero? i)
                                                             (do
                                                               @running
                                                               i)
                                                             (do
                                                               (deliver running true)
                                                               (sleep-until-interrupted ended))))
                                                         (range 10)))))))
    (is (realized? ended))))

(deftest the-deadline-comes-although-every-carrier-computes
  (let [n (* 2 (.availableProcessors (Runtime/getRuntime)))]
    (is (timeout? (gate/in-time 10000
                                #(thrown (t/with-timeout 20
                                                         (t/pmapv n
                                                                  (fn [_]
                                                                    (loop []
                                                                      (t/checkpoint)
                                                                      (recur)))
                                                                  (range n)))))))))

;; The timer

(deftest no-alarm-is-left-behind
  (let [before (timer/scheduled)]
    (dotimes [i 5000] (t/with-timeout (+ 60000 i) i))
    (dotimes [_ 100] (thrown (t/with-timeout 60000 (throw (ex-info "x" {})))))
    (t/with-timeout 60000
      (is (= (inc before) (timer/scheduled)))
      (testing "and none is armed that an earlier one makes useless"
        (t/with-timeout 90000 (is (= (inc before) (timer/scheduled))))))
    (is (= before (timer/scheduled)))))

(deftest what-an-alarm-throws-is-reported-also-where-it-has-no-thread-of-its-own
  (doseq [call! [callers/call! (fn [_] (throw (OutOfMemoryError. "for the test")))]
          :let [e (ex-info "x" {}), reported (promise)]]
    (with-redefs [callers/call! call!]
      (uncaught/reporting
        (fn [_ t] (deliver reported t))
        (fn []
          (deadline/arm! (deadline/in-ms 0) #(throw e))
          (is (= e (deref reported 5000 :nothing))))))))

(deftest many-deadlines-are-reached-each-in-its-turn
  (let [n 200
        answers
        (t/pmapv n (fn [i] (t/with-timeout [(inc (rem i 20)) i] (Thread/sleep 60000))) (range n))]
    (is (= (range n) answers))))

;; Shields

(deftest a-shield-runs-although-the-work-is-cancelled
  (let [trail (atom [])
        clean-up
        (fn [] (t/checkpoint) (Thread/sleep 1) @(t/future 1) (t/all 1 2) (swap! trail conj :clean))]
    (is (= :enough
           (reason-of (thrown (t/with-scope [s]
                                (t/cancel! s :enough)
                                (is (= [:clean] (t/shield 60000 (clean-up))))
                                (t/checkpoint))))))
    (alarms/by-hand
      (fn [alarms]
        (is (timeout? (thrown (t/with-timeout 60000
                                (try
                                  (alarms/ring! alarms)
                                  (Thread/sleep 60000)
                                  (finally
                                    (t/shield 60000 (clean-up))))))))))
    (let [running (promise)
          task (t/future (deliver running true)
                         (try
                           (Thread/sleep 60000)
                           (finally
                             (t/shield 60000 (clean-up)))))]
      @running
      (future-cancel task)
      (is (gate/eventually 10000 #(= 3 (count @trail)))))))

(deftest a-shield-has-a-time-of-its-own
  (let [e (thrown (t/shield 10 (Thread/sleep 60000)))]
    (is (timeout? e))
    (is (= 10 (:timeout-ms (ex-data e)))))
  (is (= :value (t/shield 60000 :value)))
  (testing "that the deadline around it does not shorten"
    (t/with-timeout 60000
      (is (< 60000 (t/shield 90000 (t/remaining-ms)))))))

(deftest a-pending-interrupt-is-there-again-after-the-shield
  (is (= [false true]
         (gate/in-time 10000
                       #(do
                          (.interrupt (here))
                          [(t/shield 60000 (.isInterrupted (here))) (Thread/interrupted)]))))
  (testing "also when it failed"
    (is (= ["x" true]
           (gate/in-time 10000
                         #(do
                            (.interrupt (here))
                            [(ex-message (thrown (t/shield 60000 (throw (ex-info "x" {})))))
                             (Thread/interrupted)]))))))

(deftest a-cancel-that-arrives-meanwhile-waits-for-the-end-of-the-shield
  (testing "of the scope"
    (let [trail (atom [])]
      (is (instance?
            CancellationException
            (thrown (t/with-scope [s]
                      (t/shield 60000
                                (t/cancel! s :enough)
                                (swap! trail conj (.isInterrupted (here)))
                                (t/checkpoint)
                                (Thread/sleep 1)
                                (swap! trail conj :shielded))
                      (try
                        (Thread/sleep 60000)
                        (catch InterruptedException e (swap! trail conj :interrupted)
                          (throw e)))))))
      (is (= [false :shielded :interrupted] @trail))))
  (testing "of the task"
    (let [in-shield (promise)
          cancelled (promise)
          trail (atom [])
          ended (promise)
          task (t/future (t/shield 60000
                                   (deliver in-shield true)
                                   (swap! trail conj (deref cancelled 10000 :late) :shielded))
                         (try
                           (Thread/sleep 60000)
                           (finally
                             (swap! trail conj :interrupted)
                             (deliver ended true))))]
      @in-shield
      (is (future-cancel task))
      (deliver cancelled true)
      (is (= true (deref ended 10000 :running)))
      (is (= [true :shielded :interrupted] @trail)))))

(deftest no-interrupt-slips-into-a-shield-at-its-door
  (testing "from a task's cancel, which is a state first and an interrupt then"
    (dotimes [_ 100]
      (let [running (promise)
            seen (promise)
            task (t/future (deliver running true)
                           (while (not (t/cancelled?)) (Thread/onSpinWait))
                           (t/shield 60000
                                     (deliver seen
                                              (try
                                                (Thread/sleep 1)
                                                :undisturbed
                                                (catch InterruptedException e e)))))]
        @running
        (future-cancel task)
        (is (= :undisturbed (deref seen 10000 :late))))))
  (testing "nor from a scope's"
    (dotimes [_ 100]
      (let [seen (promise)]
        (thrown (t/with-scope [s]
                  (t/fork s (t/cancel! s))
                  (while (not (t/cancelled?)) (Thread/onSpinWait))
                  (t/shield 60000
                            (deliver seen
                                     (try
                                       (Thread/sleep 1)
                                       :undisturbed
                                       (catch InterruptedException e e))))))
        (is (= :undisturbed (deref seen 10000 :late)))))))

(deftest what-a-shield-starts-ends-with-it
  (let [running (CountDownLatch. 1)
        ended (promise)]
    (is (= "boom"
           (ex-message (thrown (t/shield 60000
                                         (t/all (do
                                                  (.countDown running)
                                                  (sleep-until-interrupted ended))
                                                (do
                                                  (.await running)
                                                  (throw (ex-info "boom" {})))))))))
    (is (realized? ended))))

(deftest anothers-cancel-is-no-deadline-of-ones-own-whatever-its-reason
  (let [inside (promise), gate (promise), cancelled (promise), inner (promise)]
    (thrown (t/with-scope [s]
              (t/fork s (deliver inner (thrown (t/with-timeout 60000
                                                 (t/all 1 2)
                                                 (deliver inside true)
                                                 (try
                                                   @gate
                                                   (finally (deref cancelled 5000 nil)))))))
              @inside
              (t/cancel! s :thrum/timeout)
              (deliver cancelled true)))
    (is (= :thrum/cancelled (type-of @inner)))))

(deftest alarms-of-the-same-time-are-all-called
  (let [time (deadline/in-ms 20), called (CountDownLatch. 100)]
    (dotimes [_ 100] (deadline/arm! time #(.countDown called)))
    (is (.await called 5 TimeUnit/SECONDS))))

(deftest the-threads-of-alarms-keep-no-process-alive-and-inherit-nothing
  (let [inherited (InheritableThreadLocal.), seen (promise)
        see #(deliver seen [(.isDaemon (here)) (.get inherited)])
        ;; A thread that is no daemon: its threads would be none either.
        starter (Thread. #(do (.set inherited :callers) (.start (callers/daemon "alarm") see)))]
    (doto starter (.setDaemon false) (.start))
    (is (= [true nil] (deref seen 5000 :late)))))

(deftest an-interrupted-timer-sleeps-again
  (t/with-timeout 60000)                ; starts it
  (let [^Thread timer (.get ^AtomicReference @#'timer/timer)]
    (.interrupt timer)
    (is (gate/eventually 5000 #(not (.isInterrupted timer))))))

;; No thread for the timer

(deftest deadlines-come-again-when-the-timers-thread-can-be-started-again
  (t/with-timeout 60000)                ; starts the real one
  (let [no-thread (OutOfMemoryError. "unable to create native thread")
        real (.get ^AtomicReference @#'timer/timer)
        starts (atom 0)
        start! #(if (= 1 (swap! starts inc)) (throw no-thread) real)]
    (with-redefs-fn {#'timer/timer (AtomicReference.), #'timer/start-timer! start!}
      (fn []
        (is (identical? no-thread (thrown (t/with-timeout 60000 :never))))
        (is (zero? (timer/scheduled)))
        (is (= :late (gate/in-time 5000 #(t/with-timeout [5 :late] (Thread/sleep 60000)))))
        (is (= :value (t/with-timeout 60000 :value)))
        (is (= 2 @starts))))))
