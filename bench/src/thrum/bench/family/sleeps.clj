(ns thrum.bench.family.sleeps
  "Items of unequal length: wall time over the limit line."
  (:require
   [thrum.bench.hand :as hand]
   [thrum.bench.list-scheduling :as list-scheduling]
   [thrum.bench.rounds :as rounds]
   [thrum.bench.stats :as stats]
   [thrum.bench.table :as table]
   [thrum.core :as t])
  (:import
   (java.time Duration)
   (java.util ArrayList Collection Collections Random)))

(set! *warn-on-reflection* true)

(def ^:private full {:items 3000, :warm-up 300, :rounds 1, :seed 42})
(def ^:private quick {:items 100, :warm-up 32, :rounds 1, :seed 42})

(defn jobs
  "Returns the jobs: inputs times limits."
  [size]
  (let [counts ({:full full, :quick quick} size)
        inputs ({:full [:exponential :tail], :quick [:tail]} size)
        limits ({:full [16 64], :quick [16]} size)]
    (for [input inputs, limit limits]
      (assoc counts :input input :limit limit))))

;; Inputs, the same in every JVM: a Random of a given seed is the same on every JDK

(defn- nanos-of [ms]
  (Math/round (* 1e6 (double ms))))

(defn exponential
  "Returns n durations in ns, exponentially distributed with that mean."
  [n mean-ms seed]
  (let [random (Random. seed)]
    (vec
      (repeatedly n #(nanos-of (* -1.0 (double mean-ms) (Math/log (- 1.0 (.nextDouble random)))))))))

(defn- shuffled [xs seed]
  (let [all (ArrayList. ^Collection xs)]
    (Collections/shuffle all (Random. seed))
    (vec all)))

(defn tail
  "Returns n durations in ns: 1 % of long-ms, the others of short-ms, in random order."
  [n short-ms long-ms seed]
  (let [longs (quot n 100)]
    (shuffled (concat (repeat longs (nanos-of long-ms)) (repeat (- n longs) (nanos-of short-ms)))
              seed)))

(defn durations
  "Returns the input of a job."
  [{:keys [input items seed]}]
  (case input
    :exponential (exponential items 20 seed)
    :tail (tail items 5 500 seed)))

;; In the child

(defn- sleep! [^long ns]
  (Thread/sleep (Duration/ofNanos ns))
  ns)

(defn- checked [items f]
  (fn []
    (when-not (= (count items) (f))
      (throw (ex-info "A way lost items" {:expected (count items)})))))

(defn- ways [limit items]
  (mapv (fn [[way f]] [way (checked items f)])
        [[:pmap #(count (t/pmap limit sleep! items))]
         [:pmap-4096 #(count (t/pmap {:limit limit, :window 4096} sleep! items))]
         [:upmap #(count (t/upmap limit sleep! items))]
         [:chunked #(count (hand/chunked limit sleep! items))]
         [:core/pmap #(count (clojure.core/pmap sleep! items))]]))

(defn measure
  "Returns {:line ns, :times {way [ns, for each round]}}."
  [{:keys [limit warm-up rounds] :as job}]
  (let [items (durations job)]
    (rounds/run 1 0 (ways limit (subvec items 0 warm-up)))
    {:line (list-scheduling/makespan limit items)
     :times (rounds/run 0 rounds (ways limit items))}))

;; In the parent

(def ^:private goals
  {[:exponential :pmap] 1.05, [:tail :pmap-4096] 1.05, [:tail :upmap] 1.05})

(defn- row [{:keys [input limit items]} runs way]
  (let [times (map #(stats/median (way (:times %))) runs)]
    {:input input, :limit limit, :items items, :way way
     :line-ms (/ (:line (first runs)) 1e6)
     :ms (stats/summary (map #(/ % 1e6) times))
     :to-line (stats/summary (map #(/ (double %1) (:line %2)) times runs))
     :goal (goals [input way])}))

(defn rows
  "Returns a row for each job and way."
  [results]
  (for [{:keys [job runs]} results
        way [:pmap :pmap-4096 :upmap :chunked :core/pmap]]
    (row job runs way)))

(def ^:private inputs
  {:exponential "exponential, mean 20 ms", :tail "1 % of 500 ms among 5 ms"})

(def ^:private names
  {:pmap "t/pmap", :pmap-4096 "t/pmap, :window 4096", :upmap "t/upmap"
   :chunked "a chunked map", :core/pmap "clojure.core/pmap (has no limit)"})

(def family
  {:title "Wall time over the limit line"
   :about
   (str
     "Sleeps; the limit line is greedy list scheduling of the requested durations, in input order, on as many machines "
     "as the limit.")
   :jvm-opts ["-Xms512m" "-Xmx512m" "-XX:+UseG1GC"]
   :jobs jobs
   :measure measure
   :rows rows
   :columns
   [{:title "input", :left? true, :show #(str (table/whole (:items %)) " x " (inputs (:input %)))}
    {:title "limit", :show (comp table/whole :limit)}
    {:title "way", :left? true, :show (comp names :way)}
    {:title "line, ms", :show (comp table/whole :line-ms)}
    {:title "ms", :show #(table/figure 0 (:ms %))}
    {:title "x line", :show #(table/figure 3 (:to-line %))}
    {:title "goal", :show #(table/decimals 2 (:goal %))}]})
