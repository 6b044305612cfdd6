(ns thrum.races-test
  "What all, plet, race, any and settle promise: a few calls at once, and none of them is left
  running."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.blocking :refer [await-anyway sleep-until-interrupted]]
   [thrum.core :as t]
   [thrum.impl.deadline :as deadline]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent CancellationException CountDownLatch)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:dynamic *tenant* :nobody)

(defn- type-of [e]
  (:type (ex-data e)))

(defn- meet [^CountDownLatch together value]
  (.countDown together)
  (.await together)
  value)

;; all and plet

(deftest all-runs-its-forms-at-once-and-answers-in-their-order
  (let [together (CountDownLatch. 3)]
    (is (= [1 nil false] (t/all (meet together 1) (meet together nil) (meet together false))))
    (is (= [] (t/all)))
    (is (= [1 2] (t/all-call [(constantly 1) (constantly 2)])))
    (is (vector? (t/all 1)))))

(deftest every-branch-has-a-virtual-thread-a-name-and-the-bindings
  (binding [*tenant* :acme]
    (doseq [[form-name [^Thread thread tenant]]
            {"all" (first (t/all [(Thread/currentThread) *tenant*]))
             "race" (t/race [(Thread/currentThread) *tenant*])
             "any" (t/any [(Thread/currentThread) *tenant*])
             "settle" (:value (first (t/settle [(Thread/currentThread) *tenant*])))}]
      (is (.isVirtual thread))
      (is (re-matches (re-pattern (str form-name "-\\d+/0")) (.getName thread)))
      (is (= :acme tenant)))))

(deftest the-first-failure-of-all-cancels-and-joins-the-others
  (doseq [failure [(ex-info "boom" {}) (AssertionError. "boom") (StackOverflowError.)
                   (InterruptedException. "by hand")]]
    (let [running (promise)
          ended (promise)]
      (is (identical? failure
                      (thrown (t/all (sleep-until-interrupted running ended)
                                     (do
                                       @running
                                       (throw failure))))))
      (is (realized? ended)))))

(deftest later-failures-of-all-ride
  (let [running (promise)
        ^Throwable root (ex-info "root" {})
        cleanup (ex-info "cleanup failed" {})]
    (is (identical? root
                    (thrown (t/all (try
                                     (deliver running true)
                                     (Thread/sleep 60000)
                                     (catch InterruptedException _ (throw cleanup)))
                                   (do
                                     @running
                                     (throw root))))))
    (is (some #{cleanup} (.getSuppressed root)))))

(deftest plet-binds-what-was-computed-at-once
  (let [together (CountDownLatch. 2)]
    (is (= [1 2 5]
           (t/plet [a (meet together 1) {:keys [b], [c] :cs} (meet together {:b 2, :cs [5]})]
                   [a b c]))))
  (is (= :body (t/plet [] :body)))
  (testing "none refers to another"
    (let [a :outer]
      (is (= [:inner :outer] (t/plet [a :inner b a] [a b])))
      (is (= :outer a))))
  (testing "a failure keeps the body from running"
    (is (= "boom"
           (ex-message (thrown (t/plet [_ (throw (ex-info "boom" {}))]
                                       (throw (ex-info "body" {}))))))))
  (is (= :thrum/invalid (type-of (ex-cause (thrown (eval '(thrum.core/plet [a] a))))))))

;; race and any

(deftest the-first-to-end-decides-a-race-and-the-others-are-joined
  (let [running (promise)
        ended (promise)]
    (is (= :won
           (t/race (sleep-until-interrupted running ended)
                   (do
                     @running
                     :won))))
    (is (realized? ended)))
  (testing "also by failing, with any throwable"
    (doseq [failure [(ex-info "boom" {}) (Error. "boom") (InterruptedException. "by hand")]]
      (let [running (promise)
            ended (promise)]
        (is (identical? failure
                        (thrown (t/race (sleep-until-interrupted running ended)
                                        (do
                                          @running
                                          (throw failure))))))
        (is (realized? ended)))))
  (is (nil? (t/race nil)))
  (is (false? (t/any false))))

(deftest the-result-may-be-any-value
  (doseq [value [[1 2] "text" {:a 1} () nil false (ex-info "a value" {})]]
    (is (= value
           (t/race value)
           (t/any value)
           (first (t/all value))
           (:value (first (t/settle value)))))))

(deftest the-first-to-succeed-decides-any
  (let [running (promise), ended (promise), failed (CountDownLatch. 2)]
    (is (= :won (t/any (try (throw (ex-info "a" {})) (finally (.countDown failed)))
                       (try (throw (AssertionError. "b")) (finally (.countDown failed)))
                       (sleep-until-interrupted running ended)
                       (do (.await failed) @running :won))))
    (is (realized? ended))))

(deftest when-all-have-failed-any-throws-the-first-and-the-others-ride
  (let [first-failed (promise), a (ex-info "a" {}), b (Error. "b"), c (ex-info "c" {})
        fail-later (fn [^Throwable t] @first-failed (throw t))
        ^Throwable e (thrown (t/any (fail-later a)
                                    (try (throw b) (finally (deliver first-failed true)))
                                    (fail-later c)))]
    (is (contains? #{a b c} e))
    (is (= #{a b c} (into #{e} (filter #{a b c}) (.getSuppressed e))))))

(deftest a-failure-is-not-thrown-in-place-of-a-cancel
  (doseq [[call any] {"any" #(t/any (throw (ex-info "boom" {}))
                                    (Thread/sleep 60000))
                      "hedge" #(t/hedge {:after-ms 0}
                                        (throw (ex-info "boom" {}))
                                        (Thread/sleep 60000))}]
    (testing call
      (is (= #{:thrum/timeout}
             (set (repeatedly 100 #(type-of (thrown (t/with-timeout 2 (any)))))))))))

(deftest a-loser-who-ignores-its-interrupt-delays-the-answer
  (let [running (promise)
        gate (CountDownLatch. 1)
        won (promise)
        [_ outcome] (gate/start "caller"
                                #(t/race (do
                                           (deliver running true)
                                           (await-anyway gate)
                                           :loser)
                                         (do
                                           @running
                                           (deliver won true)
                                           :won)))]
    @won
    (is (= :waiting (deref outcome 20 :waiting)))
    (.countDown gate)
    (is (= {:value :won} (deref outcome 10000 :stuck)))))

(deftest a-losers-cleanup-has-run-when-a-race-is-over
  (let [running (promise)
        trail (atom [])]
    (is (= :won
           (t/race (try
                     (deliver running true)
                     (Thread/sleep 60000)
                     (finally
                       (t/shield 60000 (Thread/sleep 1) (swap! trail conj :clean))))
                   (do
                     @running
                     :won))))
    (is (= [:clean] @trail))))

(deftest one-winner-however-close-the-race
  (dotimes [_ 200]
    (let [together (CountDownLatch. 4)]
      (is (contains?
            #{0 1 2 3}
            (t/race (meet together 0) (meet together 1) (meet together 2) (meet together 3)))))))

(deftest many-branches-are-as-good-as-few
  (let [n 2000, running (AtomicLong.), ended (AtomicLong.)
        branch (fn [i] (fn []
                         (.incrementAndGet running)
                         (try
                           (if (= i (dec n)) :won (Thread/sleep 60000))
                           (finally (.incrementAndGet ended)))))]
    (is (= :won (t/race-call (mapv branch (range n)))))
    (is (= (.get running) (.get ended)))))

(deftest a-race-of-nobody-is-refused
  (doseq [f [#(t/race) #(t/any) #(t/race-call []) #(t/any-call nil) #(t/race-call [1])
             #(t/all-call [:a 2]) #(t/settle-call ["f"])]]
    (is (= :thrum/invalid (type-of (thrown (f)))))))

;; settle

(deftest settle-tells-every-outcome
  (let [e (ex-info "e" {}), error (AssertionError. "error")]
    (is (= [{:value 1} {:error e} {:value nil} {:error error}]
           (t/settle 1 (throw e) nil (throw error))))
    (is (= [] (t/settle)))))

(deftest a-failure-stops-nobody-in-settle
  (let [failed (promise)]
    (is (= [:error :value]
           (map (comp key first)
                (t/settle (try
                            (throw (ex-info "x" {}))
                            (finally
                              (deliver failed true)))
                          (deref failed 10000 :late)))))))

(deftest settle-keeps-what-had-ended-when-the-deadline-came
  (let [alarm (promise)
        one (promise)
        two (promise)
        running (promise)
        ended (promise)
        outcomes (promise)
        here #(Thread/currentThread)
        e (with-redefs [deadline/arm! (fn [^long _ f] (deliver alarm f))
                        deadline/disarm! (fn [_])]
            (thrown (t/with-timeout 60000
                                    (deliver outcomes
                                             (t/settle (do
                                                         (deliver one (here))
                                                         :in-time)
                                                       (do
                                                         (deliver two (here))
                                                         (throw (ex-info "failed" {})))
                                                       (do
                                                         (.join ^Thread @one)
                                                         (.join ^Thread @two)
                                                         (@alarm)
                                                         (sleep-until-interrupted running ended))))
                                    (t/checkpoint))))
        [value failure cancelled] (deref outcomes 0 nil)]
    (is (= :thrum/timeout (type-of e)))
    (is (= {:value :in-time} value))
    (is (= "failed" (ex-message (:error failure))))
    (is (= {:cancelled :thrum/timeout} cancelled))
    (is (realized? ended))))

(deftest settle-tells-the-reason-of-a-cancel
  (let [running (promise), ended (promise), outcomes (promise)]
    (thrown (t/with-scope [s]
              (t/fork s @running (t/cancel! s :enough))
              (deliver outcomes (t/settle (sleep-until-interrupted running ended)))))
    (is (= [{:cancelled :enough}] (deref outcomes 0 nil)))
    (is (realized? ended))))

(deftest a-branch-of-settle-that-was-not-cancelled-itself-has-failed
  (let [gate (promise), foreign (doto (t/future @gate) (t/cancel! :foreign))]
    (doseq [branch [#(t/value foreign)
                    #(deref foreign)
                    #(t/with-scope [s] (t/cancel! s :enough) (t/checkpoint))]]
      (let [[{:keys [error]} other] (t/settle-call [branch (constantly 1)])
            task (t/future (branch))]
        (is (instance? CancellationException error))
        (is (= {:value 1} other))
        (is (= (t/error-type error)
               (t/error-type (thrown (t/value task)))
               (t/error-type (thrown (t/race (branch))))))
        (is (not (t/cancelled? task)) "as any task")))
    (deliver gate true)))

;; The caller

(deftest an-interrupt-of-the-caller-cancels-joins-and-is-thrown
  (doseq [[kind run] {:all #(t/all (%) (%))
                      :race #(t/race (%) (%))
                      :any #(t/any (%) (%))
                      :settle #(t/settle (%) (%))
                      :plet #(t/plet [a (%) b (%)] [a b])}]
    (testing kind
      (let [running (CountDownLatch. 2)
            ended (CountDownLatch. 2)
            branch #(try
                      (.countDown running)
                      (Thread/sleep 60000)
                      (finally
                        (.countDown ended)))
            [^Thread caller outcome] (gate/start "caller" #(run branch))]
        (.await running)
        (.interrupt caller)
        (is (instance? InterruptedException (:thrown (deref outcome 10000 :stuck))))
        (is (zero? (.getCount ended)))))))

(deftest a-cancel-of-the-caller-cancels-joins-and-is-thrown
  (doseq [[kind run] {:all #(t/all (%) (%))
                      :race #(t/race (%) (%))
                      :any #(t/any (%) (%))
                      :plet #(t/plet [a (%) b (%)] [a b])}]
    (testing kind
      (let [running (CountDownLatch. 2)
            ended (CountDownLatch. 2)
            seen (promise)
            branch #(try
                      (.countDown running)
                      (Thread/sleep 60000)
                      (finally
                        (.countDown ended)))
            task (t/future (deliver seen (thrown (run branch))))]
        (.await running)
        (future-cancel task)
        (is (instance? CancellationException (deref seen 10000 nil)))
        (is (zero? (.getCount ended)))))))

(deftest races-nest
  (let [running (promise), ended (promise)]
    (is (= [[1 2] :won] (t/all (t/all 1 2)
                               (t/race (t/race (t/any (sleep-until-interrupted running ended)))
                                       (do @running :won)))))
    (is (realized? ended))))
