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
   [thrum.watch.impl.snapshot :as snapshot]
   [thrum.watch.impl.tree :as tree])
  (:import
   (java.lang.management ManagementFactory ThreadMXBean)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(def ^:private ^:const tick-ms 20)

;; Between samples, where no condition holds, and where one does.
(def ^:private ^:const calm-ms 250)
(def ^:private ^:const sample-ms 100)

;; Between looks at stacks, and for locks.
(def ^:private ^:const slow-ms 1000)
(def ^:private ^:const locks-ms 300)

;; A dump is taken only where it is wanted, and while a thread has been blocked for so long: JDK
;; 25.0.3 has crashed twice in a dump of a busy server, in Continuation::is_continuation_entry_frame
;; and in GetThreadSnapshotClosure::do_thread.
(def ^:private ^:const stuck-ms 500)

(defn- cpu-ns
  "Returns the CPU time of the calling thread."
  ^long []
  (.getCurrentThreadCpuTime ^ThreadMXBean (ManagementFactory/getThreadMXBean)))

;; The budget: so much of the time of one processor is credited as CPU time, and what is not used is
;; saved, up to a bound. The first samples, which load classes, have an allowance.
(def ^:private ^:const share 0.01)
(def ^:private ^:const saved-ms 100.0)
(def ^:private ^:const allowance-ms 5000.0)

(defn- topped-up
  "Returns the credit, in ms of CPU time, so many ms later."
  ^double [^double credit ^double ms]
  (max credit (min (double saved-ms) (+ credit (* (double share) ms)))))

;; Samples

(defn- suspects
  "Returns the ids of the threads that the conditions of the last fast sample name."
  [{:keys [fast]}]
  (into #{}
        (mapcat (fn [{{:keys [thread held holders threads]} :data}]
                  (concat (some-> thread list) held holders threads)))
        (vals fast)))

(defn- with-stacks-of-leaked
  "Adds to leaked tasks the stack that they were last seen with, by this sample or by one before."
  [snapshot {:keys [stacks] :as state}]
  (let [known (into {} (map (juxt :name :stack)) (:leaked (:snapshot state)))]
    (update snapshot :leaked
            (partial mapv (fn [{:keys [name] :as task}]
                            (assoc task :stack (or (known name) (get stacks name))))))))

(def ^:private most-stacks 2000)

(def ^:private most-blocked 200)

(defn- stacks-of
  "Returns a function that is true for the threads of these ids, for the first that are blocked, and
  for the first of all where slow?."
  [suspects slow?]
  (let [left (volatile! (if slow? most-stacks 0)), blocked-left (volatile! most-blocked)]
    (fn [{:keys [tid state]}]
      (or (contains? suspects tid)
          (and (= :blocked state) (nat-int? (vswap! blocked-left dec)))
          (nat-int? (vswap! left dec))))))

(defn- fast-snapshot
  "Returns a snapshot with the stacks of the threads that conditions of the last one name, and of
  those that are blocked; where slow? also those of others, and the figures of the scheduler,
  which cost more than all else."
  [{:keys [probe state]} slow?]
  (let [{before :snapshot :as state} @state
        late-ms (scheduler/late-ms probe)]
    (assoc (with-stacks-of-leaked (snapshot/take! (stacks-of (suspects state) slow?)) state)
           :late-ms late-ms
           :scheduler (if (or slow? (pos? late-ms)) (scheduler/figures) (:scheduler before)))))

;; A dump costs some 50 us a thread, and nothing can stop it.
(def ^:private most-dumped 5000)

;; Before JDK 25 a dump has neither states nor locks: one is enough.
(def ^:private locks-in-dump? (atom true))

(defn- dumped []
  (let [threads (dump/take!)]
    (reset! locks-in-dump? (boolean (some :state threads)))
    threads))

(def ^:private dump-fails
  (str "The JDK's dump fails, as it does at a thread whose name has a control character: meanwhile "
       ":blocked takes the place of :lock-holder"))

(defn- lock-conditions
  "Returns the conditions that need the JDK's dump. Where that fails, the first failure goes to the
  uncaught exception handler."
  [state {:keys [nodes]}]
  (when (and (<= (count nodes) (long most-dumped)) @locks-in-dump?)
    (try
      (let [threads (dumped)]
        (swap! state assoc :dump-fails? false)
        (locks/conditions threads))
      (catch Throwable t
        (when-not (:dump-fails? @state)
          (spi/uncaught! (ex-info dump-fails {} t)))
        (swap! state assoc :dump-fails? true)
        nil))))

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

(defn- after ^long [nanos ms]
  (+ (long nanos) (long (* 1e6 (double ms)))))

;; What a running sampler knows

(defn- new-state []
  {:fast {}, :slow {}, :locks {}, :fixed {}, :lints [], :snapshot nil, :blocked {}
   :first-seen {}, :stacks {}, :stacks-at nil, :dump-fails? false})

(defn- lints-of [{:keys [fast slow locks fixed]} at now]
  (into [] (mapcat #(rules/lints % at now)) [fixed slow locks fast]))

(defn- with-conditions [state kind at now conditions]
  (let [state (update state kind rules/advance at now conditions)]
    (assoc state :lints (lints-of state at now))))

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
  (late-ms [sampler] "Returns for how many ms no virtual thread has started, as of now.")
  (listen! [sampler f]
    "Calls f with each snapshot from now on, on the sampler's thread. What it throws goes where
    thrum.spi/reporter hands it. Returns a function that ends this.")
  (stop! [sampler] "Ends its thread. Blocks until it has ended, but for a call on it."))

;; sampling: {:state atom, :listeners atom, :running atom, :probe probe, :on-lint f, :monitors? b,
;; :dozed volatile, ns; :mounted atom, see went-on?; :ended volatile, tasks}

;; A condition is timed by a clock that stands while the sampler itself does not run: where a
;; machine is too busy for it, or stops the whole process, other threads do not run either. It
;; counts the CPU time of the sampler's thread, and of each of its sleeps a tick. How long a lint
;; has held is said in real time.

(defn- running-time
  "Returns the time of that clock, in ns."
  ^long [{:keys [dozed]}]
  (+ (long @dozed) (cpu-ns)))

(defn- sleep-a-tick! []
  (try
    (Thread/sleep (long tick-ms))
    ;; What is called on this thread may leave it interrupted.
    (catch InterruptedException _)))

(defn- doze!
  "Sleeps for a tick."
  [{:keys [dozed]}]
  (sleep-a-tick!)
  (vswap! dozed + (* 1000000 (long tick-ms))))

(defn- sample! [{:keys [state on-lint] :as sampling} kind conditions]
  (let [[before after] (swap-vals! state with-conditions
                                   kind
                                   (running-time sampling)
                                   (System/nanoTime)
                                   conditions)]
    (report-new! on-lint (:lints before) (:lints after))))

(defn- first-seen
  "Returns by [tid since] at which running time a task was first seen: a thread of a pool runs
  many."
  [before {:keys [nodes]} now]
  (into {}
        (keep (fn [{{:keys [tid]} :thread, :keys [since]}]
                (when tid
                  (let [task [tid since]] [task (before task now)]))))
        nodes))

(defn- slow!
  "Looks at the stacks of a snapshot."
  [{:keys [state] :as sampling} {:keys [at] :as snapshot}]
  (let [now (running-time sampling), seen (first-seen (:first-seen @state) snapshot now)
        seen-ms (fn [{:keys [tid since]}] (tree/ms-between (seen [tid since] now) now))]
    (swap! state assoc :first-seen seen, :stacks (detached-stacks snapshot), :stacks-at at)
    (sample! sampling :slow (rules/old-tasks-in snapshot seen-ms))))

(defn- slow? [{:keys [stacks-at]}]
  (or (nil? stacks-at) (<= (after stacks-at slow-ms) (System/nanoTime))))

(defn- conditions-of
  "Returns the conditions of a snapshot. Where dumps are taken, and do not fail, they say who is
  blocked, and by whom."
  [snapshot dumps?]
  (cond->> (rules/conditions snapshot)
    dumps? (remove #(= :blocked (:rule %)))))

(defn- still-mounted
  "Returns functions that say whether the threads that were on carriers still are."
  [{:keys [nodes]}]
  (into [] (comp (map :thread) (filter :carrier) (keep (comp :still? meta))) nodes))

;; Each of the two returns in how many ms it is to be called again.

(defn- fast! [{:keys [state listeners monitors? mounted] :as sampling}]
  (let [slow? (slow? @state)
        snapshot (fast-snapshot sampling slow?)
        conditions (conditions-of snapshot (and monitors? (not (:dump-fails? @state))))]
    (reset! mounted (still-mounted snapshot))
    (swap! state #(assoc % :snapshot snapshot, :blocked (still-blocked (:blocked %) snapshot)))
    (sample! sampling :fast conditions)
    (when slow? (slow! sampling snapshot))
    (doseq [f @listeners] (f snapshot))
    (if (empty? conditions) calm-ms sample-ms)))

(defn- locks! [{:keys [state monitors?] :as sampling}]
  (let [{:keys [snapshot] :as now} @state]
    (sample! sampling :locks (when (and monitors? (stuck? now)) (lock-conditions state snapshot)))
    locks-ms))

;; A plan: :due, by kind, when it is to be sampled; :credit, ms of CPU time that were left; :at and
;; :cpu, as of when, and of how many ns of CPU time of this thread; :not-before, when there is
;; credit again.

(def ^:private kinds
  {:fast fast!, :locks locks!})

(defn- charged
  "Returns the plan as of this time, with the CPU time that this thread has used since."
  [{:keys [credit at cpu] :as plan} now cpu-now]
  (let [ms (/ (- (long now) (long at)) 1e6), used (/ (- (long cpu-now) (long cpu)) 1e6)
        credit (- (topped-up credit ms) used)]
    (assoc plan
           :credit credit
           :at now
           :cpu cpu-now
           :not-before (after now (/ (max 0.0 (- credit)) (double share))))))

(defn- due-kind
  "Returns the kind that has been due for longest; nil where none is, or there is no credit."
  [{:keys [due not-before]} now]
  (let [[kind at] (apply min-key val due)]
    (when (<= (max (long not-before) (long at)) (long now)) kind)))

(defn- sampled
  "Takes one sample of that kind. Returns the plan after it."
  [plan kind sampling]
  ;; A failure goes to the uncaught exception handler, and is tried again.
  (let [ms (try ((kinds kind) sampling) (catch Throwable t (spi/uncaught! t) calm-ms))]
    (assoc-in plan [:due kind] (after (System/nanoTime) ms))))

(defn- over? [{:keys [still?]}]
  (and still? (not (still?))))

(defn- look-again!
  "Drops the conditions that have been seen to hold no more since the last sample."
  [{:keys [state]}]
  (let [gone (map key (filter (comp over? val) (:fast @state)))]
    (when (seq gone)
      (swap! state update :fast #(apply dissoc % gone)))))

(defn- step!
  "Does what is due. Returns the plan after it."
  [plan sampling]
  (look-again! sampling)
  (let [now (System/nanoTime)]
    (if-some [kind (due-kind plan now)]
      (let [{:keys [not-before] :as plan} (charged plan now (cpu-ns))]
        (if (<= (long not-before) now) (sampled plan kind sampling) plan))
      plan)))

(defn- new-plan [allowance-ms]
  (let [now (System/nanoTime)]
    {:due {:fast now, :locks now}
     :credit allowance-ms, :at now, :cpu (cpu-ns), :not-before now}))

(defn- until-stopped!
  "Calls f again and again, also after it has thrown, as it may anywhere while there is no memory:
  a watch must see again what is there when some is free. What is thrown is reported."
  [running f]
  (let [report! (spi/reporter)]
    (while @running
      (try
        (while @running (f))
        ;; Nothing here may need memory.
        (catch Throwable t
          (when @running (report! t))
          (LockSupport/parkNanos 20000000))))))

(defn- reporting
  "Returns f, which throws nothing: what it throws is reported."
  [f]
  (let [report! (spi/reporter)]
    #(try (f %) (catch Throwable t (report! t)))))

(defn- run! [{:keys [running] :as sampling} allowance-ms]
  (sample! sampling :fixed (environment/conditions (environment/facts)))
  (let [plan (volatile! (new-plan allowance-ms))]
    (until-stopped! running #(do (doze! sampling) (vreset! plan (step! @plan sampling))))))

;; The time, on a thread of its own: a look may take long, and on-lint longer.

(defn- left-carrier?
  "True if a thread that the last sample saw on a carrier has left it; each is seen to do so once."
  [{:keys [mounted]}]
  (let [before @mounted, still (filterv #(%) before)]
    (when (< (count still) (count before))
      (compare-and-set! mounted before still)
      true)))

(defn- tasks-ended? [{:keys [ended]}]
  (let [now (vals (watch/ended)), before @ended]
    (vreset! ended now)
    (not= before now)))

(defn- went-on?
  "True if the scheduler has gone on since the last call, as far as Thrum's threads show it."
  [sampling]
  (let [ended? (tasks-ended? sampling)]
    (or (left-carrier? sampling) ended?)))

(defn- note-the-time! [{:keys [probe] :as sampling}]
  (try
    (watch/tick!)
    (when (went-on? sampling) (scheduler/went-on! probe))
    (scheduler/late-ms probe)
    (catch Throwable t (spi/uncaught! t))))

(defn- keep-time! [{:keys [running] :as sampling}]
  (until-stopped! running #(do (note-the-time! sampling) (sleep-a-tick!))))

(defn start!
  "Starts a sampler. on-lint: called on its thread with every new lint. :allowance - ms of CPU time
  for its first samples; they and all that follow then keep the budget. :monitors? - whether it
  takes dumps to see who holds a monitor."
  ([on-lint] (start! on-lint {}))
  ([on-lint {:keys [allowance monitors?], :or {allowance allowance-ms}}]
   (let [{:keys [state listeners running probe] :as sampling}
         {:state (atom (new-state)), :listeners (atom #{}), :running (atom true)
          :probe (scheduler/probe), :on-lint on-lint, :monitors? monitors?, :dozed (volatile! 0)
          :mounted (atom []), :ended (volatile! nil)}

         thread (spi/platform-thread "thrum-watch-sampler" #(run! sampling allowance))
         clock (spi/platform-thread "thrum-watch-clock" #(keep-time! sampling))]
     (.start clock)
     (try
       (.start thread)
       (catch Throwable t
         (reset! running false)
         (throw t)))
     (reify Sampling
       (lints [_] (:lints @state))
       (latest [_] (:snapshot @state))
       (late-ms [_] (scheduler/late-ms probe))
       (listen! [_ f]
         (let [f (reporting f)]
           (swap! listeners conj f)
           #(swap! listeners disj f)))
       (stop! [_]
         (reset! running false)
         (.join clock)
         (when-not (identical? thread (Thread/currentThread)) (.join thread)))))))
