(ns thrum.watch.impl.sampler
  "Takes snapshots time and again, on a platform thread of its own, within a budget of CPU time, and
  keeps what they say."
  {:no-doc true}
  (:refer-clojure :exclude [run!])
  (:require
   [thrum.spi :as spi]
   [thrum.spi.watch :as watch]
   [thrum.watch.impl.dump :as dump]
   [thrum.watch.impl.environment :as environment]
   [thrum.watch.impl.locks :as locks]
   [thrum.watch.impl.rules :as rules]
   [thrum.watch.impl.scheduler :as scheduler]
   [thrum.watch.impl.snapshot :as snapshot])
  (:import
   (java.lang.management ManagementFactory ThreadMXBean)))

(set! *warn-on-reflection* true)

(def ^:private ^:const tick-ms 20)
(def ^:private ^:const sample-ms 100)
(def ^:private ^:const slow-ms 1000)

;; Of looks for locks.
(def ^:private ^:const locks-ms 300)

;; A dump is taken only while a thread has been blocked for so long: JDK 25.0.3 has crashed in a
;; dump of a busy server, in Continuation::is_continuation_entry_frame.
(def ^:private ^:const stuck-ms 500)

(defn- cpu-ms
  "Returns the CPU time of the calling thread, in ms."
  ^double []
  (/ (.getCurrentThreadCpuTime ^ThreadMXBean (ManagementFactory/getThreadMXBean)) 1e6))

;; The budget of each of the three kinds of sample: a third of a percent of the time, and once so
;; much for the first, which are slow.
(def ^:private ^:const share (/ 0.01 3))
(def ^:private ^:const allowance-ms 1500.0)

(defn- affordable-at
  "Returns when so much CPU time, in ms, is within the budget that began then."
  ^long [begun spent-ms]
  (+ (long begun) (long (* 1e6 (/ (max 0.0 (- (double spent-ms) allowance-ms)) share)))))

;; Samples

(defn- suspects
  "Returns the ids of the threads that conditions name."
  [conditions]
  (into #{}
        (mapcat (fn [{{:keys [thread held holders threads]} :data}]
                  (concat (some-> thread list) held holders threads)))
        conditions))

(def ^:private no-stack (constantly false))

(defn- take-with-figures! [stack? probe]
  (assoc (snapshot/take! stack?)
         :late-ms (scheduler/late-ms probe)
         :scheduler (scheduler/figures)))

(defn- with-leaked [snapshot leaked stacks]
  (assoc snapshot :leaked (mapv #(assoc % :stack (get stacks (:name %))) leaked)))

(defn- fast-conditions
  "Returns a snapshot and its conditions. The stacks of suspects are read in a second look. stacks:
  by name, those that leaked tasks were last seen with."
  [probe stacks]
  (let [{:keys [leaked] :as first-look} (take-with-figures! no-stack probe)
        suspects (suspects (rules/conditions first-look))
        snapshot (if (empty? suspects)
                   first-look
                   (take-with-figures! #(contains? suspects (:tid %)) probe))
        snapshot (with-leaked snapshot (distinct (into (vec leaked) (:leaked snapshot))) stacks)]
    [snapshot (rules/conditions snapshot)]))

(def ^:private most-stacks 2000)

(defn- some-stacks []
  (let [left (volatile! most-stacks)]
    (fn [_] (nat-int? (vswap! left dec)))))

;; A dump costs some 50 us a thread, and nothing can stop it.
(def ^:private most-dumped 5000)

;; Before JDK 25 a dump has neither states nor locks.
(def ^:private locks-in-dump? (delay (boolean (some :state (dump/take!)))))

(defn- lock-conditions
  "Returns the conditions that need the JDK's dump."
  [{:keys [nodes]}]
  (if (and (<= (count nodes) (long most-dumped)) @locks-in-dump?)
    (locks/conditions (dump/take!))
    []))

(defn- still-blocked
  "Returns by thread's id since when it is blocked, as far as the samples say."
  [before {:keys [at nodes]}]
  (into {}
        (keep (fn [{{:keys [tid state]} :thread}]
                (when (= :blocked state) [tid (before tid at)])))
        nodes))

(defn- stuck?
  "True if a thread has been blocked for long."
  [{:keys [blocked]}]
  (let [long-ago (- (System/nanoTime) (* 1000000 (long stuck-ms)))]
    (boolean (some #(neg? (- (long %) long-ago)) (vals blocked)))))

(defn- detached-stacks
  "Returns by name the stacks of tasks without a scope: a leaked one has none any more."
  [{:keys [nodes]}]
  (into {}
        (keep (fn [{:keys [kind parent name thread]}]
                (when (and (= :task kind) (nil? parent) (:stack thread)) [name (:stack thread)])))
        nodes))

;; What a running sampler knows

(defn- new-state []
  {:fast {}, :slow {}, :locks {}, :fixed {}, :lints [], :snapshot nil, :blocked {}})

(defn- lints-of [{:keys [fast slow locks fixed]} at]
  (into [] (mapcat #(rules/lints % at)) [fixed slow locks fast]))

(defn- with-conditions [state kind at conditions]
  (let [state (update state kind rules/advance at conditions)]
    (assoc state :lints (lints-of state at))))

(defn- key-of [{:keys [rule id]}]
  [rule id])

(defn- report-new!
  "Calls on-lint for every lint that was not there before. Its failure goes to the uncaught
  exception handler."
  [on-lint before after]
  (let [known (into #{} (map key-of) before)]
    (doseq [lint after :when (not (known (key-of lint)))]
      (try (on-lint lint) (catch Throwable t (spi/uncaught! t))))))

(defprotocol Sampling
  (lints [sampler] "Returns the lints as of the last sample.")
  (latest [sampler] "Returns the last snapshot, or nil before the first.")
  (listen! [sampler f]
    "Calls f with each snapshot from now on, on the sampler's thread. Returns a function that ends
    this.")
  (stop! [sampler] "Ends its thread. Blocks until it has ended."))

;; sampling: {:state atom, :listeners atom, :running atom, :probe probe, :on-lint f}

(defn- run-all! [listeners snapshot]
  (doseq [f listeners] (f snapshot)))

(defn- sample! [{:keys [state on-lint]} kind conditions]
  (let [before (:lints @state)
        after (:lints (swap! state with-conditions kind (System/nanoTime) conditions))]
    (report-new! on-lint before after)))

(defn- fast! [{:keys [state probe listeners] :as sampling}]
  (let [[snapshot conditions] (fast-conditions probe (:stacks @state))]
    (swap! state #(assoc % :snapshot snapshot :blocked (still-blocked (:blocked %) snapshot)))
    (sample! sampling :fast conditions)
    (run-all! @listeners snapshot)))

(defn- slow! [{:keys [state] :as sampling}]
  (let [snapshot (snapshot/take! (some-stacks))]
    (swap! state assoc :stacks (detached-stacks snapshot))
    (sample! sampling :slow (rules/old-tasks-in snapshot))))

(defn- locks! [{:keys [state] :as sampling}]
  (let [{:keys [snapshot] :as now} @state]
    (sample! sampling :locks (if (stuck? now) (lock-conditions snapshot) []))))

(defn- after ^long [nanos ms]
  (+ (long nanos) (* 1000000 (long ms))))

;; A plan: :begun; :fast, :slow and :locks, each {:last, a time, and :spent-ms, of CPU time}.

(def ^:private interval-ms
  {:fast sample-ms, :slow slow-ms, :locks locks-ms})

(defn- due [{:keys [begun] :as plan} kind]
  (let [{:keys [last spent-ms]} (kind plan)]
    (max (after last (interval-ms kind)) (affordable-at begun spent-ms))))

(def ^:private kinds
  {:fast fast!, :slow slow!, :locks locks!})

(defn- sampled
  "Takes one sample of that kind. Returns the plan after it."
  [plan kind sampling]
  (let [f (kinds kind), before (cpu-ms)]
    ;; A failure goes to the uncaught exception handler, and is tried again.
    (try (f sampling) (catch Throwable t (spi/uncaught! t)))
    (assoc plan kind {:last (System/nanoTime)
                      :spent-ms (+ (double (:spent-ms (kind plan))) (- (cpu-ms) before))})))

(defn- let-go?
  "True if the condition is of a thread that was on its carrier, and is not now."
  [{:keys [live data]}]
  (and live (not= (:carrier data) (snapshot/carrier live))))

(defn- look-again!
  "Drops the conditions of threads that have left their carriers since the last sample."
  [{:keys [state]}]
  (let [gone (map key (filter (comp let-go? val) (:fast @state)))]
    (when (seq gone)
      (swap! state update :fast #(apply dissoc % gone)))))

(defn- step!
  "Does what is due. Returns the plan after it."
  [plan sampling]
  (watch/tick!)
  (look-again! sampling)
  (let [now (System/nanoTime)]
    (if-some [kind (some #(when (<= (long (due plan %)) now) %) [:fast :locks :slow])]
      (sampled plan kind sampling)
      plan)))

(defn- run! [{:keys [running] :as sampling}]
  (sample! sampling :fixed (environment/conditions (environment/facts)))
  (let [now (System/nanoTime)]
    (loop [plan {:begun now
                 :fast {:last (after now (- sample-ms)), :spent-ms 0.0}
                 :slow {:last (after now (- slow-ms)), :spent-ms 0.0}
                 :locks {:last now, :spent-ms 0.0}}]
      (when @running
        (Thread/sleep (long tick-ms))
        (recur (step! plan sampling))))))

(defn start!
  "Starts a sampler. on-lint: called on its thread with every new lint."
  [on-lint]
  (let [{:keys [state listeners running] :as sampling}
        {:state (atom (new-state)), :listeners (atom #{}), :running (atom true)
         :probe (scheduler/probe), :on-lint on-lint}

        thread (spi/platform-thread "thrum-watch-sampler" #(run! sampling))]
    (.start thread)
    (reify Sampling
      (lints [_] (:lints @state))
      (latest [_] (:snapshot @state))
      (listen! [_ f]
        (swap! listeners conj f)
        #(swap! listeners disj f))
      (stop! [_]
        (reset! running false)
        (.join thread)))))
