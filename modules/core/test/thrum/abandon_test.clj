(ns thrum.abandon-test
  "A call that ignores its interrupt holds nobody: its caller leaves, and it runs out by itself."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.impl.abandon :as abandon]
   [thrum.impl.completion :as completion]
   [thrum.impl.context :as context]
   [thrum.impl.group :as group]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.place :as place]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent CancellationException)
   (thrum.impl.task Task)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:dynamic *tenant* :nobody)

(defn- here ^Thread [] (Thread/currentThread))

(defn- nothing [])

(defn- running [] (:running (abandon/abandoned)))

(defn- total [] (:total (abandon/abandoned)))

(defn- all-ended? []
  (gate/eventually 5000 #(zero? (running))))

(deftest the-value-comes-back
  (let [before (total)]
    (is (= 42 (abandon/call nil nothing (fn [] 42))))
    (is (nil? (abandon/call nil nothing (fn []))))
    (is (false? (abandon/call nil nothing (fn [] false))))
    (is (= before (total)))))

(deftest the-failure-comes-back-as-it-is
  (doseq [failure [(Exception.) (ex-info "no" {}) (AssertionError. "no") (StackOverflowError.)
                   (InterruptedException. "by hand") (CancellationException.)]
          :let [abandoned (atom 0)]]
    (is (identical? failure
                    (thrown (abandon/call nil #(swap! abandoned inc) (fn [] (throw failure))))))
    (is (zero? @abandoned))
    (is (not (Thread/interrupted)))))

(deftest it-runs-on-a-daemon-platform-thread-in-the-callers-bindings
  (let [^Thread thread (abandon/call nil nothing here)]
    (is (not (.isVirtual thread)))
    (is (.isDaemon thread))
    (is (re-matches #"abandon-\d+" (.getName thread))))
  (is (= :acme (binding [*tenant* :acme] (abandon/call nil nothing (fn [] *tenant*))))))

(defn- fork! [scope f]
  (doto (task/task (context/capture nil scope)
                   (reify completion/CompletionHandler
                     (failed [_ _ _])
                     (ended [_ task] (group/child-left! (group/children-of scope) task)))
                   0 f)
    (->> (group/start! scope))))

(deftest it-belongs-to-no-scope
  (let [scope (group/group "s" nil)]
    (is (= [scope nil]
           @(fork! scope
                   (fn [] [(place/current-group) (abandon/call nil nothing place/current-group)]))))
    (group/join! scope)))

(defn- opened
  "Waits for the gate; returns its value, or ::interrupted."
  [gate]
  (try @gate (catch InterruptedException _ ::interrupted)))

(defn- hanging
  "Returns a call that delivers begun and hangs until the gate opens, also when interrupted; an
  interrupt shows afterwards."
  [begun gate]
  (fn []
    (deliver begun true)
    (loop [interrupted? false]
      (let [value (opened gate)]
        (if (= ::interrupted value)
          (recur true)
          (do (when interrupted? (.interrupt (here)))
              value))))))

(deftest an-interrupt-frees-the-caller-and-the-call-runs-out
  (let [begun (promise)
        gate (promise)
        ran-out (promise)
        closed-on (promise)
        closings (atom 0)
        before (total)
        hang (hanging begun gate)
        [^Thread caller outcome]
        (gate/start "caller"
                    (fn []
                      (binding [*tenant* :acme]
                        (try
                          (abandon/call nil #(do
                                               (swap! closings inc)
                                               (deliver closed-on [(here) *tenant*]))
                                        #(do
                                           (hang)
                                           (deliver ran-out (.isInterrupted (here)))))
                          (catch InterruptedException e [e (.isInterrupted (here))])))))]
    @begun
    (.interrupt caller)
    (let [[e interrupted?] (:value (deref outcome 5000 nil))]
      (is (instance? InterruptedException e))
      (is (false? interrupted?)))
    (let [[^Thread closer tenant] (deref closed-on 5000 nil)]
      (is (re-matches #"on-abandon-\d+" (.getName closer)))
      (is (and (.isDaemon closer) (not (.isVirtual closer))))
      (is (= :acme tenant)))
    (is (= {:running 1, :total (inc before)} (abandon/abandoned)))
    (is (not (realized? ran-out)))
    (deliver gate :open)
    (is (false? (deref ran-out 5000 :never)) "no thread interrupted the call")
    (is (all-ended?))
    (is (= [1 (inc before)] [@closings (total)]))))

(deftest a-cancel-frees-the-caller
  (let [begun (promise)
        gate (promise)
        closed (promise)
        seen (promise)
        scope (group/group "s" nil)]
    (fork! scope
           #(try
              (abandon/call nil (fn [] (deliver closed true)) (hanging begun gate))
              (catch Throwable t (deliver seen t))))
    @begun
    (group/cancel! scope :stop)
    (group/join! scope)
    (let [t (deref seen 0 nil)]
      (is (instance? CancellationException t))
      (is (= :stop (:reason (ex-data t)))))
    (is (deref closed 5000 false))
    (is (= 1 (running)))
    (deliver gate :open)
    (is (all-ended?))))

(deftest a-failure-after-the-caller-has-left-is-dropped
  (let [begun (promise)
        gate (promise)
        hang (hanging begun gate)
        [^Thread caller outcome] (gate/start "caller"
                                             (fn []
                                               (abandon/call nil nothing
                                                             #(do
                                                                (hang)
                                                                (throw (ex-info "late" {}))))))]
    @begun
    (.interrupt caller)
    (is (instance? InterruptedException (:thrown (deref outcome 5000 nil))))
    (deliver gate :open)
    (is (all-ended?))))

(defn- handled-by
  "Starts threads with an uncaught exception handler that delivers what it is called with."
  [seen]
  (let [make jdk/platform-thread]
    (fn [name body]
      (doto ^Thread (make name body)
        (.setUncaughtExceptionHandler (reify Thread$UncaughtExceptionHandler
                                        (uncaughtException [_ _ t] (deliver seen t))))))))

(deftest a-failing-on-abandon-is-reported-and-changes-nothing
  (let [begun (promise)
        gate (promise)
        seen (promise)
        failure (ex-info "cannot close" {})]
    (with-redefs [jdk/platform-thread (handled-by seen)]
      (let [[^Thread caller outcome]
            (gate/start "caller" #(abandon/call nil (fn [] (throw failure)) (hanging begun gate)))]
        @begun
        (.interrupt caller)
        (is (instance? InterruptedException (:thrown (deref outcome 5000 nil))))
        (is (identical? failure (deref seen 5000 :lost)))))
    (deliver gate :open)
    (is (all-ended?))))

(deftest a-call-that-has-ended-is-not-abandoned
  (let [before (total), closings (atom 0)
        run-here (fn [^Task call _thread]
                   (context/on-borrowed-thread #(.run call))
                   (.interrupt (here))
                   call)]
    (is (= 42 (with-redefs [task/start! run-here]
                (abandon/call nil #(swap! closings inc) (fn [] 42)))))
    (is (Thread/interrupted) "the interrupt is left to the caller's next wait")
    (is (= [0 before] [@closings (total)]))))

(deftest a-call-that-ends-while-its-caller-leaves-is-abandoned-but-does-not-run
  (let [before (abandon/abandoned)
        closed (promise)]
    (is (instance? InterruptedException
                   (thrown (with-redefs [task/start! (fn [^Task call _thread]
                                                       (context/on-borrowed-thread #(.run call))
                                                       call)
                                         wait/until (fn [_ _ _] (throw (InterruptedException.)))]
                             (abandon/call nil #(deliver closed true) (fn [] 42))))))
    (is (deref closed 5000 false))
    (is (= (update before :total inc) (abandon/abandoned)))))

(deftest who-was-interrupted-before-calls-nothing
  (let [calls (atom 0)
        before (abandon/abandoned)]
    (.interrupt (here))
    (is (instance? InterruptedException
                   (thrown (abandon/call nil #(swap! calls inc) #(swap! calls inc)))))
    (is (not (Thread/interrupted)))
    (is (= [0 before] [@calls (abandon/abandoned)]))))

(deftest a-thread-that-cannot-start-leaves-nothing
  (let [before (abandon/abandoned)
        calls (atom 0)
        failure (OutOfMemoryError. "unable to create native thread")]
    (is (identical? failure
                    (thrown (with-redefs [jdk/platform-thread (fn [_ _] (throw failure))]
                              (abandon/call nil #(swap! calls inc) #(swap! calls inc))))))
    (is (= [0 before] [@calls (abandon/abandoned)]))))

(deftest a-closing-that-cannot-start-is-suppressed
  (let [begun (promise)
        gate (promise)
        make jdk/platform-thread
        failure (OutOfMemoryError. "unable to create native thread")
        only-the-call #(if (str/starts-with? %1 "on-") (throw failure) (make %1 %2))]
    (with-redefs [jdk/platform-thread only-the-call]
      (let [[^Thread caller outcome] (gate/start "caller"
                                                 #(abandon/call nil nothing (hanging begun gate)))]
        @begun
        (.interrupt caller)
        (let [{:keys [^Throwable thrown]} (deref outcome 5000 nil)]
          (is (instance? InterruptedException thrown))
          (is (= [failure] (vec (.getSuppressed thrown)))))))
    (deliver gate :open)
    (is (all-ended?))))

(deftest on-abandon-is-a-function
  (is (= :thrum/invalid (:type (ex-data (thrown (abandon/call nil nil (fn [] 1))))))))

(defn- race!
  "Interrupts a caller at about the time at which its call ends; returns [what the caller got, how
  often on-abandon ran]."
  []
  (let [begun (promise)
        gate (promise)
        closed (promise)
        [^Thread caller outcome]
        (gate/start "caller" #(abandon/call nil (fn [] (deliver closed 1)) (hanging begun gate)))]
    @begun
    (gate/start "opener" #(deliver gate :value))
    (.interrupt caller)
    (let [{:keys [value thrown]} (deref outcome 5000 nil)]
      (if thrown [(class thrown) (deref closed 5000 0)] [value (deref closed 0 0)]))))

(deftest either-the-value-arrives-or-on-abandon-is-called
  (testing "in either order, and the count is right in the end"
    (let [before (total)
          outcomes (vec (repeatedly 20 race!))]
      (is (every? #{[:value 0] [InterruptedException 1]} outcomes))
      (is (all-ended?))
      (is (= (+ before (count (filter #{[InterruptedException 1]} outcomes))) (total))))))
