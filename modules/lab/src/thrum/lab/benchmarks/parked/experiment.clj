(ns thrum.lab.benchmarks.parked.experiment
  "What a task that waits costs in memory."
  (:require
   [thrum.core :as t]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.by-hand :as by-hand]
   [thrum.lab.memory :as memory]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text])
  (:import
   (java.lang.ref Reference)
   (java.util.concurrent ConcurrentLinkedQueue)
   (java.util.concurrent.atomic AtomicBoolean LongAdder)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(def ^:private jobs
  "Every JVM holds the tasks of one way alone."
  {:full (for [way [:bare :hand :future :fmap :pmap]] {:way way, :tasks 1000000, :warm-up 10000})
   :quick [{:way :pmap, :tasks 20000, :warm-up 100}]})

;; In the child

;; The frames that a parked thread holds are larger while its code is interpreted, so the code is
;; warmed up: by tasks that are let go again, and by some that are not, as those that are measured.
;; A branch that had not been taken before would send all of them back to the interpreter.
(deftype Gate [^AtomicBoolean shut ^LongAdder parked ^ConcurrentLinkedQueue passing])

(defn- gate
  "Returns a gate, shut for good or not."
  [shut?]
  (Gate. (AtomicBoolean. (boolean shut?)) (LongAdder.) (ConcurrentLinkedQueue.)))

(defn- arrive! [^Gate gate]
  (when-not (.get ^AtomicBoolean (.-shut gate))
    (.add ^ConcurrentLinkedQueue (.-passing gate) (Thread/currentThread)))
  (.increment ^LongAdder (.-parked gate)))

(defn- waiting
  "Returns a function that parks at the gate: for as long as the JVM lives, if that is shut."
  [^Gate gate]
  (fn [_]
    (arrive! gate)
    (loop []
      (LockSupport/park)
      (when (.get ^AtomicBoolean (.-shut gate))
        (recur)))))

(defn- each
  "Returns an array of (start i) for i below n."
  [n start]
  (let [started (object-array n)]
    (dotimes [i n]
      (aset started i (start i)))
    started))

(defn- fan-out-options [n]
  {:limit (inc n), :window (inc n)})

(def ^:private ways
  "By name: starts n tasks that wait; returns what keeps them reachable."
  {:bare (fn [n wait] (each n #(Thread/startVirtualThread (fn [] (wait %)))))
   :hand (fn [n wait] (each n (by-hand/conveying (by-hand/named-executor "hand-") wait)))
   :future (fn [n wait] (each n #(t/future (wait %))))
   :fmap (fn [n wait] (doto (t/fmap (fan-out-options n) wait (range n)) first))
   :pmap (fn [n wait] (t/future (first (t/pmap (fan-out-options n) wait (range n)))))})

(defn- await-sum [^LongAdder adder ^long n]
  (while (< (.sum adder) n)
    (Thread/sleep 10)))

(defn- let-go! [^Gate gate]
  (while (not (.isEmpty ^ConcurrentLinkedQueue (.-passing gate)))
    (LockSupport/unpark (.poll ^ConcurrentLinkedQueue (.-passing gate)))))

(defn- park!
  "Starts n tasks, which wait at the gate. Returns what keeps them reachable."
  [start n gate]
  (let [held (start n (waiting gate))]
    (await-sum (.-parked ^Gate gate) n)
    held))

(defn- warm-up!
  "Parks n tasks at a time, and lets most of them go again. Returns what keeps the others
  reachable."
  [start n]
  (dotimes [_ 10]
    (let [gate (gate false)
          held (park! start n gate)]
      (let-go! gate)
      (Reference/reachabilityFence held)))
  (let [held (vec (repeatedly 5 #(park! start n (gate true))))]
    (Thread/sleep 500)
    held))

(defn- growth [tasks before after]
  (when (and before after)
    (/ (double (- after before)) tasks)))

(defn measure
  "Returns {:heap bytes per task, :rss bytes per task or nil}."
  [{:keys [way tasks warm-up]}]
  (let [start (ways way)
        warm (warm-up! start warm-up)
        before (memory/settled)
        held (park! start tasks (gate true))
        after (memory/settled)]
    (Reference/reachabilityFence [warm held])
    (into {} (map (fn [k] [k (growth tasks (k before) (k after))])) [:heap :rss])))

;; In the parent

(defn- rows [results]
  (for [{:keys [job runs]} results]
    {:way (:way job), :tasks (:tasks job)
     :heap (stats/spread (map :heap runs))
     :rss (stats/spread (map :rss runs))
     :goal (when (#{:future :fmap :pmap} (:way job)) 1100)}))

(defn- figures [rows]
  (for [{:keys [way tasks rss goal]} rows :when (and goal rss)]
    {:figure (str "t/" (name way) ", " tasks " parked tasks: RSS, bytes each")
     :value (:median rss)
     :at-most goal}))

(def ^:private names
  {:bare "bare virtual thread", :hand "executor's future, with name and bindings"
   :future "t/future", :fmap "t/fmap", :pmap "t/pmap"})

(def experiment
  (benchmark/experiment
    {:name :bench/parked
     :doc "the memory of a task that waits"
     :title "Memory per parked task"
     :about (str "All tasks parked at once in a fresh JVM; growth of the heap after a full "
                 "collection, and of the resident memory.")
     :jvm-opts ["-Xms8m" "-Xmx6g" "-XX:+UseG1GC" "-XX:MinHeapFreeRatio=1" "-XX:MaxHeapFreeRatio=2"]
     :jobs jobs
     :measure `measure
     :rows rows
     :figures figures
     :jvms 1
     :columns [{:heading "way", :left? true, :show (comp names :way)}
               {:heading "tasks", :show (comp text/whole :tasks)}
               {:heading "heap, B per task", :show #(text/spread 0 (:heap %))}
               {:heading "RSS, B per task", :show #(text/spread 0 (:rss %))}
               {:heading "goal RSS", :show (comp text/whole :goal)}]}))
