(ns thrum.supervisor-test
  "Scopes that keep the failures of their forks with the forks, and waits for forks before the end."
  (:require
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.alarms :as alarms]
   [thrum.core :as t]
   [thrum.impl.completed :as completed]
   [thrum.impl.group :as group]
   [thrum.impl.scope :as scope]
   [thrum.impl.task :as task]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.sql SQLException)
   (java.util.concurrent CancellationException ExecutionException)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

;; :on-error :keep

(deftest a-failure-of-a-fork-stays-with-the-fork
  (doseq [failure [(ex-info "no" {}) (AssertionError. "no") (StackOverflowError.)]]
    (let [gate (promise), trail (atom [])]
      (is (= :body
             (t/with-scope [s {:on-error :keep}]
               (t/fork s (deref gate 5000 :late) (swap! trail conj :sibling))
               (let [failed (t/fork s (throw failure))]
                 (is (identical? failure (thrown (t/value failed))))
                 (is (not (t/cancelled? s)))
                 (deliver gate :go)
                 :body))))
      (is (= [:sibling] @trail)))))

(deftest a-failure-that-nobody-asks-for-is-no-failure-of-the-scope
  (is (= :body (t/with-scope [s {:on-error :keep}]
                 (t/fork s (throw (Exception. "no")))
                 (t/fork s {:daemon? true} (throw (Exception. "no")))
                 :body))))

(deftest the-bodys-own-failure-is-thrown
  (let [failure (SQLException. "no"), forks-own (ex-info "fork" {})]
    (doseq [body [(fn [_] (throw failure)) (fn [s] (t/value (t/fork s (throw failure))))]]
      (let [e (thrown (t/with-scope [s {:on-error :keep}]
                        (thrown (t/value (t/fork s (throw forks-own))))
                        (body s)))]
        (is (identical? failure e))
        (is (= [] (vec (.getSuppressed ^Throwable e))))))
    (testing "that of deref with its wrapper"
      (let [e (thrown (t/with-scope [s {:on-error :keep}] @(t/fork s (throw failure))))]
        (is (instance? ExecutionException e))
        (is (identical? failure (ex-cause e)))))))

(deftest a-failing-body-cancels-the-forks
  (let [running (promise), ended (promise)]
    (thrown (t/with-scope [s {:on-error :keep}]
              (t/fork s (try
                          (deliver running true)
                          (Thread/sleep 60000)
                          (finally (deliver ended true))))
              (deref running 5000 nil)
              (throw (Exception. "no"))))
    (is (realized? ended))))

(deftest a-deadline-ends-a-supervisor
  (alarms/by-hand
    (fn [alarms]
      (is (= :thrum/timeout
             (t/error-type (thrown (t/with-scope [s {:on-error :keep, :timeout-ms 60000}]
                                     (t/fork s (throw (Exception. "no")))
                                     (t/fork s (alarms/ring! alarms) (Thread/sleep 60000))
                                     :body))))))))

;; join!

(deftest join-waits-for-the-forks-so-far
  (let [gate (promise), trail (atom []), endless (promise)]
    (t/with-scope [s]
      (t/fork s {:daemon? true} (deref endless))
      (t/fork s (deref gate 5000 :late) (swap! trail conj :fork))
      (t/fork s
              (t/fork s (deref endless 5000 nil) (swap! trail conj :later))
              (deliver gate :go))
      (is (gate/eventually 5000 #(realized? gate)))
      (is (gate/eventually 5000 #(= [:fork] @trail)))
      (deliver endless :go)
      (is (nil? (t/join! s)))
      (swap! trail conj :joined)
      (is (nil? (t/join! s))))
    (is (= [:fork :later :joined] @trail))))

(deftest join-does-not-wait-for-daemons
  (let [gate (promise)]
    (try
      (is (= [nil false]
             (gate/in-time 5000
                           #(t/with-scope [s]
                              (let [daemon (t/fork s {:daemon? true} (deref gate 20000 nil))]
                                (spi/fork! s {:daemon? true, :on-end identity}
                                  (fn [] (deref gate 20000 nil)))
                                (t/fork s 1)
                                [(t/join! s) (future-done? daemon)])))))
      (finally (deliver gate :go)))))

(deftest join-waits-for-a-cancelled-fork-until-it-has-ended
  (let [ended (promise), running (promise)]
    (t/with-scope [s]
      (let [fork (t/fork s
                         (deliver running true)
                         (try
                           (Thread/sleep 60000)
                           (finally (t/shield 1000 (Thread/sleep 5)) (deliver ended true))))]
        (deref running 5000 nil)
        (t/cancel! fork)
        (t/join! s)
        (is (realized? ended))))))

(deftest join-throws-where-the-scope-is-cancelled
  (let [failure (ex-info "no" {}), seen (promise), gate (promise)]
    (is (identical? failure
                    (thrown (t/with-scope [s]
                              (t/fork s (deref gate 5000 nil) (throw failure))
                              (try
                                (deliver gate true)
                                (t/join! s)
                                (catch Throwable t (deliver seen t) (throw t)))))))
    (is (instance? CancellationException (deref seen 0 nil))))
  (is (nil? (t/with-scope [s {:on-error :keep}]
              (t/fork s (throw (Exception. "no")))
              (t/join! s)))))

(deftest only-the-body-waits-for-forks
  (doseq [wait [t/join! #(doall (t/completions %))]]
    (t/with-scope [s {:on-error :keep}]
      (is (= :thrum/invalid (t/error-type (thrown (t/value (t/fork s (wait s)))))))
      (testing "also in an inner scope"
        (is (t/with-scope [_] (wait s) true)))))
  (is (= :thrum/closed (t/error-type (thrown (t/join! (t/with-scope [s] s))))))
  (is (= :thrum/invalid (t/error-type (thrown (t/join! 1))))))

(deftest an-interrupt-ends-the-waits-for-forks
  (doseq [wait [t/join! #(doall (t/completions %))]]
    (let [running (promise), ended (promise)
          [^Thread thread outcome]
          (gate/start "body"
                      #(t/with-scope [s {:on-error :keep}]
                         (t/fork s (try
                                     (deliver running true)
                                     (Thread/sleep 60000)
                                     (finally (deliver ended true))))
                         (wait s)))]
      (is (deref running 5000 nil))
      (is (gate/eventually 5000 #(= Thread$State/WAITING (.getState thread))))
      (.interrupt thread)
      (is (instance? InterruptedException (:thrown (deref outcome 5000 nil))))
      (is (realized? ended)))))

;; completions

(deftest tasks-are-handed-out-as-they-end
  (let [gates (vec (repeatedly 3 promise)), order [2 0 1]]
    (t/with-scope [s {:on-error :keep}]
      (doseq [i (range 3)]
        (t/fork s (deref (gates i) 5000 nil) (if (= 0 i) (throw (ex-info "no" {:i i})) i)))
      (deliver (gates 2) true)
      (let [seen (reduce (fn [seen task]
                           (some-> (get order (inc (count seen))) gates (deliver true))
                           (conj seen (try (t/value task) (catch Exception e (:i (ex-data e))))))
                         []
                         (t/completions s))]
        (is (= order seen))))))

(deftest what-ended-before-is-handed-out-too
  (t/with-scope [s {:on-error :keep}]
    (let [tasks (mapv #(t/fork s %) (range 100))]
      (t/join! s)
      (is (= (set tasks) (set (t/completions s))))
      (is (empty? (t/completions s)))
      (testing "and then what is forked later"
        (t/fork s {:daemon? true} :daemon)
        (t/fork s (t/fork s :inner) :outer)
        (is (= #{:inner :outer} (set (map t/value (t/completions s)))))))))

(deftest a-crowd-of-forks-that-nobody-asked-for-is-not-held
  (t/with-scope [s {:on-error :keep}]
    (dotimes [_ 100] (dotimes [_ 101] (t/fork s nil)) (t/join! s))
    (is (= :thrum/invalid (t/error-type (thrown (t/completions s)))))))

(deftest a-crowd-that-can-no-longer-be-asked-for-takes-no-memory
  (let [completed (completed/completed)]
    (dotimes [i 10001] (completed/put! completed (task/latch (str i))))
    (is (.isEmpty completed))
    (is (false? (completed/claim! completed)))
    (completed/put! completed (task/latch "late"))
    (is (.isEmpty completed)))
  (let [completed (completed/completed)]
    (dotimes [i 10000] (completed/put! completed (task/latch (str i))))
    (is (true? (completed/claim! completed)))))

(deftest a-crowd-is-held-for-who-asked-before
  (t/with-scope [s {:on-error :keep}]
    (let [tasks (t/completions s)]
      (dotimes [_ 100] (dotimes [_ 101] (t/fork s nil)) (t/join! s))
      (is (= 10100 (count tasks))))))

(defn- start-or-run-out
  "Returns a group/start! that starts daemons alone: for other tasks it delivers that they count,
  and has no memory left once the promised thread waits."
  [start! counted waiting]
  (fn [group task]
    (if (scope/awaited? task)
      (let [_ (deliver counted true), ^Thread thread (deref waiting 5000 nil)]
        (gate/eventually 5000 #(= Thread$State/WAITING (.getState thread)))
        (throw (OutOfMemoryError. "no thread")))
      (start! group task))))

(deftest a-fork-that-cannot-start-is-waited-for-no-more
  (let [counted (promise), waiting (promise)
        wait #(t/with-scope [s {:on-error :keep}]
                (t/fork s {:daemon? true} (t/fork s :never))
                (deref counted 5000 nil)
                (deliver waiting (Thread/currentThread))
                (doall (t/completions s)))]
    (with-redefs [group/start! (start-or-run-out group/start! counted waiting)]
      (is (= [] (gate/in-time 10000 wait))))))

(deftest a-fork-that-cannot-start-ends-the-scopes-wait-beside-a-daemon
  (let [counted (promise), waiting (promise)
        wait #(t/with-scope [s]
                (t/fork s {:daemon? true} (thrown (t/fork s :never)) (Thread/sleep 60000))
                (deref counted 5000 nil)
                (deliver waiting (Thread/currentThread))
                :body)]
    (with-redefs [group/start! (start-or-run-out group/start! counted waiting)]
      (is (= :body (gate/in-time 10000 wait))))))

(deftest completions-of-another-scope-is-refused
  (t/with-scope [s] (is (= :thrum/invalid (t/error-type (thrown (t/completions s))))))
  (let [[tasks s] (t/with-scope [s {:on-error :keep}] [(t/completions s) s])]
    (is (= :thrum/closed (t/error-type (thrown (doall tasks)))))
    (is (= :thrum/closed (t/error-type (thrown (t/completions s)))))))

;; as-completed

(deftest any-tasks-come-as-they-end
  (let [gates (vec (repeatedly 3 promise))
        tasks (mapv (fn [i] (t/future (deref (gates i) 5000 nil) i)) (range 3))
        seq (t/as-completed tasks)]
    (deliver (gates 1) true)
    (is (= 1 (t/value (first seq))))
    (t/cancel! (tasks 2))
    (is (= (tasks 2) (second seq)))
    (deliver (gates 0) true)
    (is (= [(tasks 1) (tasks 2) (tasks 0)] seq))
    (is (= (set tasks) (set (t/as-completed tasks))) "they had all ended"))
  (is (= [] (t/as-completed []) (t/as-completed nil)))
  (doseq [tasks [[1] 5]]
    (is (= :thrum/invalid (t/error-type (thrown (t/as-completed tasks)))))))

(deftest a-wait-for-any-task-has-an-end
  (let [gate (promise), task (t/future (deref gate))]
    (is (= :late (t/with-timeout [5 :late] (doall (t/as-completed [task])))))
    (deliver gate true)
    (is (= [task] (t/as-completed [task])))))

(deftest a-wait-that-has-thrown-can-be-repeated
  (let [gates (vec (repeatedly 4 promise))
        tasks (mapv (fn [gate] (t/future (deref gate 5000 :late))) gates)
        end! #(do (deliver (gates %) %) (is (= % (t/value (tasks %)))))
        seq (t/as-completed (conj tasks (tasks 3)))
        interrupted #(do (.interrupt (Thread/currentThread)) (thrown (first %)))]
    (is (instance? InterruptedException (interrupted seq)))
    (end! 2)
    (is (instance? InterruptedException (interrupted (rest seq))) "the first had ended meanwhile")
    (end! 1)
    (end! 0)
    (is (= (set (take 3 tasks)) (set (take 3 seq))))
    (is (instance? InterruptedException (interrupted (drop 3 seq))))
    (is (instance? InterruptedException (interrupted (drop 3 seq))))
    (end! 3)
    (is (= [(tasks 3) (tasks 3)] (drop 3 seq)) "as often as it was given")
    (is (= 5 (count seq)))))

(deftest many-tasks-come-in-linear-time
  (let [gate (promise), n 5000
        tasks (mapv (fn [_] (t/future (deref gate))) (range n))
        seq (t/as-completed tasks)]
    (deliver gate true)
    (is (= n (gate/in-time 20000 #(count seq))))))
