(ns thrum.tasks-test
  "What a task promises: one fresh virtual thread, a full Clojure future, and an end in every case."
  (:require
   [clojure.pprint :as pprint]
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.blocking :refer [await-anyway]]
   [thrum.core :as t]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.show :as show]
   [thrum.impl.task :as task]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.uncaught :as uncaught]
   [thrum.throwing :refer [thrown]])
  (:import
   (java.util.concurrent CancellationException CountDownLatch ExecutionException Future TimeUnit TimeoutException)
   (thrum.impl.task Done Task)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private uses-of-macros
  '[(thrum.core/thread 1) (thrum.core/future 1) (thrum.core/with-executor [e] 1)
    (thrum.core/future-via [e] 1) (thrum.core/for [x xs] 1) (thrum.core/pfor 1 [x xs] 1)
    (thrum.core/pvalues 1) (thrum.core/with-scope [s] 1) (thrum.core/fork s 1) (thrum.core/all 1)
    (thrum.core/plet [x 1] 1) (thrum.core/race 1) (thrum.core/any 1) (thrum.core/settle 1)
    (thrum.core/with-timeout 1 1) (thrum.core/with-deadline i 1) (thrum.core/shield 1 1)
    (thrum.core/with-permit l 1) (thrum.core/retry {} 1) (thrum.core/abandon-on-interrupt f 1)
    (thrum.core/on-cancel [f] 1) (thrum.core/hedge {} 1)])

(defn- namespaces-in [form]
  (into #{} (comp (filter symbol?) (keep namespace)) (tree-seq coll? seq form)))

(def ^:private macros
  (into #{} (comp (filter (comp :macro meta)) (map symbol)) (vals (ns-publics 'thrum.core))))

(deftest macros-expand-to-names-of-the-front-door
  (is (= macros (set (map first uses-of-macros))))
  (doseq [form uses-of-macros]
    (is (empty? (disj (namespaces-in (macroexpand-1 form)) "thrum.core" "clojure.core"))
        (first form))))

(def ^:dynamic *tenant* :nobody)

(defn- here ^Thread [] (Thread/currentThread))

(deftest a-future-runs-on-a-virtual-thread-of-its-own
  (let [seen (mapv deref [(t/future (here)) (t/future (here))])]
    (is (every? #(.isVirtual ^Thread %) seen))
    (is (apply distinct? (map #(.getName ^Thread %) seen)))
    (is (every? #(str/starts-with? (.getName ^Thread %) "future-") seen))))

(deftest a-wrap-of-nil-wraps-nothing
  (let [wrapped (atom 0), counting (fn [thunk] (swap! wrapped inc) thunk)]
    (binding [t/*wrap* counting]
      (is (= 1 @(t/future-call {:wrap nil} (fn [] 1))))
      (is (= [2] (t/pmapv {:limit 1, :wrap nil} inc [1]) (t/pmap {:limit 1, :wrap nil} inc [1])))
      (is (= [1] (t/all-call {:wrap nil} [(fn [] 1)])))
      (is (= 1 (t/with-scope [s {:wrap nil}] @(t/fork s 1))))
      (is (= 0 @wrapped))
      (is (= [2] (t/pmapv 1 inc [1])))
      (is (= 1 @wrapped)))))

(deftest what-is-cancelled-before-it-begins-does-not-begin
  (let [began (atom 0), gate (CountDownLatch. 1), virtual-thread jdk/virtual-thread
        late (fn [thread-name ^Runnable body]
               (virtual-thread thread-name #(do (await-anyway gate) (.run body))))]
    (t/with-scope [s]
      (let [tasks (with-redefs [jdk/virtual-thread late]
                    [(t/fork s (swap! began inc)) (t/future (swap! began inc))])]
        (is (every? t/cancel! tasks))
        (.countDown gate)))
    (is (gate/eventually 5000 #(empty? (leak/threads))))
    (is (= 0 @began))))

(deftest a-future-answers-every-question-of-clojure-core
  (let [gate (promise)
        task (t/future @gate)]
    (is (future? task))
    (is (instance? Future task))
    (is (not (realized? task)))
    (is (not (future-done? task)))
    (is (= :late (deref task 1 :late)))
    (is (instance? TimeoutException (thrown (.get ^Future task 1 TimeUnit/MILLISECONDS))))
    (deliver gate 42)
    (is (= 42 @task (deref task 10000 :late) (.get ^Future task)))
    (is (realized? task))
    (is (future-done? task))
    (is (false? (future-cancel task)))
    (is (not (future-cancelled? task)))))

(deftest nil-and-false-are-values
  (is (nil? @(t/future nil)))
  (is (nil? (deref (t/future nil) 10000 :late)))
  (is (false? @(t/future false))))

(deftest a-deref-throws-the-failure-as-the-cause
  (doseq [failure [(ex-info "no" {}) (AssertionError. "no") (StackOverflowError.)
                   (InterruptedException. "by hand")]]
    (let [task (t/future (throw failure))
          e (thrown @task)]
      (is (instance? ExecutionException e))
      (is (identical? failure (ex-cause e)))
      (is (future-done? task)))))

(deftest cancel-interrupts-the-body-and-is-remembered
  (let [running (promise)
        seen (promise)
        task (t/future (deliver running true)
                       (try
                         (Thread/sleep 60000)
                         (catch InterruptedException e (deliver seen e) (throw e))))]
    @running
    (is (true? (future-cancel task)))
    (is (instance? InterruptedException (deref seen 10000 :not-interrupted)))
    (is (future-cancelled? task))
    (is (future-done? task))
    (is (false? (future-cancel task)))
    (let [e (thrown @task)]
      (is (instance? CancellationException e))
      (is (= {:type :thrum/cancelled, :reason :future-cancel}
             (select-keys (ex-data e) [:type :reason]))))))

(deftest a-cancel-without-interrupt-lets-the-body-run-out
  (let [running (promise), gate (promise), end (promise)
        task (t/future (deliver running true) @gate (deliver end :reached))]
    @running
    (is (.cancel ^Future task false))
    (deliver gate :go)
    (is (= :reached (deref end 10000 :not-reached)))
    (is (future-cancelled? task))))

(deftest waiters-wake-up-together
  (let [gate (promise)
        task (t/future @gate)
        waiters (doall (repeatedly 50 #(t/future @task)))]
    (deliver gate :value)
    (is (every? #{:value} (map #(deref % 10000 :asleep) waiters)))))

(deftest an-interrupted-wait-leaves-the-task-alone
  (let [gate (promise)
        waiting (promise)
        task (t/future @gate)
        waiter (t/future (deliver waiting (here)) @task)]
    (is (gate/eventually 10000
                         #(= Thread$State/WAITING (.getState ^Thread (deref waiting 10000 nil)))))
    (.interrupt ^Thread @waiting)
    (is (instance? InterruptedException (ex-cause (thrown @waiter))))
    (deliver gate :value)
    (is (= :value @task))))

(deftest ten-thousand-waiters-are-cancelled-in-no-time
  (let [gate (promise)
        task (t/future @gate)
        started (CountDownLatch. 10000)
        waiters (doall (repeatedly 10000 #(t/future (.countDown started) @task)))]
    (.await started)
    (is (every? true? (map future-cancel waiters)))
    (deliver gate :value)
    (is (= :value (deref task 20000 :late)))))

(deftest bindings-travel
  (binding [*tenant* :acme]
    (is (= :acme @(t/future *tenant*)))
    (is (= [:acme :acme] (t/pmap 2 (fn [_] *tenant*) [1 2])))
    (let [seen (promise)]
      (.join ^Thread (t/thread (deliver seen *tenant*)))
      (is (= :acme @seen)))
    (is (= :acme (t/with-executor [exe] @(t/future-via [exe] *tenant*))))))

(deftest lazy-forms-take-the-bindings-of-the-call
  (let [results (binding [*tenant* :acme] (t/pmap 2 (fn [_] *tenant*) (range 4)))]
    (is (= [:acme :acme :acme :acme] (binding [*tenant* :other] (doall results))))))

(deftest a-thread-is-a-thread
  (let [gate (promise), thread (t/thread @gate)]
    (is (instance? Thread thread))
    (is (.isVirtual ^Thread thread))
    (is (re-matches #"thread-\d+" (.getName ^Thread thread)))
    (deliver gate true)
    (is (.join ^Thread thread (java.time.Duration/ofSeconds 10)))))

(deftest a-future-call-takes-a-name-and-a-wrap
  (let [trail (atom [])
        wrap (fn [body]
               (swap! trail conj [:wrapped (.getName (here))])
               #(do
                  (swap! trail conj :in)
                  (body)))
        caller (.getName (here))]
    (is (re-matches #"indexer-\d+"
                    @(t/future-call {:name "indexer", :wrap wrap} #(.getName (here)))))
    (is (= [[:wrapped caller] :in] @trail))
    (is (= :thrum/invalid (:type (ex-data (thrown (t/future-call {:nam "x"} (fn [])))))))))

(deftest wrap-goes-around-every-task-of-every-form
  (let [wrapped (atom 0)]
    (binding [t/*wrap* (fn [body] (swap! wrapped inc) body)]
      @(t/future 1)
      (.join ^Thread (t/thread 1))
      (doall (t/pmap 2 inc [1 2]))
      (t/pmapv 2 inc [1 2])
      (t/prun! 2 inc [1 2])
      (doall (t/map inc [1 2]))
      (doall (t/for [x [1 2]] x))
      (doall (t/pvalues 1 2))
      (t/with-executor [exe] @(t/future-via [exe] 1)))
    (is (= (+ 1 1 2 2 2 2 2 2 1) @wrapped))))

(defn- loader ^ClassLoader []
  (.getContextClassLoader (here)))

(defn- with-loader
  "Calls f where the thread has another context class loader. Returns that loader and what f
  returned."
  [f]
  (let [before (loader), another (clojure.lang.DynamicClassLoader. before)]
    (try
      (.setContextClassLoader (here) another)
      [another (f)]
      (finally (.setContextClassLoader (here) before)))))

(deftest the-context-class-loader-is-that-of-the-thread-that-starts-the-task
  (doseq [run [#(t/value (t/future (loader)))
               #(t/with-scope [s] (t/value (t/fork s (loader))))
               #(first (t/all (loader)))
               #(first (t/pmapv 1 (fn [_] (loader)) [1]))
               #(t/with-executor [e] (t/value (t/future-via [e] (loader))))
               #(t/abandon-on-interrupt (fn []) (loader))]]
    (let [[expected found] (with-loader run)]
      (is (identical? expected found))))
  (let [[maker results] (with-loader #(t/pmap 1 (fn [_] (loader)) [1]))
        [consumer found] (with-loader #(first results))]
    (is (identical? consumer found))
    (is (not (identical? maker found))))
  (let [found (promise)]
    (with-loader
      #(thrown (t/with-scope [s]
                 (t/on-cancel [(fn [] (deliver found (loader)))]
                   (t/cancel! s)
                   (deref found 5000 nil)
                   (throw (Exception. "stopped"))))))
    (is (identical? (ClassLoader/getSystemClassLoader) (deref found 0 nil)))))

(deftest a-wrap-that-throws-is-a-failure-of-the-call
  (let [failure (ex-info "no context" {})]
    (binding [t/*wrap* (fn [_] (throw failure))]
      (is (identical? failure (thrown (t/future 1))))
      (is (identical? failure (thrown (t/pmapv 2 inc [1]))))
      (is (identical? failure (thrown (doall (t/pmap 2 inc [1]))))))))

(deftest a-task-prints-itself
  (let [gate (promise)
        task (t/future-call {:name "printed"} #(deref gate))]
    (is (re-matches #"#<task printed-\d+ \{:status :running\}>" (pr-str task)))
    (deliver gate 1)
    @task
    (is (re-matches #"#<task printed-\d+ \{:status :done, :val 1\}>" (pr-str task))))
  (testing "also when it failed or was cancelled"
    (let [failed (t/future-call {:name "f"} #(throw (ex-info "broken" {})))]
      (thrown @failed)
      (is (str/includes? (pr-str failed) ":failed"))
      (is (str/includes? (pr-str failed) "broken")))))

;; As a load of Thrum does behind that of the pretty printer.
(deftest a-task-is-pretty-printed-however-it-ended
  (show/pretty-as-printed! Task)
  (let [pretty #(str/trim-newline (with-out-str (pprint/pprint %)))
        start (fn [f] (t/future-call {:name "p"} f))
        waiting (start #(deref (promise)))
        done (start (constantly 1))
        failed (start #(throw (ex-info "broken" {})))]
    (is (re-matches #"#<task p-\d+ \{:status :running\}>" (pretty waiting)))
    (t/cancel! waiting :why)
    (run! #(thrown @%) [waiting done failed])
    (is (re-matches #"#<task p-\d+ \{:status :cancelled, :reason :why\}>" (pretty waiting)))
    (is (re-matches #"#<task p-\d+ \{:status :done, :val 1\}>" (pretty done)))
    (is (re-find #"#<task p-\d+ \{:status :failed,\s+:val\s+#error" (pretty [failed])))))

(def ^:private at-a-repl
  (str "(require 'clojure.pprint '[thrum.core :as t])"
       "(let [failed (t/future (throw (ex-info \"broken\" {})))]"
       "  (try @failed (catch Throwable _))"
       "  (clojure.pprint/pprint failed))"))

(deftest where-the-pretty-printer-is-loaded-it-prints-a-failed-task
  (let [java (jvm/clojure-main (jvm/this-home) [] (System/getProperty "java.class.path"))
        {:keys [lines]} (jvm/quietly (conj java "-e" at-a-repl) 280000 jvm/quick)]
    (is (some #(re-find #"^#<task future-\d+ \{:status :failed" %) lines) lines)))

(deftest a-task-runs-once-whoever-calls-it
  (let [runs (atom 0), task (t/future (swap! runs inc))]
    @task
    (.run ^Runnable task)
    (is (= 1 @runs))))

(deftest a-cancel-may-meet-the-end-of-the-body
  (dotimes [_ 20000]
    (let [task (t/future 1)]
      (future-cancel task)))
  (is (nil? @(t/future nil)) "no cancel threw"))

(deftest a-cancel-whose-task-knows-of-it-sends-no-interrupt-any-more
  (let [begun (promise), knows (promise), cancelled (promise), seen (promise)
        task (t/future
               (try
                 (deliver begun true)
                 (while true (t/checkpoint) (Thread/yield))
                 (catch CancellationException _
                   (deliver knows true)
                   (deliver seen [(deref cancelled 5000 :late)
                                  (.isInterrupted (Thread/currentThread))]))))]
    ;; Is called between the outcome and the interrupt.
    (task/on-outcome! task #(deref knows 5000 nil))
    (deref begun 5000 nil)
    (t/cancel! task)
    (deliver cancelled :cancelled)
    (is (= [:cancelled false] (deref seen 5000 nil)))))

(deftest what-a-callback-of-an-outcome-throws-is-reported
  (let [failure (ex-info "callback" {}), reported (atom []), latch (task/latch "latch")]
    (dotimes [_ 2] (task/on-outcome! latch (fn [] (throw failure))))
    (uncaught/reporting (fn [_ t] (swap! reported conj t))
      #(is (true? (.settle ^Task latch (Done. 1)))))
    (is (= [failure failure] @reported))))

(deftest a-wait-that-was-too-long-leaves-no-waiter
  (let [latch (task/latch "latch")]
    (is (= :late (deref latch 1 :late)))
    (is (nil? (.successor ^Task latch)))))
