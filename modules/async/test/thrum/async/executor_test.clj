(ns thrum.async.executor-test
  "What core.async's executor-factory can name: which threads, whose wrap, and that core.async works
  with it."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing]]
   [thrum.async.executor :as executor]
   [thrum.async.guide :as guide]
   [thrum.async.probe :as probe]
   [thrum.async.release :as release]
   [thrum.core :as t]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.uncaught :as uncaught])
  (:import
   (java.util.concurrent Callable Executor ExecutorService Future TimeUnit)))

(set! *warn-on-reflection* true)

(def ^:private workloads [:io :compute :mixed :core-async-dispatch])

(defn- on
  "Returns the value of f, called on a thread of the executor."
  [^Executor executor f]
  (let [value (promise)]
    (.execute executor #(deliver value (f)))
    (deref value 10000 :late)))

(defn- thread-of ^Thread [executor]
  (on executor #(Thread/currentThread)))

(deftest everything-runs-on-fresh-virtual-threads
  (doseq [[workload pattern] {:io #"async-io-\d+"
                              :compute #"async-compute-\d+"
                              :mixed #"async-mixed-\d+"
                              :core-async-dispatch #"async-dispatch-\d+"}]
    (let [threads (repeatedly 3 #(thread-of (executor/everything workload)))]
      (is (every? #(.isVirtual ^Thread %) threads))
      (is (every? #(re-matches pattern (.getName ^Thread %)) threads) (str workload))
      (is (= 3 (count (set (map #(.getName ^Thread %) threads))))))))

(deftest a-thread-gives-way-once-before-its-work
  (let [trail (atom [])]
    (with-redefs [spi/give-way! #(swap! trail conj (Thread/currentThread))]
      (let [thread (on (executor/everything :io)
                       #(let [thread (Thread/currentThread)]
                          (swap! trail conj :work)
                          thread))]
        (is (= [thread :work] @trail))))))

(deftest go-dispatch-may-stay-on-a-pool
  (let [factory (executor/factory {:dispatch-threads 2})
        threads (repeatedly 20 #(thread-of (factory :core-async-dispatch)))]
    (is (= 2 (count (set threads))))
    (is (every? #(.isDaemon ^Thread %) threads))
    (is (not-any? #(.isVirtual ^Thread %) threads))
    (is (every? #(re-matches #"async-dispatch-\d+" (.getName ^Thread %)) threads))
    (doseq [workload [:io :compute :mixed]]
      (is (.isVirtual (thread-of (factory workload)))))))

(deftest a-workload-has-one-executor
  (doseq [factory [executor/everything executor/all-but-dispatch (executor/factory {})]
          workload workloads]
    (is (instance? ExecutorService (factory workload)))
    (is (identical? (factory workload) (factory workload))))
  (is (= 4 (count (set (map executor/everything workloads))))))

(defn- refused
  "Returns the data of the ex-info that f throws."
  [f]
  (try (f) :nothing-thrown (catch clojure.lang.ExceptionInfo e (ex-data e))))

(deftest misuse-is-answered
  (doseq [factory [executor/everything executor/all-but-dispatch (executor/factory {})]
          workload [:cpu nil "io"]]
    (is (=
          {:type :thrum/invalid, :value workload, :known [:compute :core-async-dispatch :io :mixed]}
          (refused #(factory workload)))))
  (doseq [options [{:dispatch-threads 0} {:dispatch-threads (inc Integer/MAX_VALUE)} {:wrap 1}
                   {:threads 8} 8]]
    (is (= :thrum/invalid (:type (refused #(executor/factory options)))) (pr-str options)))
  (binding [t/*wrap* identity]
    (is (thrown? NullPointerException (.execute (executor/everything :io) nil)))))

;; The wrap

(defn- telling
  "Returns a wrap that adds where it was called, :by, and where its thunk ran, :on, to the trail."
  [trail]
  (fn [thunk]
    (swap! trail assoc :by (Thread/currentThread))
    (fn []
      (swap! trail assoc :on (Thread/currentThread))
      (thunk))))

(deftest the-wrap-is-that-of-who-submits
  (doseq [factory [(executor/factory {}) (executor/factory {:dispatch-threads 1})]
          workload workloads]
    (let [trail (atom {})
          thread (binding [t/*wrap* (telling trail)] (thread-of (factory workload)))]
      (is (= {:by (Thread/currentThread), :on thread} @trail))
      (reset! trail {})
      (thread-of (factory workload))
      (is (= {} @trail)))))

(deftest an-option-wraps-instead
  (let [ours (atom {}), theirs (atom {})]
    (binding [t/*wrap* (telling theirs)]
      (is (= :value (on ((executor/factory {:wrap (telling ours)}) :io) (constantly :value))))
      (is (= :value (on ((executor/factory {:wrap nil}) :io) (constantly :value)))))
    (is (= [{} (Thread/currentThread)] [@theirs (:by @ours)]))))

(deftest a-wrap-may-make-any-function
  (binding [t/*wrap* (fn [thunk] (reify clojure.lang.IFn (invoke [_] (thunk))))]
    (is (= :value (on (executor/everything :io) (constantly :value)))))
  (binding [t/*wrap* (constantly nil)]
    (is (= :thrum/invalid (:type (refused #(.execute (executor/everything :io) (fn []))))))))

;; As an ExecutorService

(deftest it-can-be-submitted-to
  (let [service (executor/everything :io)]
    (is (= :value
           (.get ^Future (.submit service ^Callable (constantly :value)) 10 TimeUnit/SECONDS)))
    (is (= [1 2] (mapv #(.get ^Future %) (.invokeAll service [(constantly 1) (constantly 2)]))))))

(deftest it-belongs-to-the-process
  (let [service (executor/everything :io)]
    (.shutdown service)
    (is (= [] (.shutdownNow service)))
    (gate/in-time 5000 #(.close service))
    (is (false? (.awaitTermination service 1 TimeUnit/MILLISECONDS)))
    (.interrupt (Thread/currentThread))
    (is (thrown? InterruptedException (.awaitTermination service 60 TimeUnit/SECONDS)))
    (is (= [false false] [(.isShutdown service) (.isTerminated service)]))
    (is (.isVirtual (thread-of service)))))

(deftest what-is-thrown-goes-to-the-threads-handler
  (let [told (promise)
        failure (ex-info "x" {})
        [thread-name t] (uncaught/reporting
                          (fn [thread t] (deliver told [(.getName ^Thread thread) t]))
                          #(do (.execute (executor/everything :io) (fn [] (throw failure)))
                               (deref told 10000 nil)))]
    (is (identical? failure t))
    (is (re-matches #"async-io-\d+" thread-name))))

;; In core.async, in JVMs that have the property

(defn- probed [factory]
  ;; 1.9.829-alpha2 alone reads vthreads: unless it avoids them, its go blocks are io-threads.
  (probe/of [(guide/factory factory) "-Dclojure.core.async.vthreads=avoid"
             "-Dclojure.core.async.pool-size=3"]
            (System/getProperty "java.class.path")))

(def ^:private virtual-places
  {"go" "virtual async-dispatch"
   "go, woken" "virtual async-dispatch"
   "pipeline-async" "virtual async-dispatch"
   "thread" "virtual async-mixed"
   "pipeline" "virtual async-mixed"
   "pipeline-blocking" "virtual async-mixed"
   "io-thread" "virtual async-io"})

(def ^:private dispatch-places
  (zipmap ["go" "go, woken" "pipeline-async"] (repeat "platform async-dispatch")))

(def ^:private elsewhere
  "Why core.async is not probed here: a probe takes seconds, and its outcome depends on the release
  alone. 1.9.829-alpha2 has a row with a factory in doc/guides/channels.md, which its own test
  probes."
  (cond
    (release/before [1 8]) (release/before [1 8])
    (str/includes? release/version "alpha") "probed for doc/guides/channels.md"
    (= 21 (.feature (Runtime/version))) "probed on newer JDKs"))

(deftest ^{:skip elsewhere} core-async-runs-on-them
  (let [[everything all-but-dispatch] (t/pmapv 2 probed ["everything" "all-but-dispatch"])]
    (is (= virtual-places (:places everything)))
    (is (= (merge virtual-places dispatch-places) (:places all-but-dispatch)))
    (is (= [0 3] (map :dispatch-threads [everything all-but-dispatch])))
    (testing "the guide, where it has rows for them"
      (doseq [[factory {:keys [places]}] {"everything" everything
                                          "all-but-dispatch" all-but-dispatch}
              :let [told (guide/of-this-release (guide/factory factory))]
              :when told]
        (is (= told (select-keys places guide/uses)))))
    (doseq [{:keys [uses]} [everything all-but-dispatch]]
      (testing "bindings, which core.async conveys itself, and the wrap are there"
        (is (= {[:acme true true] 7}
               (frequencies (map (juxt :tenant :wrapped? :daemon?) (vals uses))))))
      (is (apply distinct? (map :thread-name (filter #(= :virtual (:kind %)) (vals uses))))))))
