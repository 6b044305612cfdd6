(ns thrum.watch.sampler-test
  "How much a sampler looks, and what it keeps of what it saw."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.spi :as core-spi]
   [thrum.spi.watch :as spi]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.runner :as runner]
   [thrum.test-kit.uncaught :as uncaught]
   [thrum.watch :as watch]
   [thrum.watch.impl.dump :as dump]
   [thrum.watch.impl.sampler :as sampler]
   [thrum.watch.impl.scheduler :as scheduler]
   [thrum.watch.impl.snapshot :as snapshot])
  (:import
   (java.lang AutoCloseable)
   (java.lang.management ManagementFactory ThreadInfo ThreadMXBean)
   (java.util.concurrent.atomic AtomicLong)
   (thrum.watch.impl.scheduler Probe)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

;; The budget

(deftest credit-grows-by-a-hundredth-of-the-time-up-to-a-bound
  (are [credit ms expected] (= expected (#'sampler/topped-up credit ms))
    0.0 1000.0 10.0
    -30.0 1000.0 -20.0
    95.0 1000.0 100.0
    100.0 3600000.0 100.0
    -30.0 3600000.0 100.0
    2000.0 1000.0 2000.0))

(def ^:private ^ThreadMXBean threads (ManagementFactory/getThreadMXBean))

(defn- sampler-cpu-ms
  "Returns the CPU time of the one sampler that runs, in ms."
  []
  (let [sampler? (fn [^ThreadInfo info]
                   (and info (= "thrum-watch-sampler" (.getThreadName info))))
        [^ThreadInfo info] (filter sampler? (.getThreadInfo threads (.getAllThreadIds threads)))]
    (/ (.getThreadCpuTime threads (.getThreadId info)) 1e6)))

(defn- with-parked
  "Calls f while n tasks are parked."
  [n f]
  (let [gate (promise), ready (promise)
        crowd (t/future (t/with-scope [s]
                          (dotimes [_ n] (t/fork s @gate))
                          (deliver ready true)))]
    @ready
    (try (f) (finally (deliver gate true) @crowd))))

(defn- used-in
  "Returns how many ms of CPU time the sampler uses in so many ms, or more, and how many passed."
  [ms]
  (let [begun (System/nanoTime), end (+ begun (* 1000000 (long ms))), before (sampler-cpu-ms)]
    (gate/eventually (* 10 (long ms)) #(< end (System/nanoTime)))
    [(- (sampler-cpu-ms) before) (/ (- (System/nanoTime) begun) 1e6)]))

(defn- warm-up!
  "Has a sampler load what its first sample loads."
  []
  (let [sampler (sampler/start! (fn [_]))]
    (gate/eventually 20000 #(sampler/latest sampler))
    (sampler/stop! sampler)))

(deftest a-sampler-of-a-hundred-thousand-tasks-keeps-its-budget
  (warm-up!)
  (with-parked 100000
    (fn []
      (let [sampler (sampler/start! (fn [_]) {:allowance 5.0}), sampled (promise)]
        (try
          (sampler/listen! sampler #(deliver sampled %))
          (is (deref sampled 60000 false))
          (is (< 100000 (count (:nodes @sampled))))
          ;; A hundredth. The first sample has used up what may be saved: another would be 100 ms.
          (let [[used passed] (used-in 2000)]
            (is (< used (+ (/ passed 100) 50))))
          (finally (sampler/stop! sampler)))))))

;; Leaks

(deftest what-has-leaked-is-kept-by-every-reader
  (let [tasks (atom [{:name "ask-1", :since 0}])
        leaks @#'snapshot/leaked-tasks
        leaked? (fn [sampler] (some #(= [:leaked "ask-1"] ((juxt :rule :id) %))
                                    (sampler/lints sampler)))]
    (try
      (with-redefs [spi/leaked! #(first (reset-vals! tasks []))]
        (watch/tree)
        (let [sampler (sampler/start! (fn [_]))]
          (try
            (is (gate/eventually 10000 #(leaked? sampler)))
            (let [{:keys [at]} (sampler/latest sampler)]
              (is (gate/eventually 10000 #(< at (:at (sampler/latest sampler)))))
              (is (leaked? sampler)))
            (finally (sampler/stop! sampler)))))
      (finally (reset! leaks [])))))

(deftest a-leak-that-one-reader-takes-while-another-does-is-kept
  (let [leaks @#'snapshot/leaked-tasks, given (atom [[{:name "one"}]])
        leaked! (fn []
                  (let [[[mine]] (swap-vals! given rest)]
                    (when mine (swap! leaks conj {:name "other"}))
                    mine))]
    (try
      (with-redefs [spi/leaked! leaked!]
        (is (= #{"one" "other"}
               (into #{} (map :name) (:leaked (snapshot/take! (constantly false)))))))
      (finally (reset! leaks [])))))

(deftest no-more-leaks-are-kept-than-a-hundred
  (let [leaks @#'snapshot/leaked-tasks]
    (try
      (with-redefs [spi/leaked! #(mapv (fn [i] {:name i}) (range 250))]
        (is (= (range 150 250) (map :name (:leaked (snapshot/take! (constantly false)))))))
      (finally (reset! leaks [])))))

;; The probe

(deftest a-probe-says-how-late-the-scheduler-is-at-most-ten-times-a-second
  (let [probe (scheduler/probe), begun (System/nanoTime)
        later #(scheduler/late-ms probe (+ begun (* 1000000 (long %))))
        sent (atom 0)]
    (with-redefs-fn {#'scheduler/send! (fn [_] (swap! sent inc))}
      (fn []
        (is (= [0 50 700] (mapv later [0 50 700])) "it has not started")
        (is (= 1 @sent))
        (.set ^AtomicLong (.-started ^Probe probe) (+ begun 1000000))
        (is (= [0 1] [(later 50) @sent]))
        (is (= [0 2] [(later 150) @sent]))
        (is (= 100 (later 250)))
        (.set ^AtomicLong (.-went-on ^Probe probe) (+ begun 240000000))
        (is (= [10 1000] (mapv later [250 1240])) "others have started")))))

(deftest a-probe-whose-thread-could-not-be-started-is-late-until-one-can
  (let [probe (scheduler/probe), begun (System/nanoTime), start! @#'scheduler/start!
        starts (atom 0), fails? (atom true)
        late-ms #(scheduler/late-ms probe (+ begun (* 1000000 (long %))))]
    (with-redefs-fn {#'scheduler/start! (fn [f]
                                          (swap! starts inc)
                                          (if @fails? (throw (OutOfMemoryError.)) (start! f)))}
      (fn []
        (is (= [0 50 1000] (mapv late-ms [0 50 1000])))
        (is (= 3 @starts))
        (reset! fails? false)
        (late-ms 1100)
        (is (gate/eventually 20000 #(zero? (long (late-ms 1100)))))))))

(defn- watched
  "Returns a new part of a sampling, which has looked once."
  []
  (doto {:mounted (atom []), :ended (volatile! nil)} (@#'sampler/went-on?)))

(deftest the-scheduler-has-gone-on-when-a-task-ends
  (let [sampling (watched), went-on? #(#'sampler/went-on? sampling)]
    (is (not (went-on?)))
    @(t/future :done)
    (is (gate/eventually 5000 went-on?))
    (is (not (went-on?)))))

(deftest the-scheduler-has-gone-on-when-a-thread-leaves-its-carrier
  (let [gate (promise), hog (t/future (loop [] (when-not (realized? gate) (recur))) @(promise))
        mounted #(seq (#'sampler/still-mounted (snapshot/take! (constantly false))))
        sampling (watched), went-on? #(#'sampler/went-on? sampling)]
    (reset! (:mounted sampling) (vec (gate/eventually 5000 mounted)))
    (is (not (went-on?)))
    (deliver gate :go)
    (is (gate/eventually 5000 went-on?))
    (is (not (went-on?)) "once")
    (future-cancel hog)))

;; The JDK's dump

(deftest a-dump-is-taken-only-where-it-is-asked-for
  (let [dumps (atom 0)
        blocked {:blocked {7 (- (System/nanoTime) 1000000000)}, :snapshot {:nodes []}}
        look! #(#'sampler/locks! {:state (atom (merge (#'sampler/new-state) blocked))
                                  :on-lint (fn [_]), :monitors? %, :dozed (volatile! 0)})]
    (with-redefs [dump/take! (fn [] (swap! dumps inc) [{:state :runnable}])]
      (look! false)
      (is (= 0 @dumps))
      (look! true)
      (is (pos? @dumps)))))

(deftest a-dump-that-fails-is-reported-once-and-another-is-tried
  (let [reports (atom []), fails? (atom true)
        state (atom (merge (#'sampler/new-state)
                      {:blocked {7 (- (System/nanoTime) 1000000000)}, :snapshot {:nodes []}}))
        look! #(do (#'sampler/locks! {:state state, :on-lint (fn [_]), :monitors? true
                                      :dozed (volatile! 0)})
                   (:dump-fails? @state))]
    (with-redefs [dump/take! #(if @fails? (throw (ArithmeticException.)) [{:state :runnable}])
                  core-spi/uncaught! #(swap! reports conj %)]
      (is (= [true true] [(look!) (look!)]))
      (is (= 1 (count @reports)))
      (is (str/includes? (ex-message (first @reports)) ":blocked takes the place of :lock-holder"))
      (reset! fails? false)
      (is (= [false] [(look!)])))))

(deftest where-the-dump-fails-blocked-tasks-are-still-said
  (when (core-spi/monitors-pin?) (runner/skip! "on this JDK a blocked thread is pinned"))
  (let [gate (promise), lock (Object.), held (promise), reports (atom [])
        holder (t/future (locking lock (deliver held true) @gate))
        blocked (delay (t/future (locking lock :free)))]
    (with-redefs [dump/take! #(throw (ArithmeticException.))
                  core-spi/uncaught! #(swap! reports conj %)]
      (let [sampler (sampler/start! (fn [_]) {:monitors? true})]
        (try
          @held
          @blocked
          (is (gate/eventually 20000 #(some #{:blocked} (map :rule (sampler/lints sampler)))))
          (is (= 1 (count @reports)))
          (finally
            (deliver gate :go)
            (run! deref [holder @blocked])
            (sampler/stop! sampler)))))))

(deftest where-dumps-are-taken-they-say-who-is-blocked
  (let [thread {:tid 7, :state :blocked, :carrier nil, :stack [["my.Shop" "save" "Shop.java" 50]]}
        snapshot {:at 0, :late-ms 0, :nodes [{:id "#7", :kind :task, :name "a", :thread thread}]}]
    (are [monitors? expected]
      (= expected (map :rule (#'sampler/conditions-of snapshot monitors?)))
      false [:blocked]
      true [])))

(deftest a-lint-is-said-once-and-a-failure-of-on-lint-is-reported
  (let [[a b c :as lints] (for [id (range 3)] {:rule :stuck, :id id})
        failure (ex-info "on-lint" {}), said (atom []), reported (atom [])
        on-lint #(do (swap! said conj %) (throw failure))]
    (uncaught/reporting (fn [_ t] (swap! reported conj t))
      #(#'sampler/report-new! on-lint [(assoc a :late-ms 7)] lints))
    (is (= [b c] @said))
    (is (= [failure failure] @reported))))

(deftest a-sample-that-fails-is-reported-and-taken-again-later
  (let [failure (ex-info "sample" {}), reported (atom []), begun (System/nanoTime)
        plan (with-redefs [sampler/kinds {:fast (fn [_] (throw failure))}]
               (uncaught/reporting (fn [_ t] (swap! reported conj t))
                 #(#'sampler/sampled {:due {:fast begun}} :fast {})))]
    (is (= [failure] @reported))
    (is (< begun (long (get-in plan [:due :fast]))))))

(deftest a-listener-that-throws-keeps-no-other-from-snapshots-and-is-reported-once
  (let [failure (ex-info "registry" {}), reported (atom []), thrown (atom 0), seen (atom 0)]
    (uncaught/reporting (fn [_ t] (swap! reported conj t))
      (fn []
        (let [sampler (sampler/start! (fn [_]))]
          (try
            ;; Their order is that of a set.
            (dotimes [_ 20]
              (sampler/listen! sampler (fn [_] (swap! thrown inc) (throw failure))))
            (sampler/listen! sampler (fn [_] (swap! seen inc)))
            (is (gate/eventually 15000 #(< 2 (long @seen))))
            (finally (sampler/stop! sampler))))))
    (is (< 40 (long @thrown)))
    (is (= (repeat 20 failure) @reported))))

;; Between two samples

(deftest a-condition-that-holds-no-more-is-dropped
  (let [holds? (volatile! true)
        state (atom {:fast {:a {:still? #(deref holds?)}, :b {}}})
        plan {:due {:fast Long/MAX_VALUE}, :not-before 0}
        look! #(do (#'sampler/step! plan {:state state}) (set (keys (:fast @state))))]
    (is (= #{:a :b} (look!)))
    (vreset! holds? false)
    (is (= #{:b} (look!)))))

;; A machine too busy for the sampler

(deftest a-condition-is-timed-by-a-clock-that-stands-while-the-sampler-does-not-run
  (let [dozed (volatile! 0), raised (atom [])
        sampling {:state (atom (#'sampler/new-state)), :on-lint #(swap! raised conj (:rule %))
                  :dozed dozed}
        sample! #(#'sampler/sample! sampling :fast
                   [{:rule :carrier-held, :id 7, :after-ms 60000, :sentence "x"}])]
    (dotimes [_ 3] (sample!))
    (is (= [] @raised))
    (vreset! dozed 70000000000)
    (sample!)
    (is (= [:carrier-held] @raised))))

(deftest a-lint-says-for-how-long-in-real-time-all-the-same
  (let [sampling {:state (atom (#'sampler/new-state)), :on-lint (fn [_]), :dozed (volatile! 0)}
        since-ms (fn []
                   (#'sampler/sample! sampling :fast
                     [{:rule :carrier-held, :id 7, :after-ms 0, :sentence "x"}])
                   (:since-ms (first (:lints @(:state sampling)))))
        begun (System/nanoTime)
        first-ms (since-ms)]
    (Thread/sleep 300)
    (let [then-ms (since-ms)]
      (is (<= 0 first-ms (- then-ms 300)))
      (is (<= then-ms (quot (- (System/nanoTime) begun) 1000000))))))

(deftest a-sleep-counts-as-a-tick-and-what-is-done-as-its-cpu-time
  (let [sampling {:dozed (volatile! 0)}, cpu (.getCurrentThreadCpuTime threads)
        before (#'sampler/running-time sampling)]
    (#'sampler/doze! sampling)
    (let [took (- (#'sampler/running-time sampling) before)]
      (is (<= 20000000 took (+ 20000000 (- (.getCurrentThreadCpuTime threads) cpu)))))))

(deftest a-task-is-old-that-has-been-seen-for-as-long
  (let [at 1000000000000
        task (fn [age-ms tid]
               {:id (str tid), :kind :task, :name (str tid), :since (- at (* 1000000 (long age-ms)))
                :thread {:tid tid, :state :parked, :stack [["my.Shop" "fetch" "Shop.java" 50]]}})
        young #(map (partial task 10) (range % (+ 30 (long %))))
        snapshot (fn [age-ms tid] {:at at, :nodes (into [(task age-ms 7)] (young tid))})
        dozed (volatile! 0)
        sampling {:state (atom (#'sampler/new-state)), :on-lint (fn [_]), :dozed dozed}
        raised (fn [ms age-ms]
                 (vreset! dozed (* 1000000 (long ms)))
                 (#'sampler/slow! sampling (snapshot age-ms (+ 100 (long ms))))
                 (map :id (:lints @(:state sampling))))]
    (is (= [] (raised 0 3600000)) "it may have been stopped for that hour")
    (is (= [] (raised 4000 3600000)))
    (is (= ["7"] (raised 6000 3600000)))
    (is (= [] (raised 7000 6500)) "the thread's next task")
    (is (= ["7"] (raised 13000 6500)))))

(deftest a-sampler-goes-on-after-a-call-that-left-its-thread-interrupted
  (.interrupt (Thread/currentThread))
  (is (= 20000000 (#'sampler/doze! {:dozed (volatile! 0)})))
  (is (not (Thread/interrupted))))

(deftest the-time-of-what-begins-goes-on-while-on-lint-is-called
  (let [gate (promise), called (promise), begins #(:since (spi/facts (t/future @gate)))]
    (with-redefs [thrum.watch.impl.environment/conditions
                  (constantly [{:rule :jdk-hang, :id "x", :after-ms 0, :sentence "x"}])]
      (let [sampler (sampler/start! (fn [_] (deliver called true) @gate))]
        (try
          (is (deref called 10000 false))
          (let [first-since (long (begins))
                later? #(< 200000000 (- (long (begins)) first-since))]
            (is (gate/eventually 5000 later?)))
          (finally
            (deliver gate :go)
            (sampler/stop! sampler)))))))

;; Its end

(defn- samplers []
  (into #{}
        (filter #(= "thrum-watch-sampler" (.getName ^Thread %)))
        (keys (Thread/getAllStackTraces))))

(deftest a-sampler-ends-with-its-watch-also-when-its-metrics-do-not-close
  (let [exporter {:close #(throw (IllegalStateException. "broken"))}, before (samplers)]
    (with-redefs-fn {#'watch/new-exporter (constantly exporter)}
      (fn []
        (let [w (watch/start! {:port 0})]
          (is (= (inc (count before)) (count (samplers))))
          (is (thrown-with-msg? IllegalStateException #"broken" (.close ^AutoCloseable w)))
          (is (= before (samplers))))))))

(deftest a-watch-may-be-closed-by-what-it-calls
  (let [watch (promise), closed (promise)
        close! (fn [_] (.close ^AutoCloseable @watch) (deliver closed true))]
    (with-redefs [thrum.watch.impl.environment/conditions
                  (constantly [{:rule :jdk-hang, :id "x", :after-ms 0, :sentence "x"}])]
      (deliver watch (watch/start! {:port 0, :on-lint close!}))
      (is (true? (deref closed 10000 :late))))))

(deftest a-sampler-goes-on-after-it-had-no-memory
  (let [sleep! @#'sampler/sleep-a-tick!, calls (atom {}), reported (atom [])
        fails-twice (fn []
                      (let [thread (.getName (Thread/currentThread))]
                        (when (<= (long (get (swap! calls update thread (fnil inc 0)) thread)) 2)
                          (throw (OutOfMemoryError. "no memory")))
                        (sleep!)))]
    (with-redefs [sampler/sleep-a-tick! fails-twice
                  core-spi/uncaught! (fn [t] (swap! reported conj (class t)))]
      (let [sampler (sampler/start! (fn [_])), sampled (promise)]
        (try
          (sampler/listen! sampler #(deliver sampled %))
          (is (deref sampled 20000 false))
          (is (gate/eventually 20000 #(< 2 (long (get @calls "thrum-watch-clock" 0)))))
          (is (= (repeat 2 OutOfMemoryError) @reported) "once by each of the two threads")
          (finally (sampler/stop! sampler)))))))
