(ns thrum.retry-test
  "Schedules are data, looked at without a clock; the attempts run on a clock that jumps ahead
  instead of waiting."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is testing use-fixtures]]
   [thrum.impl.clock :as clock]
   [thrum.impl.context :as context]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.group :as group]
   [thrum.impl.retry :as retry]
   [thrum.impl.task :as task]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.nio.channels ClosedByInterruptException)
   (java.util.concurrent CancellationException ExecutionException)
   (thrum.impl.task Task)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- call [options f]
  (retry/call options (fn [_] (f))))

;; Schedules

(deftest an-exponential-schedule-doubles-up-to-its-longest-wait
  (is (= [100 200 400 800 1000 1000] (take 6 (retry/exponential 100 1000))))
  (is (= [7 7] (take 2 (retry/exponential 50 7))))
  (is (= [0 0] (take 2 (retry/exponential 0 10)))))

(deftest a-long-exponential-schedule-does-not-overflow
  (let [waits (take 200 (retry/exponential 3 Long/MAX_VALUE))]
    (is (apply <= waits))
    (is (= Long/MAX_VALUE (last waits)))))

(deftest a-constant-schedule-never-ends
  (is (= [5 5 5] (take 3 (retry/constant 5)))))

(deftest jitter-takes-a-part-of-each-wait
  (is (= [50 100 200] (take 3 (retry/jitter #(quot % 2) (retry/exponential 100 1000)))))
  (is (every? #(<= 0 % 3) (take 1000 (retry/jitter (retry/constant 3)))))
  (is (= #{0 1 2 3} (set (take 1000 (retry/jitter (retry/constant 3))))))
  (is (= [0 0] (seq (retry/jitter [0 0]))))
  (is (nat-int? (first (retry/jitter [Long/MAX_VALUE])))))

(deftest a-schedule-with-jitter-can-be-shared
  (doseq [shared [(retry/jitter (retry/constant 1000000000))
                  (retry/max-elapsed Long/MAX_VALUE (retry/jitter (retry/constant 1000000000)))]]
    (is (not= (vec (take 8 shared)) (vec (take 8 shared))))))

(deftest max-elapsed-ends-before-its-sum-would-be-exceeded
  (are [waits ms schedule] (= waits (vec (retry/max-elapsed ms schedule)))
    [100 200] 300 (retry/exponential 100 1000)
    [100 200] 699 (retry/exponential 100 1000)
    [100 200 400] 700 (retry/exponential 100 1000)
    [] 99 (retry/exponential 100 1000)
    [0 0] 0 [0 0 1 0]
    [1] 5 [1]
    [Long/MAX_VALUE] Long/MAX_VALUE (retry/constant Long/MAX_VALUE))
  (let [shared (retry/max-elapsed 3 (retry/constant 1))]
    (is (= [1 1 1] (vec shared) (vec shared)))))

(deftest what-makes-no-schedule-is-refused-at-the-call
  (are [form] (= :thrum/invalid (:type (ex-data (thrown form))))
    (retry/constant -1)
    (retry/constant "5")
    (retry/constant 1.5)
    (retry/constant nil)
    (retry/exponential -1 5)
    (retry/exponential 1 -5)
    (retry/exponential :a 5)
    (retry/jitter 5)
    (retry/jitter 5 [1])
    (retry/jitter nil)
    (retry/max-elapsed -1 [1])
    (retry/max-elapsed 1 1)
    (retry/max-elapsed (retry/constant 1) 1)
    (call {:attempts 0} (fn []))
    (call {:schedule 5} (fn []))
    (call {:retry? 5} (fn []))
    (call {:attempt 5} (fn []))
    (call 3 (fn [])))
  (is (str/includes? (ex-message (thrown (retry/constant -1))) "-1"))
  (is (= -1 (:value (ex-data (thrown (retry/constant -1)))))))

;; Attempts

(defn- jumping
  "Returns a clock that is ahead by what it is asked to park, and calls on-park before."
  [now on-park]
  (reify clock/Clock
    (nanos [_] @now)
    (park-nanos [_ _ n] (on-park) (swap! now + n) nil)))

(defn- on-virtual-time
  "Returns the value of f and the virtual ms that it took, {:value v} or {:thrown t}, with :ms."
  ([f] (on-virtual-time (fn []) f))
  ([on-park f]
   (let [now (atom 0)]
     (with-redefs [clock/clock (jumping now on-park)]
       (assoc (try {:value (f)} (catch Throwable t {:thrown t}))
              :ms (quot @now 1000000))))))

(defn- failing
  "Returns a function that throws these in turn and then returns :done; calls counts its calls."
  [calls throwables]
  (let [left (atom throwables)]
    (fn []
      (swap! calls inc)
      (if-some [t (first @left)]
        (do (swap! left rest) (throw t))
        :done))))

(defn- tried
  "Returns what came of a retry of a function that throws these in turn: :value or :thrown, :ms,
  :calls."
  [options throwables]
  (let [calls (atom 0)]
    (assoc (on-virtual-time #(call options (failing calls throwables))) :calls @calls)))

(defn- suppressed [^Throwable t]
  (vec (.getSuppressed t)))

(defn- failures [n]
  (mapv #(ex-info (str "failure " %) {}) (range n)))

(defn- in-scope
  "Returns the value of f, called in the scope on this thread."
  [scope f]
  (let [^Task task (task/task (context/capture nil scope) nil 0 f)]
    (context/on-borrowed-thread #(.run task))
    (task/value task)))

(deftest what-succeeds-is-called-once
  (is (= {:value :done, :ms 0, :calls 1} (tried {} [])))
  (is (nil? (call {} (fn []))))
  (is (false? (call {} (fn [] false)))))

(deftest it-waits-as-the-schedule-says
  (is (= {:value :done, :ms 300, :calls 3}
         (tried {:schedule (retry/exponential 100 10000)} (failures 2))))
  (is (= {:value :done, :ms 35, :calls 3} (tried {:schedule [5 30 1000]} (failures 2))))
  (is (= {:value :done, :ms 0, :calls 3} (tried {:schedule (retry/constant 0)} (failures 2)))))

(deftest the-last-of-three-failures-is-thrown-with-the-others-suppressed
  (let [[a b c] (failures 3)
        {:keys [thrown calls]} (tried {} [a b c])]
    (is (identical? c thrown))
    (is (= [a b] (suppressed c)))
    (is (= 3 calls))))

(deftest the-end-of-the-schedule-is-the-end
  (is (= 1 (:calls (tried {:schedule [], :attempts 9} (failures 9)))))
  (is (= [3 7] ((juxt :calls :ms) (tried {:schedule [3 4], :attempts 9} (failures 9)))))
  (is
    (= [4 30]
       ((juxt :calls :ms)
        (tried {:schedule (retry/max-elapsed 39 (retry/constant 10)), :attempts 9} (failures 9)))))
  (is (= 1 (:calls (tried {:attempts 1} (failures 9))))))

(deftest no-more-waits-are-realised-than-waited
  (let [realised (atom 0)
        schedule (map #(do (swap! realised inc) %) (iterate inc 1))]
    (is (= 2 (:calls (tried {:schedule schedule, :attempts 9} (failures 1)))))
    (is (= 1 @realised)))
  (let [drawn (atom 0), draw #(do (swap! drawn inc) %)]
    (is (= 2 (:calls (tried {:schedule (retry/jitter draw (repeat 1)), :attempts 9} (failures 1)))))
    (is (= 1 @drawn))))

(deftest the-predicate-decides
  (let [[a b] (failures 2), asked (atom [])
        decide (fn [t] (swap! asked conj t) (identical? a t))]
    (is (= [b 2] ((juxt :thrown :calls) (tried {:retry? decide} [a b]))))
    (is (= [a b] @asked))
    (is (= [a] (suppressed b)))
    (testing "and is not asked when no attempt is left"
      (reset! asked [])
      (tried {:retry? decide, :attempts 1} [a])
      (is (= [] @asked)))))

(deftest at-most-sixteen-are-suppressed-each-once
  (let [all (failures 40), {:keys [thrown calls]} (tried {:attempts 40} all)]
    (is (= 40 calls))
    (is (identical? (peek all) thrown))
    (is (= (take 16 all) (suppressed thrown))))
  (let [[a b] (failures 2)]
    (is (identical? a (:thrown (tried {:attempts 5} [a a a a a]))))
    (is (= [] (suppressed a)))
    (is (identical? b (:thrown (tried {:attempts 5} [a b a b b]))))
    (is (= [a] (suppressed b))))
  (testing "also where it was suppressed before"
    (let [[a ^Throwable b] (failures 2)]
      (.addSuppressed b a)
      (tried {:attempts 2} [a b])
      (is (= [a] (suppressed b))))))

(deftest some-failures-are-final
  (doseq [^Throwable t [(AssertionError. "no")
                        (StackOverflowError.)
                        (OutOfMemoryError. "no")
                        (ExecutionException. (AssertionError. "in a task"))
                        (InterruptedException. "by hand")
                        (ClosedByInterruptException.)
                        (CancellationException.)
                        (RuntimeException. (InterruptedException.))
                        (error/closed "s" :done)
                        (error/invalid "no" {})
                        (error/deadlock "no" {})
                        (ExecutionException. (error/invalid "in a task" {}))]]
    (let [first-one (ex-info "first" {})
          {:keys [thrown calls]} (tried {:retry? (constantly true)} [first-one t])]
      (is (identical? t thrown))
      (is (= 2 calls) (str t))
      (is (= [first-one] (suppressed t))))))

(deftest others-are-not
  (doseq [t [(Exception.)
             (ex-info "no" {})
             (java.io.IOException. "reset")
             (java.net.SocketTimeoutException.)
             (java.io.InterruptedIOException. "a client's own timeout")
             (ExecutionException. (ex-info "in a task" {}))
             (ExecutionException. "without a cause" nil)
             (ex-info "full" {:type :thrum/rejected})
             (error/timeout "with-timeout" {:timeout-ms 5} (InterruptedException.))]]
    (is (= [:done 2] ((juxt :value :calls) (tried {} [t]))) (str t))))

(deftest a-stack-that-really-overflows-is-final
  (let [calls (atom 0), deeper (fn deeper [n] (inc (deeper (inc n))))]
    (is (instance? StackOverflowError (thrown (call {} #(do (swap! calls inc) (deeper 0))))))
    (is (= 1 @calls))))

(deftest an-interrupted-thread-tries-no-more-and-stays-interrupted
  (let [calls (atom 0)
        [a] (failures 1)
        e (thrown (call {:schedule (retry/constant 0)}
                    #(do
                       (swap! calls inc)
                       (.interrupt (Thread/currentThread))
                       (throw a))))]
    (is (Thread/interrupted))
    (is (identical? a e))
    (is (= 1 @calls))))

(deftest an-interrupt-of-the-wait-carries-the-failures
  (let [[a b] (failures 2)
        parks (atom 0)
        interrupt-second #(when (= 2 (swap! parks inc)) (.interrupt (Thread/currentThread)))
        call-failing #(call {:schedule (retry/constant 1)} (failing (atom 0) [a b]))
        {:keys [^Throwable thrown]} (on-virtual-time interrupt-second call-failing)]
    (is (instance? InterruptedException thrown))
    (is (= [a b] (suppressed thrown)))
    (is (not (Thread/interrupted)))))

(deftest an-interrupt-ends-a-real-wait
  (let [[a] (failures 1)
        failed (promise)
        [^Thread thread outcome] (gate/start "retrying"
                                             (fn []
                                               (call {:schedule (retry/constant 60000)}
                                                 #(do
                                                    (deliver failed true)
                                                    (throw a)))))]
    @failed
    (is (gate/eventually 5000 #(= Thread$State/TIMED_WAITING (.getState thread))))
    (.interrupt thread)
    (let [{:keys [thrown]} (deref outcome 5000 nil)]
      (is (instance? InterruptedException thrown))
      (is (= [a] (suppressed thrown))))))

(deftest a-cancelled-scope-tries-no-more
  (let [calls (atom 0)
        [a] (failures 1)
        scope (group/group "s" nil)]
    (is (identical? a
                    (thrown (in-scope scope
                                      (fn []
                                        (call {:schedule (retry/constant 0)}
                                          #(do
                                             (swap! calls inc)
                                             (group/cancel! scope :stop)
                                             (throw a))))))))
    (is (= 1 @calls))))

(deftest a-cancel-of-the-wait-carries-the-failures
  (let [[a] (failures 1)
        scope (group/group "s" nil)
        seen (promise)]
    (on-virtual-time #(group/cancel! scope :stop)
                     (fn []
                       (in-scope scope
                                 #(try
                                    (call {:schedule (retry/constant 1)} (failing (atom 0) [a]))
                                    (catch Throwable t (deliver seen t))))))
    (let [t (deref seen 0 nil)]
      (is (instance? CancellationException t))
      (is (= :stop (:reason (ex-data t))))
      (is (= [a] (suppressed t))))))

(defn- tried-until
  "As tried, in a scope with a deadline so many ms from now."
  [ms options throwables]
  (let [calls (atom 0)]
    (assoc (on-virtual-time (fn []
                              (in-scope (group/opened-group "s" nil (deadline/in-ms ms) nil nil)
                                        #(call options (failing calls throwables)))))
           :calls @calls)))

(deftest no-wait-begins-that-would-reach-the-deadline
  (let [[a b] (failures 2)
        {:keys [thrown calls ms]} (tried-until 250 {:schedule (retry/constant 200)} [a b])]
    (is (identical? b thrown))
    (is (= [a] (suppressed b)))
    (is (= [2 200] [calls ms])))
  (testing "a wait that ends with the deadline reaches it"
    (is (= [1 0]
           ((juxt :calls :ms) (tried-until 200 {:schedule (retry/constant 200)} (failures 9)))))
    (is (= [2 200]
           ((juxt :calls :ms) (tried-until 201 {:schedule (retry/constant 200)} (failures 9))))))
  (is (= 1 (:calls (tried-until 1000 {:schedule [Long/MAX_VALUE]} (failures 9))))))

(deftest what-the-user-gave-may-fail-too
  (let [[a b] (failures 2)]
    (testing "the predicate"
      (is (identical? b (:thrown (tried {:retry? (fn [_] (throw b))} [a]))))
      (is (= [a] (suppressed b))))
    (testing "the schedule"
      (doseq [schedule [[-1] [nil] ["5"] (retry/jitter [-1]) (retry/max-elapsed 10 [nil])]]
        (let [{:keys [thrown]} (tried {:schedule schedule} [a])]
          (is (= :thrum/invalid (:type (ex-data thrown))))
          (is (= [a] (suppressed thrown))))))))
