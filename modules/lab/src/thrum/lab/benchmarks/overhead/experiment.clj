(ns thrum.lab.benchmarks.overhead.experiment
  "What it costs to run an item that does nothing, against hand-written loops over the JDK's
  executors."
  (:require
   [thrum.core :as t]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.by-hand :as by-hand]
   [thrum.lab.rounds :as rounds]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private goals
  "By consumer and way: the highest ratio of CPU time to the hand-written loop's."
  (let [batches {:pmap-16 0.48, :pmap-64 0.48, :prun!-64 0.48}]
    {:virtual (merge batches {:prun! 1.2, :pmapv 1.2, :upmap 1.3, :pmap 1.4})
     :main (merge batches {:prun! 1.3, :pmapv 1.4, :upmap 1.4, :pmap 1.6})}))

(def ^:private most-bytes "The highest ratio of allocated bytes to the hand-written loop's." 1.15)

;; :warm-up - how many rounds are not measured, for each limit: the second one finds the code
;; compiled. Before the 20th round or so the compilers' threads take some of the CPU time, and more
;; for a way with more code: in the 11th t/pmap costs up to 3.5 times the loop, on two processors.
(def ^:private jobs
  {:full (for [consumer [:main :virtual]]
           {:items 40000, :limits [64 512], :warm-up [25 4], :rounds 5, :consumer consumer})
   :quick [{:items 2000, :limits [64], :warm-up [1], :rounds 3, :consumer :main}]})

;; In the child

(defn- trivial [x]
  (inc (long x)))

(defn- sum
  "As the loop by hand, allocates nothing for an item."
  ^long [xs]
  (let [sum (long-array 1)]
    (run! (fn [x] (aset sum 0 (+ (aget sum 0) (long x))) nil) xs)
    (aget sum 0)))

(defn- few
  "How many items clojure.core/pmap gets: it takes up to thirty times as long."
  [items]
  (quot items 40))

(defn- thrum-ways [limit items expected]
  [[:pmap #(sum (t/pmap limit trivial items))]
   [:upmap #(sum (t/upmap limit trivial items))]
   [:pmapv #(sum (t/pmapv limit trivial items))]
   [:prun! #(do (t/prun! limit trivial items) expected)]
   [:pmap-16 #(sum (t/pmap {:limit limit, :batch 16} trivial items))]
   [:pmap-64 #(sum (t/pmap {:limit limit, :batch 64} trivial items))]
   [:prun!-64 #(do (t/prun! {:limit limit, :batch 64} trivial items) expected)]])

(defn- own-ways [limit items]
  [[:bare #(by-hand/bare limit trivial items)]
   [:hand #(by-hand/sliding limit trivial items)]
   [:chunks #(sum (by-hand/in-chunks limit trivial items))]])

(defn- core-way [items]
  [:core/pmap (rounds/checked (sum (map trivial items)) #(sum (clojure.core/pmap trivial items)))])

(defn- ways [{:keys [consumer items]} limit]
  (let [all (vec (range items))
        expected (sum (map trivial all))
        on-consumer (rounds/callers consumer)]
    (mapv (fn [[way f]] [way (on-consumer f)])
          (conj (mapv (fn [[way f]] [way (rounds/checked expected f)])
                      (into (own-ways limit all) (thrum-ways limit all expected)))
                (core-way (subvec all 0 (few items)))))))

(defn- items-of [items way]
  (if (= :core/pmap way) (few items) items))

(defn- measure-at [{:keys [items rounds] :as job} limit warm-up]
  (rounds/costs-of-one warm-up rounds (ways job limit) #(items-of items %)))

(defn measure
  "Returns {limit {way [cost per item, see thrum.lab.rounds/costs, for each round]}}."
  [{:keys [limits warm-up] :as job}]
  (into {} (map (fn [limit n] [limit (measure-at job limit n)]) limits warm-up)))

;; In the parent

(defn- row [{:keys [consumer items]} limit runs way]
  {:way way, :limit limit, :consumer consumer
   :items (items-of items way)
   :ns (stats/spread (rounds/medians runs way :ns))
   :cpu-ns (stats/spread (rounds/medians runs way :cpu-ns))
   :bytes (stats/spread (rounds/medians runs way :bytes))
   :to-hand (rounds/times runs way :hand :ns)
   :cpu-to-hand (rounds/times runs way :hand :cpu-ns)
   :bytes-to-hand (rounds/times runs way :hand :bytes)
   :to-chunks (rounds/times runs way :chunks :cpu-ns)
   :goal (get-in goals [consumer way])})

(defn- rows [results]
  (for [{:keys [job runs]} results
        limit (:limits job)
        way [:pmap :upmap :pmapv :prun! :pmap-16 :pmap-64 :prun!-64
             :hand :chunks :bare :core/pmap]]
    (row job limit (map #(get % limit) runs) way)))

(def ^:private names
  {:pmap-16 "t/pmap, batches of 16"
   :pmap-64 "t/pmap, batches of 64"
   :prun!-64 "t/prun!, batches of 64"
   :hand "hand-written loop"
   :bare "bare executor"
   :chunks "Virtuoso's pmap"
   :core/pmap "clojure.core/pmap"})

(defn- way-name [way]
  (names way (str "t/" (name way))))

(defn- words [{:keys [way limit consumer]}]
  (str (way-name way) " " limit ", " (name consumer) " consumer"))

(defn- figures [rows]
  (for [{:keys [goal way] :as row} rows
        :when goal
        figure [{:figure (str (words row) ": CPU ns an item"), :value (:median (:cpu-ns row))}
                {:figure (str (words row) ": CPU, x hand-written")
                 :value (:median (:cpu-to-hand row))
                 :at-most goal
                 :cpu? true}
                (when (= :pmap way)
                  {:figure (str (words row) ": CPU, x Virtuoso's pmap")
                   :value (:median (:to-chunks row))
                   :at-most 1.0})
                {:figure (str (words row) ": bytes, x hand-written")
                 :value (:median (:bytes-to-hand row))
                 :at-most most-bytes}]
        :when figure]
    figure))

(def experiment
  (benchmark/experiment
    {:name :bench/overhead
     :doc "an item that does nothing, beside hand-written loops"
     :title "Overhead per item"
     :about (str "Trivial items; ratios to a hand-written sliding loop over a thread-per-task "
                 "executor whose threads have unique names and conveyed bindings (hand). CPU is "
                 "that of the whole process, its collector and compiler too. Virtuoso's pmap is "
                 "a loop in its shape: an executor for each chunk of limit items.")
     ;; -Xmn: a round ends without a collection.
     :jvm-opts ["-Xms1g" "-Xmx1g" "-Xmn640m" "-XX:+UseG1GC"]
     :jobs jobs
     :measure `measure
     :rows rows
     :figures figures
     :columns [{:heading "way", :left? true, :show (comp way-name :way)}
               {:heading "consumer", :left? true, :show (comp name :consumer)}
               {:heading "limit", :show #(if (= :core/pmap (:way %)) "" (text/whole (:limit %)))}
               {:heading "items", :show (comp text/whole :items)}
               {:heading "ns per item", :show #(text/spread 0 (:ns %))}
               {:heading "CPU ns", :show #(text/spread 0 (:cpu-ns %))}
               {:heading "bytes", :show #(text/spread 0 (:bytes %))}
               {:heading "x hand", :show #(text/spread 2 (:to-hand %))}
               {:heading "CPU x hand", :show #(text/spread 2 (:cpu-to-hand %))}
               {:heading "goal", :show #(text/decimals 2 (:goal %))}
               {:heading "bytes x hand", :show #(text/spread 2 (:bytes-to-hand %))}]}))
