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

(def ^:private goals "By limit: the highest ratio to hand." {64 1.3, 512 1.15})

(def ^:private full {:items 200000, :warm-up 3, :rounds 5})
(def ^:private quick {:items 2000, :warm-up 1, :rounds 3})

(defn jobs
  "Returns the jobs: limits times consumers."
  [size]
  (let [counts ({:full full, :quick quick} size)
        consumers ({:full [:main :virtual], :quick [:main]} size)
        limits ({:full [64 512], :quick [64]} size)]
    (for [consumer consumers, limit limits]
      (assoc counts :limit limit :consumer consumer))))

;; In the child

(defn- trivial [x]
  (inc (long x)))

(defn- sum ^long [xs]
  (reduce (fn [^long acc x] (+ acc (long x))) 0 xs))

(defn- checked [expected f]
  (fn []
    (let [actual (f)]
      (when-not (= expected actual)
        (throw (ex-info "A way gave a wrong result" {:expected expected, :actual actual}))))))

(defn- on-virtual-thread [f]
  (fn [] (.join (Thread/startVirtualThread f))))

(def ^:private consumers {:main identity, :virtual on-virtual-thread})

(defn- few
  "How many items clojure.core/pmap gets: it takes several times as long."
  [items]
  (quot items 10))

(defn- thrum-ways [limit items expected]
  [[:pmap #(sum (t/pmap limit trivial items))]
   [:upmap #(sum (t/upmap limit trivial items))]
   [:pmapv #(sum (t/pmapv limit trivial items))]
   [:prun! #(do (t/prun! limit trivial items) expected)]])

(defn- own-ways [limit items]
  [[:bare #(by-hand/bare limit trivial items)]
   [:hand #(by-hand/sliding limit trivial items)]])

(defn- core-way [items]
  [:core/pmap (checked (sum (map trivial items)) #(sum (clojure.core/pmap trivial items)))])

(defn- ways [{:keys [limit consumer items]}]
  (let [all (vec (range items))
        expected (sum (map trivial all))
        on-consumer (consumers consumer)]
    (mapv (fn [[way f]] [way (on-consumer f)])
          (conj (mapv (fn [[way f]] [way (checked expected f)])
                      (into (own-ways limit all) (thrum-ways limit all expected)))
                (core-way (subvec all 0 (few items)))))))

(defn measure
  "Returns {way [ns per item, for each round]}."
  [{:keys [items warm-up rounds] :as job}]
  (into {}
        (map (fn [[way times]]
               (let [n (if (= :core/pmap way) (few items) items)]
                 [way (mapv #(/ (double %) n) times)])))
        (rounds/run warm-up rounds (ways job))))

;; In the parent

(defn- against [runs way other]
  (stats/spread (map #(stats/paired (way %) (other %)) runs)))

(defn- row [{:keys [limit consumer items]} runs way]
  {:way way, :limit limit, :consumer consumer
   :items (if (= :core/pmap way) (few items) items)
   :ns (stats/spread (map (comp stats/median way) runs))
   :to-hand (against runs way :hand)
   :to-bare (against runs way :bare)
   :goal (when (#{:pmap :upmap :pmapv :prun!} way) (goals limit))})

(defn rows
  "Returns a row for each job and way."
  [results]
  (for [{:keys [job runs]} results
        way [:pmap :upmap :pmapv :prun! :hand :bare :core/pmap]]
    (row job runs way)))

(def ^:private names
  {:hand "hand-written loop", :bare "bare executor", :core/pmap "clojure.core/pmap"})

(def experiment
  (benchmark/experiment
    {:name :bench/overhead
     :doc "an item that does nothing, beside hand-written loops"
     :title "Overhead per item"
     :about (str "Trivial items; ratios to a hand-written sliding loop over a thread-per-task "
                 "executor whose threads have unique names and conveyed bindings (hand), and to "
                 "one without both (bare).")
     :jvm-opts ["-Xms1g" "-Xmx1g" "-XX:+UseG1GC"]
     :jobs jobs
     :measure 'thrum.lab.benchmarks.overhead.experiment/measure
     :rows rows
     :columns [{:heading "way", :left? true, :show #(names (:way %) (str "t/" (name (:way %))))}
               {:heading "consumer", :left? true, :show (comp name :consumer)}
               {:heading "limit", :show #(if (= :core/pmap (:way %)) "" (text/whole (:limit %)))}
               {:heading "items", :show (comp text/whole :items)}
               {:heading "ns per item", :show #(text/spread 0 (:ns %))}
               {:heading "x hand", :show #(text/spread 2 (:to-hand %))}
               {:heading "goal", :show #(text/decimals 2 (:goal %))}
               {:heading "x bare", :show #(text/spread 2 (:to-bare %))}]}))
