(ns thrum.watch.programs-test
  "Rules over programs that run: one that must raise the rule, and one that nearly does, each looked
  at once its threads are where they are to be."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [are deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.runner :as runner]
   [thrum.watch]
   [thrum.watch.carriers :as carriers]
   [thrum.watch.doctor.examine :as examine]
   [thrum.watch.impl.dump :as dump]
   [thrum.watch.impl.groups :as groups]
   [thrum.watch.impl.locks :as locks]
   [thrum.watch.impl.rules :as rules]
   [thrum.watch.impl.scheduler :as scheduler]
   [thrum.watch.impl.snapshot :as snapshot]
   [thrum.watch.impl.tree :as tree])
  (:import
   (java.io File)
   (java.time Duration)
   (java.util.concurrent Semaphore)
   (java.util.concurrent.locks ReentrantLock)
   (jdk.internal.vm Continuation)
   (jdk.jfr Recording)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- looked
  "Returns a snapshot in which the threads are in these states, by [state kind-of-wait]: how many."
  [states]
  (gate/eventually 10000
    (fn []
      (let [snapshot (snapshot/take! (constantly true))
            state (juxt :state (comp :kind :waits-for))]
        (when (= states (frequencies (map state (groups/threads snapshot)))) snapshot)))))

(defn- at-line? [{:keys [frame]}]
  (str/includes? (str frame) "programs_test.clj"))

(defn- rules-of
  "Returns the rules of conditions, each of which must have a line of this file."
  [conditions]
  (is (every? at-line? conditions) (mapv :sentence conditions))
  (mapv :rule conditions))

(defn- ended! [task]
  (future-cancel task)
  (try @task (catch Exception _)))

(defn- seen
  "Returns the value of (f snapshot) while the program runs, a function of a gate to tasks, with its
  threads in these states; then opens the gate, and ends them."
  [program states f]
  (let [gate (promise), tasks (program gate)]
    (try
      (if-some [snapshot (looked states)] (f snapshot) :not-in-these-states)
      (finally
        (deliver gate :go)
        (run! ended! tasks)))))

(defn- of-snapshot [snapshot]
  (rules-of (rules/conditions snapshot)))

;; Carriers

(defn- pinned-call
  "Returns (f), called as below a native frame: its waits do not leave the carrier."
  [f]
  (Continuation/pin)
  (try (f) (finally (Continuation/unpin))))

(defn- waits [gate] [(t/future @gate)])

(defn- waits-for-a-time [gate] [(t/future (deref gate 60000 nil))])

(defn- pinned [gate] [(t/future (pinned-call #(deref gate)))])

(defn- pinned-for-a-time [gate] [(t/future (pinned-call #(deref gate 60000 nil)))])

(deftest a-wait-that-does-not-leave-its-carrier-is-pinned
  (are [program state expected] (= expected (seen program {[state :lock] 1} of-snapshot))
    pinned :parked [:pinned]
    pinned-for-a-time :timed-parked [:pinned]
    waits :parked []
    waits-for-a-time :timed-parked []))

(defn- recorded
  "Returns the doctor's lints of a recording of the program."
  [program]
  (let [file (File/createTempFile "pinned" ".jfr")]
    (try
      (with-open [recording (Recording.)]
        (-> (.enable recording "jdk.VirtualThreadPinned")
            (.withThreshold Duration/ZERO)
            .withStackTrace)
        (.start recording)
        (seen program {[:parked :lock] 1} (constantly nil))
        (gate/eventually 10000 #(empty? (leak/threads)))
        (.stop recording)
        (.dump recording (.toPath file))
        (examine/of-recording file))
      (finally (io/delete-file file)))))

(deftest what-was-pinned-is-recorded
  (let [lints (recorded pinned), one (re-pattern (str "^A thread waited on its carrier \\d+ times, "
                                                      "\\d+ ms in all, at thrum.watch.programs"))]
    (is (= #{:pinned} (into #{} (map :rule) lints)))
    (is (every? #(re-find one (:sentence %)) lints) (mapv :sentence lints)))
  (is (= [] (recorded waits))))

(defn- pinned-on
  "Returns a program that holds so many carriers."
  [n]
  (fn [gate] (into [] (mapcat (fn [_] (pinned gate))) (range n))))

(defn- starved-with
  "Returns whether, with so many carriers held, a probe is starved half a second later by its clock,
  when it had so many real ms to start."
  [carriers ms]
  (seen (pinned-on carriers) (if (zero? carriers) {} {[:parked :lock] carriers})
    (fn [snapshot]
      (let [probe (scheduler/probe), begun (System/nanoTime), later (+ begun 500000000)
            late-ms #(scheduler/late-ms probe later)]
        (scheduler/late-ms probe begun)
        (gate/eventually ms #(zero? (long (late-ms))))
        (some? (some #{:starved} (of-snapshot (assoc snapshot :late-ms (late-ms)))))))))

(deftest a-scheduler-whose-carriers-are-all-held-is-starved
  (let [{:keys [parallelism]} (scheduler/figures)]
    (is (true? (starved-with parallelism 10)))
    (is (false? (starved-with (dec (long parallelism)) 10000)))))

(deftest a-thread-that-waits-for-a-carrier-is-queued
  (let [{:keys [parallelism]} (scheduler/figures)
        program (fn [gate] (conj ((pinned-on parallelism) gate) (t/future :queued)))
        queued #(map (juxt :state :queued?) (filter :queued? (groups/threads %)))]
    (is (= [[:runnable true]]
           (seen program {[:parked :lock] parallelism, [:runnable nil] 1} queued)))))

;; Derefs

(defn- cycle-of-derefs [_]
  (let [second-task (promise), first-task (t/future @@second-task)]
    (deliver second-task (t/future @first-task))
    [first-task @second-task]))

(defn- chain-of-derefs [gate]
  (let [first-task (t/future @gate)]
    [first-task (t/future @first-task)]))

(deftest tasks-that-deref-each-other-are-a-cycle
  (is (= [:cycle] (seen cycle-of-derefs {[:parked :task] 2} of-snapshot)))
  (is (= [] (seen chain-of-derefs {[:parked :task] 1, [:parked :lock] 1} of-snapshot))))

;; Ages

(defn- twenty-and [f]
  (fn [gate] (into [(f gate)] (mapcat (fn [_] (waits gate))) (range 20))))

(defn- aged
  "Returns the snapshot ten seconds later, with all but the first task a tenth of a second old."
  [{:keys [nodes at] :as snapshot}]
  (let [later (+ (long at) 10000000000)
        ;; What has no thread may be of an earlier test.
        oldest (first (sort-by (comp :tid :thread) (filter :thread nodes)))
        young #(assoc % :since (- later 100000000))]
    (assoc snapshot :at later, :nodes (mapv #(if (= oldest %) % (young %)) nodes))))

(defn- old-in [{:keys [at] :as snapshot}]
  (rules/old-tasks-in snapshot #(tree/ms-between (:since %) at)))

(deftest a-task-that-is-older-than-twenty-at-its-line
  (are [f expected] (= expected (seen (twenty-and f) {[:parked :lock] 21}
                                  (comp rules-of old-in aged)))
    (comp first waits) [:old]
    #(t/future (deref %)) []))

;; Monitors, where the JDK's dump has them

(def ^:private monitors-in-dump? (delay (boolean (some :state (dump/take!)))))

(defn- of-dump [_]
  (rules-of (locks/conditions (dump/take!))))

(defn- holds [lock held f]
  (locking lock (deliver held true) (f)))

(defn- held-by
  "f is called with the gate in a monitor that another task waits for."
  [f]
  (fn [gate]
    (let [lock (Object.), held (promise), holder (t/future (holds lock held #(f gate)))]
      @held
      [holder (t/future (locking lock :free))])))

;; Seen by state, without the dump, where a blocked thread leaves its carrier: JDK 24 and newer.

(def ^:private blocked-leaves-carrier? (delay (<= 24 (.feature (Runtime/version)))))

(defn- waits-for-a-lock [^ReentrantLock lock held f]
  (fn [gate]
    (let [holder (t/future
                   (.lock lock)
                   (deliver held true)
                   (try (f gate) (finally (.unlock lock))))]
      @held
      [holder (t/future (.lock lock) (.unlock lock))])))

(deftest a-task-that-is-blocked-at-a-monitor
  (when-not @blocked-leaves-carrier? (runner/skip! "on this JDK a blocked thread is pinned"))
  (are [program states expected] (= expected (seen program states of-snapshot))
    (held-by deref) {[:parked :lock] 1, [:blocked nil] 1} [:blocked]
    (waits-for-a-lock (ReentrantLock.) (promise) deref) {[:parked :lock] 2} []))

(deftest a-task-that-is-blocked-by-one-that-is-pinned
  (when-not @blocked-leaves-carrier? (runner/skip! "on this JDK a blocked thread is pinned"))
  (carriers/needs-another!)
  (is (= [:pinned :blocked]
         (seen (held-by #(pinned-call (fn [] @%))) {[:parked :lock] 1, [:blocked nil] 1}
               of-snapshot))))

(defn- one-after-the-other
  "Each of n tasks, in turn, holds a monitor until it takes a turn, while the others are blocked."
  [turns n]
  (fn [_]
    (let [lock (Object.)]
      (vec (repeatedly n #(t/future (locking lock (.acquire ^Semaphore turns))))))))

(deftest tasks-that-are-blocked-in-turn-are-not-blocked-for-long
  (when-not @blocked-leaves-carrier? (runner/skip! "on this JDK a blocked thread is pinned"))
  (let [turns (Semaphore. 0)
        still? (fn [snapshot] (:still? (first (rules/conditions snapshot))))]
    (is (= [true true]
           (seen (one-after-the-other turns 20) {[:parked :lock] 1, [:blocked nil] 19}
             (fn [snapshot]
               (let [still? (still? snapshot), before (still?)]
                 (.release turns)
                 [before (gate/eventually 10000 #(not (still?)))])))))))

(defn- left-and-held-by
  "As held-by, and a third task waits on the monitor, and so has left it. It comes after the holder
  in the dump."
  [f]
  (fn [gate]
    (let [lock (Object.), left (promise), held (promise)
          holder (t/future @left (holds lock held #(f gate)))
          waits (t/future (holds lock left #(.wait lock)))]
      @held
      [holder waits (t/future (locking lock :free))])))

(defn- spin [gate]
  (when-not (realized? gate) (recur gate)))

(deftest a-monitor-whose-holder-does-not-run
  (when-not @monitors-in-dump? (runner/skip! "this JDK's dump has no monitors"))
  (is (= [:lock-holder]
         (seen (held-by deref) {[:parked :lock] 1, [:blocked nil] 1} of-dump))))

(deftest a-monitor-whose-holder-keeps-its-carrier
  (when-not @monitors-in-dump? (runner/skip! "this JDK's dump has no monitors"))
  (carriers/needs-another!)
  (are [program states expected] (= expected (seen program states of-dump))
    (held-by #(pinned-call (fn [] @%))) {[:parked :lock] 1, [:blocked nil] 1} []
    (held-by spin) {[:runnable nil] 1, [:blocked nil] 1} []
    (left-and-held-by spin) {[:parked nil] 1, [:runnable nil] 1, [:blocked nil] 1} []))
