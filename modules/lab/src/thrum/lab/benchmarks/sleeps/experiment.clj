(ns thrum.lab.benchmarks.sleeps.experiment
  "Items of unequal length: wall time over the limit line."
  (:require
   [thrum.core :as t]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.benchmarks.sleeps.list-scheduling :as list-scheduling]
   [thrum.lab.rounds :as rounds]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text])
  (:import
   (java.time Duration)
   (java.util ArrayList Collection Collections Random)))

(set! *warn-on-reflection* true)

(def ^:private full
  "Inputs, limits and how many items. Of a tail more than the default window of 2 048, and at 64
  more than one of 4 096: with fewer no window would hold anything back."
  [[:exponential 16 600] [:exponential 64 2400] [:tail 16 2400] [:tail 64 4500]])

(defn- jobs [size]
  (for [[input limit items] ({:full full, :quick [[:tail 16 100]]} size)]
    {:input input, :limit limit, :items items, :warm-up (min 300 (quot items 2)), :rounds 1
     :seed 42}))

;; Inputs, the same in every JVM: a Random of a given seed is the same on every JDK

(defn- nanos-of [ms]
  (Math/round (* 1e6 (double ms))))

(defn- exponential
  "Returns n durations in ns, exponentially distributed with that mean."
  [n mean-ms seed]
  (let [random (Random. seed)
        one #(nanos-of (* -1.0 (double mean-ms) (Math/log (- 1.0 (.nextDouble random)))))]
    (vec (repeatedly n one))))

(defn- shuffled [xs seed]
  (let [all (ArrayList. ^Collection xs)]
    (Collections/shuffle all (Random. seed))
    (vec all)))

(defn- tail
  "Returns n durations in ns: 1 % of long-ms, the others of short-ms, in random order."
  [n short-ms long-ms seed]
  (let [longs (quot n 100)]
    (shuffled (concat (repeat longs (nanos-of long-ms)) (repeat (- n longs) (nanos-of short-ms)))
              seed)))

(defn- durations [{:keys [input items seed]}]
  (case input
    :exponential (exponential items 20 seed)
    :tail (tail items 5 500 seed)))

;; In the child

(defn- sleep! [^long ns]
  (Thread/sleep (Duration/ofNanos ns))
  ns)

(defn- ways [limit items]
  (mapv (fn [[way f]] [way (rounds/checked (count items) f)])
        [[:pmap #(count (t/pmap limit sleep! items))]
         [:pmap-4096 #(count (t/pmap {:limit limit, :window 4096} sleep! items))]
         [:upmap #(count (t/upmap limit sleep! items))]]))

(defn measure
  "Returns {:line ns, :chunks ns, :costs {way [cost, see thrum.lab.rounds/costs, for each round]}}."
  [{:keys [limit warm-up rounds] :as job}]
  (let [items (durations job)]
    (rounds/costs 1 0 (ways limit (subvec items 0 warm-up)))
    {:line (list-scheduling/makespan limit items)
     :chunks (list-scheduling/chunks limit items)
     :costs (rounds/costs 0 rounds (ways limit items))}))

;; In the parent

(def ^:private goals
  {[:exponential :pmap] 1.05, [:tail :pmap] 2, [:tail :pmap-4096] 1.05, [:tail :upmap] 1.05})

(defn- row [{:keys [input limit items]} runs way]
  (let [times (if (= :chunks way) (map :chunks runs) (rounds/medians (map :costs runs) way :ns))]
    {:input input, :limit limit, :items items, :way way
     :line-ms (/ (:line (first runs)) 1e6)
     :ms (stats/spread (map #(/ % 1e6) times))
     :to-line (stats/spread (map #(/ (double %1) (:line %2)) times runs))
     :goal (goals [input way])}))

(defn- rows [results]
  (for [{:keys [job runs]} results
        way [:pmap :pmap-4096 :upmap :chunks]]
    (row job runs way)))

(def ^:private inputs
  {:exponential "exponential, mean 20 ms", :tail "1 % of 500 ms among 5 ms"})

(defn- figures [rows]
  (for [{:keys [input limit way to-line goal]} rows :when goal]
    {:figure (str (name way) " " limit ", " (inputs input) ": x limit line")
     :value (:median to-line)
     :at-most goal}))

(def ^:private names
  {:pmap "t/pmap", :pmap-4096 "t/pmap, :window 4096", :upmap "t/upmap"
   :chunks "a map over chunks, by arithmetic"})

(def experiment
  (benchmark/experiment
    {:name :bench/sleeps
     :doc "items of unequal length, beside the limit line"
     :title "Wall time over the limit line"
     :about (str "Sleeps; the limit line is greedy list scheduling of the requested durations, "
                 "in input order, on as many machines as the limit. A map over chunks of so many "
                 "items takes at least the sum of each chunk's longest sleep.")
     :jvm-opts ["-Xms512m" "-Xmx512m" "-XX:+UseG1GC"]
     :jobs jobs
     :measure `measure
     :rows rows
     :figures figures
     :jvms 1
     :columns
     [{:heading "input"
                :left? true
                :show #(str (text/whole (:items %)) " x " (inputs (:input %)))}
      {:heading "limit", :show (comp text/whole :limit)}
      {:heading "way", :left? true, :show (comp names :way)}
      {:heading "line, ms", :show (comp text/whole :line-ms)}
      {:heading "ms", :show #(text/spread 0 (:ms %))}
      {:heading "x line", :show #(text/spread 3 (:to-line %))}
      {:heading "goal", :show #(text/decimals 2 (:goal %))}]}))
