(ns thrum.lab.benchmarks.laziness.experiment
  "What is done beyond what was asked for, and what is left of it."
  (:require
   [clojure.string :as str]
   [thrum.core :as t]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text]
   [thrum.lab.threads :as threads])
  (:import
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(def ^:private jobs {:full [{:k 500, :settle-ms 600}], :quick [{:k 20, :settle-ms 100}]})

;; Threads alive

(defn- alive
  "Counts the virtual threads and those of Clojure's pools that are alive."
  []
  (->> (threads/dump)
       str/split-lines
       (filter #(re-find #"^#\d+ \".*\" virtual|^#\d+ \"clojure-agent" %))
       count))

;; In the child

(defn- counted
  "Returns the numbers from 0 as a lazy seq without chunks or end; counts those that were realised."
  [^AtomicLong pulled]
  (map (fn [i] (.incrementAndGet pulled) i) (iterate inc 0)))

(defn- sleeping
  "Returns the identity that takes 20 ms, for item 0 the given time, and counts its calls."
  [^AtomicLong called head-ms]
  (fn [i]
    (.incrementAndGet called)
    (Thread/sleep (long (if (= 0 i) head-ms 20)))
    i))

(def ^:private cases
  "In the order of the table: what is done with f and an endless source, and how far over it may go
  (nil: no promise). head-ms is how long the first item takes."
  [{:id :first
    :text "(first (t/pmap 8 f src))"
    :bound 2047
    :do (fn [f src _] (first (t/pmap 8 f src)))}
   {:id :first-slow
    :text "the same, the first item 20 times as slow"
    :head-ms 400
    :bound 2047
    :do (fn [f src _] (first (t/pmap 8 f src)))}
   {:id :first-unordered
    :text "(first (t/upmap 8 f src))"
    :bound 2047
    :do (fn [f src _] (first (t/upmap 8 f src)))}
   {:id :first-all
    :text "(first (t/map f src))"
    :bound 99999
    :do (fn [f src _] (first (t/map f src)))}
   {:id :take
    :text "(take k (t/pmap 8 f src))"
    :k true
    :bound 2047
    :do (fn [f src k] (run! identity (take k (t/pmap 8 f src))))}
   {:id :take-narrow
    :text "the same, :window 8"
    :k true
    :bound 7
    :do (fn [f src k] (run! identity (take k (t/pmap {:limit 8, :window 8} f src))))}
   {:id :transducer
    :text "(comp (t/pmap 8 f) (take k))"
    :k true
    :bound 64
    :do (fn [f src k] (transduce (comp (t/pmap 8 f) (take k)) conj [] src))}
   {:id :core-first
    :text "(first (clojure.core/pmap f src))"
    :do (fn [f src _] (first (clojure.core/pmap f src)))}
   {:id :core-take
    :text "(take k (clojure.core/pmap f src))"
    :k true
    :do (fn [f src k] (run! identity (take k (clojure.core/pmap f src))))}])

(defn- settle!
  "Waits until what was started has had the time to end."
  [ms]
  (System/gc)
  (Thread/sleep (long ms)))

(defn- observe [{:keys [k settle-ms]} {:keys [id head-ms] :as case}]
  (let [pulled (AtomicLong.), called (AtomicLong.)
        before (alive)]
    ((:do case) (sleeping called (or head-ms 20)) (counted pulled) k)
    (settle! settle-ms)
    [id {:called (.get called), :pulled (.get pulled), :threads-left (- (alive) before)}]))

(defn measure
  "Returns {case {:called :pulled :threads-left}}."
  [job]
  (into {} (map #(observe job %)) cases))

;; In the parent

(defn- row
  [k runs {:keys [id bound], :as case}]
  (let [consumed (if (:k case) k 1)]
    {:case id
     :text (str/replace (:text case) "take k" (str "take " k))
     :consumed consumed
     :bound bound
     :over (stats/spread (map #(- (get-in % [id :called]) consumed) runs))
     :pulled-over (stats/spread (map #(- (get-in % [id :pulled]) consumed) runs))
     :threads-left (stats/spread (map #(get-in % [id :threads-left]) runs))}))

(defn- rows [[{:keys [job runs]}]]
  (map #(row (:k job) runs %) cases))

(def experiment
  (benchmark/experiment
    {:name :bench/laziness
     :doc "what is done beyond what was asked for, and left behind"
     :title "Over-realised, and left behind"
     :about (str "An endless source without chunks, calls of 20 ms, the seq abandoned. At most "
                 "window - 1 calls beyond what was consumed, limit - 1 while no consumer waits; "
                 "threads are counted when the calls have had the time to end (new ones: those "
                 "of clojure.core/pmap's pool stay for a minute).")
     :jvm-opts ["-Xms512m" "-Xmx512m" "-XX:+UseG1GC"]
     :jobs jobs
     :jvms 1
     :measure `measure
     :rows rows
     :columns [{:heading "what was asked for", :left? true, :show :text}
               {:heading "consumed", :show (comp text/whole :consumed)}
               {:heading "calls beyond", :show #(text/spread 0 (:over %))}
               {:heading "items pulled beyond", :show #(text/spread 0 (:pulled-over %))}
               {:heading "bound", :show (comp text/whole :bound)}
               {:heading "threads left", :show #(text/spread 0 (:threads-left %))}]}))
