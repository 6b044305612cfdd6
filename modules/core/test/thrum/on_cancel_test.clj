(ns thrum.on-cancel-test
  "A body whose cancel calls a function in place of an interrupt: see also nests_test."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.core :as t]
   [thrum.impl.callers :as callers]
   [thrum.impl.place :as place]
   [thrum.impl.wait :as wait]
   [thrum.nests :as nests]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent CancellationException CountDownLatch TimeUnit)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- await!
  "Waits for the latch as what no interrupt ends does, at most 5 s. Returns :stopped, or :late."
  [^CountDownLatch latch]
  (loop [interrupted false, end (+ (System/nanoTime) 5000000000)]
    (let [answer (try
                   (if (.await latch (- end (System/nanoTime)) TimeUnit/NANOSECONDS)
                     :stopped
                     :late)
                   (catch InterruptedException _ nil))]
      (if answer
        (do
          (when interrupted (.interrupt (Thread/currentThread)))
          answer)
        (recur true end)))))

(defn- interrupted? []
  (.isInterrupted (Thread/currentThread)))

(defn- on-another-thread! [f]
  (let [thread (doto (Thread. ^Runnable f) .start)]
    (while (.isAlive thread) (Thread/onSpinWait))))

(defn- cancelled-self
  "Calls f in a scope with a function that cancels the scope on another thread. Returns what the
  scope returned or threw."
  [f]
  (try
    (t/with-scope [s]
      (f #(on-another-thread! (fn [] (t/cancel! s :enough)))))
    (catch Throwable t t)))

(defn- causes [t]
  (take-while some? (iterate ex-cause t)))

;; What a cancel does

(deftest a-cancel-calls-the-function-in-place-of-an-interrupt
  (let [latch (CountDownLatch. 1), trail (atom []), body-thread (promise)
        thrown (cancelled-self
                 (fn [cancel!]
                   (deliver body-thread (Thread/currentThread))
                   (t/on-cancel [#(do
                                    (swap! trail conj (= (Thread/currentThread) @body-thread))
                                    (.countDown latch))]
                     (cancel!)
                     (await! latch)
                     (swap! trail conj (interrupted?))
                     (throw (ex-info "stopped" {})))))]
    (is (= [false false] @trail))
    (is (instance? CancellationException thrown))
    (is (= :enough (some (comp :reason ex-data) (causes thrown))))
    (is (= "stopped" (ex-message (last (causes thrown)))))
    (is (not (Thread/interrupted)))))

(deftest cleanup-behind-a-stopped-body-is-not-interrupted
  (let [latch (CountDownLatch. 1), trail (atom [])]
    (cancelled-self
      (fn [cancel!]
        (try
          (t/on-cancel [#(.countDown latch)]
            (cancel!)
            (await! latch)
            (throw (ex-info "stopped" {})))
          (finally (swap! trail conj (interrupted?))))))
    (is (= [false] @trail))))

(deftest a-deadline-stops-the-body-and-is-a-timeout
  (let [latch (CountDownLatch. 1)]
    (is (= :late
           (t/with-timeout [10 :late]
             (t/on-cancel [#(.countDown latch)]
               (await! latch)
               (throw (java.io.IOException. "closed"))))))
    (is (not (Thread/interrupted)))))

(deftest it-costs-nothing-where-nothing-can-be-cancelled
  (is (= :value (t/on-cancel [#(throw (Error.))] :value)))
  (is (= "body" (ex-message (thrown (t/on-cancel [identity] (throw (ex-info "body" {}))))))))

(deftest without-a-cancel-the-body-is-as-it-is
  (t/with-scope [_]
    (is (= :value (t/on-cancel [#(throw (Error.))] :value)))
    (is (= "body" (ex-message (thrown (t/on-cancel [identity] (throw (ex-info "body" {})))))))))

(deftest what-is-no-function-is-refused
  (is (= :thrum/invalid (spi/type-of (thrown (t/on-cancel [1] :value))))))

(deftest work-that-is-cancelled-already-does-not-begin
  (let [trail (atom [])
        thrown (cancelled-self
                 (fn [cancel!]
                   (cancel!)
                   (t/on-cancel [#(swap! trail conj :f)] (swap! trail conj :body))))]
    (is (instance? CancellationException thrown))
    (is (= [] @trail))
    (is (not (Thread/interrupted)))))

(deftest a-value-that-won-is-returned-and-the-cancel-is-not-lost
  (let [trail (atom [])
        thrown (cancelled-self
                 (fn [cancel!]
                   (swap! trail conj (t/on-cancel [#(swap! trail conj :f)] (cancel!) :value))
                   (swap! trail conj (interrupted?))
                   (Thread/sleep 10000)))]
    (is (= [:f :value true] @trail))
    (is (instance? CancellationException thrown))
    (is (not (Thread/interrupted)))))

(deftest it-returns-only-after-the-function-has-ended
  (let [called (promise), go-on (promise), trail (atom [])
        body (future
               (cancelled-self
                 (fn [cancel!]
                   (t/on-cancel [#(do
                                    (deliver called true)
                                    (deref go-on 5000 nil)
                                    (swap! trail conj :f))]
                     (cancel!))
                   (swap! trail conj :returned))))]
    (is (deref called 5000 false))
    (is (= :runs (deref body 20 :runs)))
    (deliver go-on true)
    (is (nil? (ex-message (deref body 5000 (ex-info "late" {}))))
      "the cancel came as the body had ended")
    (is (= [:f :returned] @trail))))

(deftest what-the-function-throws-is-suppressed
  (let [e (ex-info "f" {}), latch (CountDownLatch. 1)
        thrown (cancelled-self
                 (fn [cancel!]
                   (t/on-cancel [#(do
                                    (.countDown latch)
                                    (throw e))]
                     (cancel!)
                     (await! latch)
                     (throw (ex-info "stopped" {})))))]
    (is (= [e] (seq (.getSuppressed ^Throwable thrown)))))
  (testing "behind a value, the uncaught exception handler has it"
    (let [e (Error. "f"), uncaught (promise)
          handler (reify
                    Thread$UncaughtExceptionHandler
                    (uncaughtException [_ _ t] (deliver uncaught t)))
          body (doto (Thread. #(cancelled-self
                                 (fn [cancel!] (t/on-cancel [(fn [] (throw e))] (cancel!)))))
                 (.setUncaughtExceptionHandler handler)
                 (.start))]
      (is (identical? e (deref uncaught 5000 nil)))
      (.join body 5000))))

(deftest an-error-of-the-bodys-stays-one
  (let [e (AssertionError. "body"), latch (CountDownLatch. 1)]
    (is (identical? e
                    (cancelled-self
                      (fn [cancel!]
                        (t/on-cancel [#(.countDown latch)]
                          (cancel!)
                          (await! latch)
                          (throw e))))))
    (is (not (Thread/interrupted)))))

(def ^:dynamic *request* nil)

(deftest the-function-has-the-callers-bindings
  (let [latch (CountDownLatch. 1), seen (promise)]
    (binding [*request* 7]
      (cancelled-self
        (fn [cancel!]
          (t/on-cancel [#(do
                           (deliver seen *request*)
                           (.countDown latch))]
            (cancel!)
            (await! latch)))))
    (is (= 7 (deref seen 0 nil)))))

(deftest its-thread-which-other-alarms-use-keeps-none-of-them
  (let [latch (CountDownLatch. 1), left (promise)
        call! (fn [f] (.start (Thread. #(do (f) (deliver left *request*)))))]
    (with-redefs [callers/call! call!]
      (binding [*request* 7]
        (cancelled-self
          (fn [cancel!]
            (t/on-cancel [#(.countDown latch)]
              (cancel!)
              (await! latch))))))
    (is (nil? (deref left 5000 :late)))))

(deftest a-task-is-cancelled-in-the-same-way
  (let [latch (CountDownLatch. 1), running (promise), seen (promise)
        task (t/future
               (t/on-cancel [#(.countDown latch)]
                 (deliver running true)
                 (await! latch)
                 (deliver seen (interrupted?))))]
    (deref running 5000 nil)
    (future-cancel task)
    (is (false? (deref seen 5000 :late)))))

;; No thread for the function

(def ^:private no-thread (OutOfMemoryError. "unable to create native thread"))

(defn- with-calls
  "Calls f in a thread of its own, where (call! f) gives a function of on-cancel a thread. Returns
  what f returned or threw, whether that thread is still interrupted, and what its uncaught
  exception handler got."
  [call! f]
  (let [uncaught (atom []), handler (reify
                                      Thread$UncaughtExceptionHandler
                                      (uncaughtException [_ _ t] (swap! uncaught conj t)))]
    (with-redefs [callers/call! call!]
      (gate/in-time 5000
        (fn []
          (.setUncaughtExceptionHandler (Thread/currentThread) handler)
          [(try (f) (catch Throwable t t)) (Thread/interrupted) @uncaught])))))

(defn- without-threads [f]
  (with-calls (fn [_] (throw no-thread)) f))

(deftest where-no-thread-can-be-started-the-body-is-interrupted
  (let [calls (atom 0), call #(swap! calls inc)]
    (testing "by a cancel"
      (let [[thrown & others] (without-threads
                                (fn []
                                  (cancelled-self
                                    (fn [cancel!]
                                      (t/on-cancel [call]
                                        (cancel!)
                                        (Thread/sleep 60000))))))]
        (is (instance? CancellationException thrown))
        (is (= [no-thread] (seq (.getSuppressed ^Throwable thrown))))
        (is (= [false []] others))))
    (testing "at a deadline"
      (is (= [:late false []]
             (without-threads
               #(t/with-timeout [5 :late]
                  (t/on-cancel [call] (Thread/sleep 60000)))))))
    (testing "when a shield inside it has ended"
      (let [trail (atom [])
            [thrown & others] (without-threads
                                (fn []
                                  (cancelled-self
                                    (fn [cancel!]
                                      (t/on-cancel [call]
                                        (t/shield 5000
                                          (cancel!)
                                          (swap! trail conj (interrupted?)))
                                        (swap! trail conj (interrupted?))
                                        (Thread/sleep 60000))))))]
        (is (instance? CancellationException thrown))
        (is (= [false true] @trail))
        (is (= [false []] others))))
    (testing "also within another"
      (is (= [:late false []]
             (without-threads
               #(t/with-timeout [5 :late]
                  (t/on-cancel [call]
                    (t/on-cancel [call] (Thread/sleep 60000))))))))
    (testing "and a value is kept all the same"
      (let [value (atom nil)
            [thrown & others] (without-threads
                                (fn []
                                  (cancelled-self
                                    (fn [cancel!]
                                      (reset! value (t/on-cancel [call] (cancel!) :value))
                                      (Thread/sleep 60000)))))]
        (is (= :value @value))
        (is (instance? CancellationException thrown))
        (is (= [false [no-thread]] others))))
    (is (zero? @calls))))

(deftest where-only-an-inner-function-finds-no-thread-nothing-is-left-over
  (let [call! callers/call!, sleep #(Thread/sleep 60000), nothing (fn [])]
    (doseq [[inside behind] [[sleep nothing] [nothing sleep] [nothing nothing]]]
      (let [turn (atom 0), called (promise)
            [thrown interrupted?]
            (with-calls #(if (= 2 (swap! turn inc)) (throw no-thread) (call! %))
                        (fn []
                          (cancelled-self
                            (fn [cancel!]
                              (t/on-cancel [#(deliver called true)]
                                (t/on-cancel [identity]
                                  (cancel!)
                                  (inside))
                                (behind))
                              (t/checkpoint)))))]
        (is (deref called 5000 nil))
        (is (instance? CancellationException thrown))
        (is (false? interrupted?))))))

;; Forms in forms

(deftest nested-each-function-is-called
  (let [inner (CountDownLatch. 1), outer (CountDownLatch. 1), trail (atom [])
        thrown (cancelled-self
                 (fn [cancel!]
                   (t/on-cancel [#(.countDown outer)]
                     (try
                       (t/on-cancel [#(.countDown inner)]
                         (cancel!)
                         (swap! trail conj (await! inner) (await! outer) (interrupted?))
                         (throw (ex-info "stopped" {})))
                       (catch CancellationException _ (swap! trail conj :inner)))
                     (swap! trail conj (interrupted?)))))]
    (is (= [:stopped :stopped false :inner false] @trail))
    (is (not (instance? CancellationException thrown)))
    (is (not (Thread/interrupted)))))

(deftest several-cancels-call-the-function-once
  (let [calls (atom 0), latch (CountDownLatch. 1)]
    (cancelled-self
      (fn [cancel!]
        (t/with-scope [inner]
          (t/on-cancel [#(do
                           (swap! calls inc)
                           (.countDown latch))]
            (cancel!)
            (await! latch)
            (on-another-thread! (fn [] (t/cancel! inner)))))))
    (is (= 1 @calls))))

(deftest a-form-in-the-body-is-interrupted-at-its-own-deadline
  (let [called (atom 0)]
    (t/with-scope [_]
      (is (= :late
             (t/on-cancel [#(swap! called inc)]
               (t/with-timeout [10 :late] (Thread/sleep 5000))))))
    (is (zero? @called))))

(deftest a-form-in-the-body-that-ends-lets-no-cancel-through
  (let [trail (atom [])]
    (cancelled-self
      (fn [cancel!]
        (t/on-cancel [(fn [])]
          (t/with-scope [outer]
            (t/fork outer {:daemon? true} (Thread/sleep 5000))
            (t/with-timeout [0 :late] nil)
            (try
              (t/with-scope [inner]
                (cancel!)
                (t/cancel! inner)
                (t/checkpoint))
              (catch CancellationException _))
            (swap! trail conj (interrupted?))))))
    (is (= [false] @trail))))

(defn- waits? [^Thread thread]
  (= Thread$State/WAITING (.getState thread)))

(defn- end-of-wait
  "Cancels a body that waits for a task, while the function runs until the body has ended. Returns
  what is thrown."
  []
  (let [release (promise)]
    (cancelled-self
      (fn [cancel!]
        (let [waiting (Thread/currentThread), task (t/future (deref release 5000 nil))]
          (t/on-cancel [#(deref release 5000 nil)]
            (t/thread (gate/eventually 5000 #(waits? waiting)) (cancel!))
            (try @task (finally (deliver release true)))))))))

(deftest a-wait-of-thrums-in-the-body-ends
  (let [start (System/nanoTime)]
    (is (instance? CancellationException (end-of-wait)))
    (is (< (- (System/nanoTime) start) 4000000000))))

(deftest a-shield-in-the-body-puts-the-function-off
  (let [latch (CountDownLatch. 1), trail (atom [])]
    (cancelled-self
      (fn [cancel!]
        (t/on-cancel [#(do
                         (swap! trail conj :f)
                         (.countDown latch))]
          (t/shield 5000
            (cancel!)
            (swap! trail conj :shielded))
          (await! latch))))
    (is (= [:shielded :f] @trail)))
  (testing "but a form inside the shield that is cancelled has its own called"
    (let [trail (atom []), latch (CountDownLatch. 1)]
      (cancelled-self
        (fn [cancel!]
          (t/on-cancel [#(swap! trail conj :outer)]
            (t/shield 5000
              (cancel!)
              (try
                (t/with-timeout 5
                  (t/on-cancel [#(.countDown latch)]
                    (await! latch)
                    (throw (ex-info "stopped" {}))))
                (catch Exception e (swap! trail conj (spi/type-of e))))))))
      (is (= [:thrum/timeout :outer] @trail)))))

(deftest a-body-that-knows-of-its-cancel-waits-for-no-lock-of-the-cancel
  (t/with-scope [_]
    (let [around (wait/current-flag), held (promise), known (promise), free (promise)
          ;; As a cancel, that then asks for the lock of the body's own record.
          cancel (Thread. #(locking around
                             (deliver held true)
                             (deliver free (deref known 5000 false))))]
      (t/on-cancel [identity]
        (t/with-scope [_]
          (.start cancel)
          @held
          (place/acknowledge-cancel! (place/current))
          (deliver known true)))
      (.join cancel)
      (is @free))))

(deftest a-join-in-the-body-does-not-put-the-function-off
  (let [latch (CountDownLatch. 1), running (promise), seen (promise)]
    (cancelled-self
      (fn [cancel!]
        (t/on-cancel [#(.countDown latch)]
          (t/with-scope [s]
            (t/fork s
              (deliver running true)
              (deliver seen (await! latch)))
            (t/fork s @running (cancel!))))))
    (is (= :stopped (deref seen 0 :nothing)))))

;; Other code's interrupts

(deftest somebody-elses-interrupt-reaches-the-body
  (is (= #{:thrown}
         (nests/signals
           #(t/with-scope [_]
              (t/on-cancel [(fn [])]
                (.interrupt (Thread/currentThread))
                (Thread/sleep 5000)))))))

(deftest somebody-elses-interrupt-stays-behind-a-cancel
  (let [latch (CountDownLatch. 1), thrown (promise)
        body (fn [cancel!]
               (t/on-cancel [#(.countDown latch)]
                 (cancel!)
                 (await! latch)
                 (.interrupt (Thread/currentThread))
                 (Thread/sleep 5000)))]
    ;; Nothing here but the thread's own: clojure.test's counters use an interrupt up.
    (is (= #{:flag}
           (nests/signals
             #(t/with-timeout [5000 :late] (deliver thrown (cancelled-self body))))))
    (is (instance? CancellationException @thrown))))

        ;; Begin and end

(deftest the-pair-is-for-those-who-are-called-before-and-after
  (let [latch (CountDownLatch. 1), e (ex-info "stopped" {})
        stopped (cancelled-self
                  (fn [cancel!]
                    (let [token (spi/begin-on-cancel! #(.countDown latch))]
                      (cancel!)
                      (await! latch)
                      (throw (spi/end-on-cancel! token e)))))]
    (is (instance? CancellationException stopped))
    (is (identical? e (last (causes stopped)))))
  (t/with-scope [_]
    (let [token (spi/begin-on-cancel! (fn []))]
      (is (nil? (spi/end-on-cancel! token nil)))))
  (let [e (ex-info "body" {})]
    (is (nil? (spi/begin-on-cancel! (fn []))))
    (is (nil? (spi/end-on-cancel! nil nil)))
    (is (identical? e (spi/end-on-cancel! nil e)))))

(deftest undisturbed-work-goes-on-where-it-is-cancelled
  (let [trail (atom [])]
    (cancelled-self
      (fn [cancel!]
        (cancel!)
        (spi/undisturbed #(swap! trail conj (interrupted?) (Thread/sleep 0)))
        (swap! trail conj (interrupted?))))
    (is (= [false nil true] @trail))))

(deftest an-interrupt-that-is-taken-back-leaves-that-of-a-cancel
  (let [trail (atom []), note! #(swap! trail conj (interrupted?))]
    (.interrupt (Thread/currentThread))
    (spi/take-back-interrupt! (spi/interrupts-sent))
    (note!)
    (cancelled-self
      (fn [cancel!]
        (let [sent (spi/interrupts-sent)]
          (.interrupt (Thread/currentThread))
          (cancel!)
          (spi/take-back-interrupt! sent)
          (note!))))
    (note!)
    (is (= [false true false] @trail))))

(deftest an-interrupt-of-a-cancel-that-was-used-up-does-not-come-again
  (let [trail (atom [])]
    (cancelled-self
      (fn [cancel!]
        (cancel!)
        (swap! trail conj (Thread/interrupted))
        (let [sent (spi/interrupts-sent)]
          (.interrupt (Thread/currentThread))
          (spi/take-back-interrupt! sent))
        (swap! trail conj (interrupted?))))
    (is (= [true false] @trail))))

        ;; A body that ends at that very moment

(defn- race
  "Cancels a body about when it ends. Returns what was wrong, or nil."
  [^long i]
  (let [calls (atom 0), begun (promise), ended (volatile! nil)
        answer (try
                 (t/with-scope [s]
                   (let [canceller (doto (Thread/ofVirtual)
                                     (.start #(do
                                                @begun
                                                (dotimes [_ (mod i 50)] (Thread/onSpinWait))
                                                (t/cancel! s))))]
                     (t/on-cancel [#(swap! calls inc)]
                       (deliver begun canceller)
                       (dotimes [_ (mod (* 7 i) 50)] (Thread/onSpinWait)))
                     (vreset! ended @calls)
                     (while (not (t/cancelled? s)) (Thread/onSpinWait))
                     (Thread/sleep 10000)
                     :missed))
                 (catch CancellationException _ :cancelled))]
    (when-not (and (= :cancelled answer)
                   (= @ended @calls)
                   (<= (long @calls) 1)
                   (not (Thread/interrupted)))
      {:i i, :answer answer, :ended @ended, :calls @calls})))

(deftest a-cancel-at-the-very-end-is-neither-lost-nor-left-over
  (is (= [] (into [] (keep race) (range 300))))
  (is (nil? (place/current))))
