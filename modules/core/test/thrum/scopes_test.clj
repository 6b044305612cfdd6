(ns thrum.scopes-test
  "What with-scope, fork, use! and cancel! promise: nothing outlives a scope, and one failure stands
  for all."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.blocking :refer [await-anyway sleep-until-interrupted]]
   [thrum.core :as t]
   [thrum.impl.group :as group]
   [thrum.impl.jdk :as jdk]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.lang AutoCloseable)
   (java.util.concurrent CancellationException CountDownLatch ExecutionException Future)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:dynamic *tenant* :nobody)

(defn- here ^Thread [] (Thread/currentThread))

(defn- reason-of [e]
  (:reason (ex-data e)))

(defn- type-of [e]
  (:type (ex-data e)))

(defn- parked? [^Thread thread]
  (contains? #{Thread$State/WAITING Thread$State/TIMED_WAITING} (.getState thread)))

;; Values

(deftest it-returns-the-bodys-value-after-every-fork-has-ended
  (let [gate (promise), trail (atom [])]
    (is (= :body (t/with-scope [s]
                   (t/fork s (deref gate 10000 :late) (swap! trail conj :fork))
                   (swap! trail conj :body)
                   (deliver gate :go)
                   :body)))
    (is (= [:body :fork] @trail))))

(deftest forks-answer-with-their-values
  (is (= [1 nil false] (t/with-scope [s]
                         (mapv deref [(t/fork s 1) (t/fork s nil) (t/fork s false)]))))
  (is (nil? (t/with-scope [_s]))))

(deftest the-body-runs-on-the-calling-thread-and-forks-on-threads-of-their-own
  (binding [*tenant* :acme]
    (let [[body fork] (t/with-scope [s {:name "checkout"}] [(here) @(t/fork s [(here) *tenant*])])]
      (is (identical? (here) body))
      (is (.isVirtual ^Thread (first fork)))
      (is (re-matches #"checkout-\d+/0" (.getName ^Thread (first fork))))
      (is (= :acme (second fork))))))

(deftest a-fork-may-have-a-name
  (is (re-matches #"checkout-\d+/poll-0"
                  (t/with-scope [s {:name "checkout"}]
                    @(t/fork s {:name "poll"} (.getName (here)))))))

(deftest the-wrap-goes-around-every-fork
  (let [wrapped (atom []), wrap (fn [id] (fn [body] (swap! wrapped conj id) body))]
    (t/with-scope [s {:wrap (wrap :option)}] @(t/fork s 1))
    (binding [t/*wrap* (wrap :dynamic)]
      (t/with-scope [s] @(t/fork s 1)))
    (is (= [:option :dynamic] @wrapped))))

(deftest a-wrap-that-throws-is-a-failure-of-the-fork-call
  (let [failure (ex-info "no context" {})]
    (is (identical? failure
                    (thrown (t/with-scope [s {:wrap (fn [_] (throw failure))}] (t/fork s 1)))))))

(deftest a-scope-prints-itself
  (let [gate (promise)
        [open ended] (t/with-scope [s {:name "checkout"}]
                       (t/fork s @gate)
                       (let [text (pr-str s)] (deliver gate :go) [text s]))]
    (is (re-matches #"#<scope checkout-\d+ \{:status :open, :running 1\}>" open))
    (is (re-matches #"#<scope checkout-\d+ \{:status :ended, :running 0\}>" (pr-str ended)))))

;; Failures

(deftest a-failing-fork-cancels-its-siblings-which-have-ended-when-it-is-thrown
  (doseq [failure [(ex-info "boom" {}) (AssertionError. "boom") (StackOverflowError.)
                   (InterruptedException. "by hand")]]
    (let [running (promise)
          ended (promise)]
      (is (identical? failure
                      (thrown (t/with-scope [s]
                                (t/fork s (sleep-until-interrupted running ended))
                                (t/fork s @running (throw failure))
                                :body))))
      (is (realized? ended))
      (is (not (Thread/interrupted))))))

(deftest a-failing-fork-interrupts-the-body
  (let [failure (ex-info "boom" {}), running (promise), ended (promise)]
    (is (identical? failure (thrown (t/with-scope [s]
                                      (t/fork s @running (throw failure))
                                      (sleep-until-interrupted running ended)))))
    (is (realized? ended))
    (is (not (Thread/interrupted)))))

(deftest a-throwing-body-cancels-joins-and-is-rethrown
  (let [failure (ex-info "body" {})
        running (promise)
        ended (promise)
        task (promise)]
    (is (identical? failure
                    (thrown (t/with-scope [s]
                              (deliver task (t/fork s (sleep-until-interrupted running ended)))
                              @running
                              (throw failure)))))
    (is (realized? ended))
    (is (future-cancelled? @task))))

(deftest the-first-failure-is-thrown-and-later-ones-ride
  (let [running (promise)
        cleanup (ex-info "cleanup failed" {})
        root (ex-info "root" {})
        e (thrown (t/with-scope [s]
                    (t/fork s
                      (try
                        (deliver running true)
                        (Thread/sleep 60000)
                        (catch InterruptedException _ (throw cleanup))))
                    @running
                    (throw root)))]
    (is (identical? root e))
    (is (some #{cleanup} (.getSuppressed ^Throwable e)))))

(deftest one-throwable-thrown-by-all-is-thrown-once
  (let [^Throwable same (ex-info "same" {}), together (CountDownLatch. 3)
        meet (fn [] (.countDown together) (await-anyway together) (throw same))]
    (is (identical? same (thrown (t/with-scope [s] (t/fork s (meet)) (t/fork s (meet)) (meet)))))
    (is (not-any? #{same} (.getSuppressed same)))))

(deftest a-body-that-throws-what-deref-of-its-fork-threw-throws-the-forks-failure
  (let [failure (ex-info "fork" {})]
    (is (identical? failure (thrown (t/with-scope [s] @(t/fork s (throw failure))))))
    (testing "also through an inner form"
      (is (identical? failure (thrown (t/with-scope [s]
                                        (let [f (t/fork s (throw failure))]
                                          (t/with-scope [_] (t/with-timeout 60000 @f))))))))
    (testing "and what a fork threw for its sibling is not mistaken for the first failure"
      (is (identical? failure (thrown (t/with-scope [s]
                                        (let [f (t/fork s (throw failure))]
                                          @(t/fork s @f)))))))))

(deftest what-deref-of-a-fork-threw-is-not-attached-to-the-forks-failure
  (let [^Throwable failure (ex-info "fork" {})]
    (is (identical? failure (thrown (t/with-scope [s {:on-error :collect}]
                                      @(t/fork s (throw failure))))))
    (is (not-any? #(instance? ExecutionException %) (.getSuppressed failure)))))

(deftest a-failure-that-only-looks-like-another-is-attached
  (let [alike #(proxy [RuntimeException] [] (hashCode [] 1) (equals [_] true))]
    (doseq [[a ^Throwable b] [[(ex-info "fork" {}) (ExecutionException. (ex-info "elsewhere" {}))]
                              [(alike) (alike)]]
            :let [^Throwable e (thrown (t/with-scope [s {:on-error :collect}]
                                         (t/fork s (throw a))
                                         (t/join! s)
                                         (throw b)))]]
      (is (identical? a e))
      (is (some #(identical? b %) (.getSuppressed e))))))

(deftest a-failure-that-the-body-caught-is-thrown-all-the-same
  (let [failure (ex-info "fork" {})]
    (is (identical? failure
                    (thrown (t/with-scope [s]
                              (try
                                @(t/fork s (throw failure))
                                (catch Exception _ :caught))))))))

(deftest collecting-lets-siblings-run-on
  (let [failed (promise)
        gate (promise)
        a (ex-info "a" {})
        b (ex-info "b" {})
        trail (atom [])
        ^Throwable e
        (thrown (t/with-scope [s {:on-error :collect}]
                  (let [task (t/fork s (throw a))]
                    (t/fork s @failed (deref gate 10000 :late) (swap! trail conj :ran-on) (throw b))
                    (is (instance? ExecutionException (thrown @task)))
                    (deliver failed true)
                    (deliver gate :go)
                    (is (not (t/cancelled?)))
                    :body)))]
    (is (identical? a e))
    (is (some #{b} (.getSuppressed e)))
    (is (= [:ran-on] @trail))))

(deftest uninterruptible-work-delays-the-return
  (let [gate (CountDownLatch. 1)
        running (promise)
        failing (promise)
        [thread outcome] (gate/start "caller"
                                     #(t/with-scope [s]
                                        (t/fork s (deliver running true) (await-anyway gate))
                                        @running
                                        (deliver failing true)
                                        (throw (ex-info "boom" {}))))]
    @failing
    (is (gate/eventually 10000 #(parked? thread)))
    (is (not (realized? outcome)))
    (.countDown gate)
    (is (= "boom" (ex-message (:thrown (deref outcome 10000 :stuck)))))))

(deftest a-start-that-fails-leaves-a-scope-that-works
  (let [failure (OutOfMemoryError. "no thread"), start jdk/virtual-thread
        fork-bad (fn [s]
                   (with-redefs [jdk/virtual-thread (fn [_ _] (throw failure))]
                     (thrown (t/fork s 1))))]
    (is (identical? start jdk/virtual-thread))
    (is (= 1 (t/with-scope [s]
               (is (identical? failure (fork-bad s)))
               @(t/fork s 1))))))

;; Interrupts

(deftest an-interrupt-of-the-body-cancels-joins-and-is-thrown
  (let [running (promise)
        ended (promise)
        in-body (promise)
        [^Thread caller outcome]
        (gate/start "caller"
                    #(vector (type (thrown (t/with-scope [s]
                                             (t/fork s (sleep-until-interrupted running ended))
                                             @running
                                             (deliver in-body true)
                                             (Thread/sleep 60000))))
                             (Thread/interrupted)))]
    @in-body
    (.interrupt caller)
    (is (= {:value [InterruptedException false]} (deref outcome 10000 :stuck)))
    (is (realized? ended))))

(deftest an-interrupt-during-the-join-cancels-joins-and-is-thrown
  (let [running (promise)
        ended (promise)
        [^Thread caller outcome]
        (gate/start "caller"
                    #(vector (type (thrown (t/with-scope [s]
                                             (t/fork s (sleep-until-interrupted running ended))
                                             :body)))
                             (Thread/interrupted)))]
    @running
    (is (gate/eventually 10000 #(parked? caller)))
    (.interrupt caller)
    (is (= {:value [InterruptedException false]} (deref outcome 10000 :stuck)))
    (is (realized? ended))))

(deftest a-foreign-interrupt-outlives-the-form
  (testing "one that came before"
    (is (= [:body true]
           (gate/in-time 10000
                         #(do
                            (.interrupt (here))
                            [(t/with-scope [_s] :body) (Thread/interrupted)])))))
  (testing "one that came inside and went unnoticed"
    (is (= [:body true]
           (gate/in-time 10000
                         #(vector (t/with-scope [_s] (.interrupt (here)) :body)
                                  (Thread/interrupted))))))
  (testing "one that came before the scope's own"
    (is (= [:boom true]
           (gate/in-time 10000
                         #(do
                            (.interrupt (here))
                            (thrown (t/with-scope [s]
                                      (let [f (t/fork s (throw (ex-info "boom" {})))]
                                        (while (not (realized? f)) (Thread/onSpinWait))
                                        (while (not (t/cancelled? s)) (Thread/onSpinWait)))))
                            [:boom (Thread/interrupted)]))))))

(deftest an-interrupt-of-the-scopes-own-does-not-outlive-it
  (dotimes [_ 50]
    (is (= "boom" (ex-message (thrown (t/with-scope [s]
                                        (t/fork s (throw (ex-info "boom" {})))
                                        (while (not (t/cancelled? s)) (Thread/onSpinWait)))))))
    (is (not (Thread/interrupted)))))

(deftest the-body-is-interrupted-once-however-many-forks-fail
  (let [n 20
        together (CountDownLatch. n)
        interrupts (AtomicLong.)
        all-ended (CountDownLatch. n)]
    (is (= "boom"
           (ex-message (thrown (t/with-scope [s]
                                 (dotimes [_ n]
                                   (t/fork s
                                     (.countDown together)
                                     (await-anyway together)
                                     (.countDown all-ended)
                                     (throw (ex-info "boom" {}))))
                                 (try
                                   (Thread/sleep 60000)
                                   (catch InterruptedException _ (.incrementAndGet interrupts)))
                                 (await-anyway all-ended)
                                 (gate/eventually 10000 #(= "0" (re-find #"\d+(?=\}>)" (pr-str s))))
                                 (when (Thread/interrupted) (.incrementAndGet interrupts)))))))
    (is (= 1 (.get interrupts)))))

;; Who belongs

(deftest forks-of-forks-belong-to-the-scope
  (let [gate (promise), trail (atom [])]
    (is (= :body (t/with-scope [s]
                   (t/fork s
                     (t/fork s
                       (t/fork s (deref gate 10000 :late) (swap! trail conj :grandchild))))
                   (deliver gate :go)
                   :body)))
    (is (= [:grandchild] @trail))))

(deftest what-works-for-a-scope-inside-another-form-may-fork-into-it
  (is (= [1 2 [3 4] 5]
         (t/with-scope [s]
           [(t/with-scope [_inner] @(t/fork s 1))
            (t/with-timeout 60000 @(t/fork s 2))
            (t/pmapv 2 #(deref (t/fork s %)) [3 4])
            (first (t/all @(t/fork s 5)))]))))

(deftest a-foreign-thread-is-refused
  (let [e (t/with-scope [s] (thrown (gate/in-time 10000 #(t/fork s 1))))]
    (is (= :thrum/invalid (type-of e)))
    (is (re-find #"does not work for the scope" (ex-message e))))
  (testing "a detached future is one as well"
    (is (= :thrum/invalid (type-of (t/with-scope [s] @(t/future (thrown (t/fork s 1))))))))
  (testing "and so is the task of another scope"
    (is (= :thrum/invalid (type-of (t/with-scope [a]
                                     (t/with-scope [b]
                                       @(t/fork a (thrown (t/fork b 1))))))))))

(deftest an-ended-scope-is-closed
  (let [ended (t/with-scope [s] s)]
    (is (= :thrum/closed (type-of (thrown (t/fork ended 1)))))
    (testing "also to its own body when it was cancelled"
      (is (= :thrum/closed
             (type-of (t/with-scope [s] (t/cancel! s :enough) (thrown (t/fork s 1)))))))))

(deftest what-is-no-scope-is-refused
  (doseq [f [#(t/fork :scope 1) #(t/use! nil (Object.) identity) #(t/cancel! (promise))
             #(t/cancelled? 1) #(t/with-scope [_ {:nam "x"}] 1)
             #(t/with-scope [_ {:timeout-ms -1}] 1) #(t/with-scope [_ {:on-error :ignore}] 1)
             #(t/with-scope [s] (t/fork s {:deamon? true} 1))
             #(t/with-scope [s] (t/fork-call s 1))]]
    (is (= :thrum/invalid (type-of (thrown (f)))))))

(deftest a-task-that-waits-for-itself-is-told
  (let [self (promise)]
    (is (= :thrum/deadlock (type-of (thrown (t/with-scope [s] (deliver self (t/fork s @@self))))))))
  (testing "but not where that has an end"
    (let [self (promise)]
      (is (= :late (t/with-scope [s] @(deref (deliver self (t/fork s (deref @self 1 :late)))))))))
  (testing "also from inside what it waits for"
    (let [self (promise)]
      (is
        (= :thrum/deadlock
           (type-of (thrown (t/with-scope [s]
                              (deliver self (t/fork s (t/with-scope [i] (t/fork i @@self)))))))))))
  (testing "also from an item of an eager fan-out, or of one in a scope of its own"
    (doseq [fan-out [#(t/pmapv 1 % [1]) #(t/prun! 1 % [1]) #(t/pmapv {:limit 1, :batch 2} % [1])
                     #(t/with-scope [_] (doall (t/pmap 1 % [1])))]]
      (let [self (promise), waits (fn [_] @@self)]
        (is (= :thrum/deadlock
               (type-of (gate/in-time
                          5000
                          (fn []
                            (thrown (t/with-scope [s]
                                      (deliver self (t/fork s (fan-out waits))))))))))))))

;; Daemons

(deftest a-daemon-that-begins-work-as-the-scope-ends-fails-nothing
  (doseq [work [(fn [s] (t/fork s 1)) (fn [_] (t/pmapv 2 inc [1 2])) (fn [_] (t/all 1 2))
                (fn [_] (t/with-scope [i] (t/fork i 1)))]]
    (let [closed (promise), daemon (promise), cancel-below! @#'group/cancel-below!]
      (with-redefs [group/cancel-below! (fn [group why]
                                          (when (deliver closed true)
                                            (is (gate/eventually 5000 #(realized? @daemon))))
                                          (cancel-below! group why))]
        (is (= :value
               (t/with-scope [s]
                 (deliver daemon (t/fork s {:daemon? true} @closed (work s)))
                 :value)))
        (is (future-cancelled? @daemon))))))

(deftest a-daemon-is-cancelled-when-body-and-forks-have-ended
  (let [running (promise), ended (promise), gate (promise), trail (atom [])
        daemon (t/with-scope [s]
                 (let [daemon (t/fork s {:daemon? true} (sleep-until-interrupted running ended))]
                   @running
                   (t/fork s (deref gate 10000 :late) (swap! trail conj (future-done? daemon)))
                   (deliver gate :go)
                   daemon))]
    (is (realized? ended))
    (is (= [false] @trail))
    (is (future-cancelled? daemon))))

(deftest a-daemon-that-fails-fails-the-scope
  (let [failure (ex-info "poll" {}), running (promise), ended (promise)]
    (is (identical? failure (thrown (t/with-scope [s]
                                      (t/fork s {:daemon? true} @running (throw failure))
                                      (t/fork s (sleep-until-interrupted running ended))
                                      :body))))
    (is (realized? ended))))

(deftest nobody-waits-for-what-a-daemon-does-inside
  (doseq [[kind work] {:all #(t/all (sleep-until-interrupted %1 %2))
                       :scope #(t/with-scope [s] (t/fork s (sleep-until-interrupted %1 %2)))
                       :pmapv #(t/pmapv 2 (fn [_] (sleep-until-interrupted %1 %2)) [1])}]
    (testing kind
      (let [running (promise), ended (promise)]
        (is (= :body (gate/in-time 5000 #(t/with-scope [s]
                                           (t/fork s {:daemon? true} (work running ended))
                                           @running
                                           :body))))
        (is (realized? ended))))))

(deftest a-daemon-that-is-about-to-start-ends-nobody
  (let [start! group/start!, body-ended (promise), sibling (promise), trail (atom [])
        start-late! (fn [scope task]
                      (deliver sibling :ends)
                      (swap! trail conj (gate/eventually 50 #(t/cancelled?)))
                      (start! scope task))
        [caller outcome] (gate/start "caller" #(t/with-scope [s]
                                                 (t/fork s @sibling)
                                                 (t/fork s
                                                   @body-ended
                                                   (with-redefs [group/start! start-late!]
                                                     (t/fork s {:daemon? true} 1)))
                                                 :body))]
    (is (gate/eventually 10000 #(parked? caller)))
    (deliver body-ended true)
    (is (= {:value :body} (deref outcome 5000 :stuck)))
    (is (= [false] @trail))))

;; Closing

(defn- closing [trail id]
  (reify AutoCloseable (close [_] (swap! trail conj id))))

(deftest what-a-scope-uses-is-closed-last-in-first-out-after-the-forks
  (let [trail (atom [])
        gate (promise)]
    (is (= :body
           (t/with-scope [s]
             (t/use! s (closing trail :first))
             (is (= :second (t/use! s :second #(swap! trail conj %))))
             (t/fork s
               (t/use! s (closing trail :of-fork))
               (deref gate 10000 :late)
               (swap! trail conj :fork))
             (deliver gate :go)
             :body)))
    (is (= :fork (first @trail)))
    (is (= [:second :first] (remove #{:fork :of-fork} @trail)))
    (is (= 1 (count (filter #{:of-fork} @trail))))))

(deftest a-failed-close-rides-or-is-thrown
  (let [closed (atom [])
        failure (ex-info "body" {})
        a (ex-info "close a" {})
        b (ex-info "close b" {})
        use-both (fn [s]
                   (t/use! s :a (fn [_] (swap! closed conj :a) (throw a)))
                   (t/use! s :b (fn [_] (swap! closed conj :b) (throw b))))
        ^Throwable e (thrown (t/with-scope [s] (use-both s) (throw failure)))]
    (is (identical? failure e))
    (is (= [b a] (seq (.getSuppressed e))))
    (is (= [:b :a] @closed)))
  (let [a (ex-info "close a" {})]
    (is (identical? a (thrown (t/with-scope [s] (t/use! s :a (fn [_] (throw a))) :body))))))

(deftest a-close-is-protected-from-cancel-and-interrupt
  (let [trail (atom [])
        wait-a-little
        (fn [_] (t/checkpoint) (Thread/sleep 1) @(t/future 1) (swap! trail conj :closed))]
    (testing "after a cancel of the scope, by a fork's failure"
      (is (= "boom"
             (ex-message (thrown (t/with-scope [s]
                                   (t/use! s :x wait-a-little)
                                   (t/fork s (throw (ex-info "boom" {})))
                                   (Thread/sleep 60000)))))))
    (testing "of what is around it, whose interrupt is still to come"
      (is (= [:enough true]
             (let [e (thrown (t/with-scope [outer]
                               (t/with-scope [s]
                                 (t/use! s :x wait-a-little)
                                 (t/cancel! outer :enough)
                                 (t/checkpoint))))]
               [(reason-of e) (instance? CancellationException e)]))))
    (testing "and after an interrupt, which is there again when it has ended"
      (is (= [:body true]
             (gate/in-time
               10000
               #(vector (t/with-scope [s] (t/use! s :x wait-a-little) (.interrupt (here)) :body)
                        (Thread/interrupted))))))
    (is (= [:closed :closed :closed] @trail))))

(deftest a-close-at-once-is-protected-too
  (let [trail (atom [])
        wait-a-little
        (fn [_] (t/checkpoint) (Thread/sleep 1) @(t/future 1) (swap! trail conj :closed))]
    (is (= [:thrum/closed [] true]
           (t/with-scope [s]
             (t/cancel! s)
             (let [^Throwable e (thrown (t/use! s :x wait-a-little))]
               [(type-of e) (vec (.getSuppressed e)) (Thread/interrupted)]))))
    (is (= [:closed] @trail))))

(deftest a-close-at-once-that-fails-is-suppressed
  (let [failure (ex-info "no" {}), ended (t/with-scope [s] s)
        ^Throwable e (thrown (t/use! ended :x (fn [_] (throw failure))))]
    (is (= [:thrum/closed [failure]] [(type-of e) (vec (.getSuppressed e))]))))

(deftest what-comes-too-late-is-closed-at-once
  (let [trail (atom [])
        ended (t/with-scope [s] s)]
    (is (= :thrum/closed (type-of (thrown (t/use! ended (closing trail :ended))))))
    (is (= :thrum/closed
           (type-of
             (t/with-scope [s] (t/cancel! s) (thrown (t/use! s (closing trail :cancelled)))))))
    (is (= :thrum/invalid
           (type-of (t/with-scope [s] @(t/future (thrown (t/use! s (closing trail :foreign))))))))
    (testing "also from a close"
      (t/with-scope [s]
        (t/use! s
                :x
                (fn [_]
                  (is (= :thrum/closed (type-of (thrown (t/use! s (closing trail :of-close)))))))))
      (is (= [:ended :cancelled :foreign :of-close] @trail)))))

;; Nesting

(deftest the-end-of-an-outer-scope-ends-the-inner-ones
  (let [running (promise)
        ended (promise)
        failure (ex-info "outer" {})]
    (is (identical?
          failure
          (thrown (t/with-scope [outer]
                    (t/fork outer
                      (t/with-scope [inner] (t/fork inner (sleep-until-interrupted running ended))))
                    @running
                    (throw failure)))))
    (is (realized? ended))))

(deftest a-failure-inside-an-inner-scope-is-the-outer-forks-failure
  (let [failure (ex-info "inner" {})
        running (promise)
        ended (promise)]
    (is (identical? failure
                    (thrown (t/with-scope [outer]
                              (t/fork outer (sleep-until-interrupted running ended))
                              (t/fork outer
                                (t/with-scope [inner] (t/fork inner @running (throw failure))))))))
    (is (realized? ended))))

(deftest a-caught-failure-of-an-inner-scope-leaves-the-outer-one-alone
  (is (= [:caught 1 false]
         (t/with-scope [outer]
           [(try (t/with-scope [inner] (t/fork inner (throw (ex-info "inner" {}))))
                 (catch Exception _ :caught))
            @(t/fork outer 1)
            (t/cancelled? outer)]))))

(deftest what-is-left-of-a-lazy-seq-ends-with-the-scope
  (let [running (promise)
        ended (promise)]
    (is (= 0
           (gate/in-time 5000
                         #(t/with-scope [_s]
                            (first (t/pmap 2
                                           (fn [i]
                                             (if (zero? i)
                                               (do
                                                 @running
                                                 i)
                                               (sleep-until-interrupted running ended)))
                                           (range 10)))))))
    (is (realized? ended))))

(deftest with-scope-inside-a-cancelled-future-ends-with-it
  (let [running (promise)
        ended (promise)
        seen (promise)
        task (t/future (deliver seen
                                (thrown (t/with-scope [s]
                                          (t/fork s (sleep-until-interrupted running ended))))))]
    @running
    (is (future-cancel task))
    (is (= :future-cancel (reason-of (deref seen 10000 nil))))
    (is (realized? ended))))

;; Cancel

(deftest a-scope-is-cancelled-by-its-body-by-a-fork-and-from-outside
  (doseq [[who cancel] {:body (fn [s] (t/cancel! s :enough))
                        :fork (fn [s] (t/fork s (t/cancel! s :enough)))
                        :outside (fn [s] (gate/start "outside" #(t/cancel! s :enough)))}]
    (testing who
      (let [running (promise), ended (promise), task (promise)
            e (thrown (t/with-scope [s]
                        (deliver task (t/fork s (sleep-until-interrupted running ended)))
                        @running
                        (cancel s)
                        (Thread/sleep 60000)))]
        (is (instance? CancellationException e))
        (is (= :thrum/cancelled (type-of e)))
        (is (= :enough (reason-of e)))
        (is (realized? ended))
        (is (future-cancelled? @task))
        (is (= :enough (reason-of (thrown @@task))))
        (is (not (Thread/interrupted)))))))

(deftest a-cancel-says-whether-it-had-an-effect
  (t/with-scope [s]
    (is (not (t/cancelled? s)))
    (is (not (t/cancelled?)))
    (is (true? (t/cancel! s :first)))
    (is (false? (t/cancel! s :second)))
    (is (t/cancelled? s))
    (is (t/cancelled?))
    (is (= :first (reason-of (thrown (t/checkpoint))))))
  (let [task (t/future 1)]
    @task
    (is (false? (t/cancel! task :late)))
    (is (not (t/cancelled? task)))))

(deftest the-reason-is-anything-but-nothing
  (doseq [[given reason] {:enough :enough, nil :cancelled, false :cancelled}]
    (is (= reason (reason-of (thrown (t/with-scope [s] (t/cancel! s given) (t/checkpoint))))))
    (let [gate (promise), task (t/future @gate)]
      (is (t/cancel! task given))
      (is (= reason (reason-of (thrown @task)))))))

(deftest a-scope-in-cancelled-work-is-cancelled-already
  (let [seen (promise)]
    (t/with-scope [outer]
      (t/with-scope [inner]
        (t/cancel! outer :outer)
        (deliver seen
                 [(t/cancelled? inner)
                  (t/cancel! inner :inner)
                  (:reason (ex-data (thrown (t/checkpoint))))])))
    (is (= [true false :outer] @seen)))
  (testing "and asks no collection for its items"
    (let [asked (atom false)
          items (reify clojure.lang.IReduceInit (reduce [_ _ init] (reset! asked true) init))]
      (doseq [form [#(t/pmapv 2 inc items) #(t/prun! 2 inc items)]]
        (is (instance? CancellationException
                       (thrown (t/with-scope [s] (t/cancel! s :enough) (form))))))
      (is (not @asked))))
  (testing "but not in a shield"
    (let [seen (promise)]
      (t/with-scope [outer]
        (t/shield 60000
          (t/with-scope [inner]
            (t/cancel! outer :outer)
            (deliver seen [(t/cancelled? inner) (t/cancel! inner :inner)]))))
      (is (= [false true] @seen)))))

(deftest a-task-is-cancelled-with-a-reason
  (let [running (promise), ended (promise)
        task (t/future (sleep-until-interrupted running ended))]
    @running
    (is (true? (t/cancel! task :not-needed)))
    (is (= :not-needed (reason-of (thrown @task))))
    (is (= true (deref ended 10000 :running)))))

(deftest cancelling-one-fork-leaves-the-others-alone
  (is (= [true 2]
         (t/with-scope [s]
           (let [running (promise)
                 a (t/fork s (deliver running true) (Thread/sleep 60000))
                 b (t/fork s 2)]
             @running
             (t/cancel! a)
             [(t/cancelled? a) @b])))))

(deftest a-cancel-is-a-state-that-every-wait-looks-at
  (testing "although the interrupt was swallowed"
    (doseq [[kind wait] {:deref #(deref %)
                         :deref-ms #(deref % 60000 :late)
                         :checkpoint (fn [_] (t/checkpoint))
                         :with-scope (fn [_] (t/with-scope [_s] 1))
                         :with-timeout (fn [_] (t/with-timeout 60000 1))
                         :all (fn [_] (t/all 1 2))
                         :race (fn [_] (t/race 1 2))
                         :any (fn [_] (t/any 1 2))
                         :settle (fn [_] (t/settle 1 2))
                         :pmapv (fn [_] (t/pmapv 2 inc [1]))}]
      (testing kind
        (let [gate (promise)
              task (t/future @gate)
              seen (atom [])]
          (is (= :enough
                 (reason-of (thrown (t/with-scope [s]
                                      (t/cancel! s :enough)
                                      (is (Thread/interrupted))
                                      (dotimes [_ 2] (swap! seen conj (thrown (wait task))))
                                      (t/checkpoint))))))
          (is (= [true true] (map #(instance? CancellationException %) @seen)))
          (deliver gate :go)
          (is (= :go @task)))))))

(deftest a-fork-hears-of-the-cancel-although-it-swallowed-its-interrupt
  (let [running (promise), seen (promise)]
    (thrown (t/with-scope [s]
              (t/fork s
                (deliver running true)
                (try (Thread/sleep 60000) (catch InterruptedException _))
                (deliver seen (reason-of (thrown (t/checkpoint)))))
              @running
              (t/cancel! s :enough)))
    (is (= :enough (deref seen 0 nil)))))

(deftest what-has-ended-is-not-cancelled-any-more
  (let [idle (t/with-scope [s] s)
        running (promise)
        ended (promise)
        busy (t/with-scope [s]
               (t/fork s {:daemon? true} (sleep-until-interrupted running ended))
               @running
               s)]
    (doseq [s [idle busy]]
      (is (not (t/cancelled? s)))
      (is (false? (t/cancel! s :late)))
      (is (not (t/cancelled? s))))))

(deftest a-scope-that-was-cancelled-itself-says-so-although-it-is-cancelled-further-out-too
  (let [inner (promise)]
    (t/with-scope [outer]
      (deliver inner (thrown (t/with-scope [s]
                               (t/cancel! s :own)
                               (t/cancel! outer :outer)
                               (Thread/sleep 60000)))))
    (is (= :own (:reason (ex-data @inner))))))

(deftest a-fork-that-was-cancelled-alone-takes-no-value-from-a-scope-that-is-cancelled-later
  (let [value (promise), running (promise), ended (promise)]
    (t/with-scope [outer]
      (deliver value (t/with-scope [s]
                       (let [task (t/fork s (sleep-until-interrupted running ended))]
                         @running
                         (t/cancel! task)
                         (t/join! s)
                         (t/cancel! outer :late)
                         :value))))
    (is (= :value (deref value 0 :none)))))

(deftest the-end-of-a-scope-interrupts-a-fork-that-was-cancelled-without-an-interrupt
  (doseq [[how end! options] [[:cancel t/cancel! {}] [:end (fn [_]) {:daemon? true}]]]
    (testing how
      (let [running (promise), seen (promise)]
        (t/with-scope [s]
          (let [task (t/fork-call s options
                       (fn []
                         (deliver running true)
                         (deliver seen (try
                                         (deref (promise) 5000 :late)
                                         (catch InterruptedException _ :interrupted)))))]
            @running
            (is (.cancel ^Future task false))
            (end! s)))
        (is (= :interrupted (deref seen 0 nil)))))))

(deftest a-second-cancel-interrupts-where-the-first-did-not
  (let [running (promise), interrupts (atom 0), gate (promise), ended (promise)
        task (t/future
               (deliver running true)
               (dotimes [_ 2]
                 (try
                   (deref gate 5000 :late)
                   (catch InterruptedException _ (swap! interrupts inc))))
               (deliver ended true))]
    @running
    (is (= [true false] [(.cancel ^Future task false) (t/cancel! task)]))
    (is (gate/eventually 4000 #(= 1 @interrupts)))
    (is (false? (t/cancel! task)) "and once")
    (deliver gate :go)
    (is (true? (deref ended 10000 :late)))
    (is (= 1 @interrupts))))

(deftest an-interrupt-behind-an-earlier-failure-stays
  (let [failed (promise), release (promise), failure (ex-info "first" {})
        [^Thread caller outcome]
        (gate/start "caller" #(let [t (thrown (t/with-scope [s {:on-error :collect}]
                                                (let [a (t/fork s (throw failure))]
                                                  (t/fork s @release)
                                                  (thrown @a)
                                                  (deliver failed true))))]
                                [t (Thread/interrupted)]))]
    @failed
    (is (gate/eventually 10000 (fn [] (= Thread$State/WAITING (.getState caller)))))
    (.interrupt caller)
    (is (= [failure true] (:value (deref outcome 10000 :stuck))))
    (deliver release true)))

(deftest what-cannot-be-closed-is-refused-at-the-call
  (t/with-scope [s]
    (is (= :thrum/invalid (type-of (thrown (t/use! s 42)))))
    (t/fork s 1)))
