(ns thrum.lab.benchmarks.pipelines.experiment
  "What an item costs that goes through a pipeline and is not waited for, and what a take and a put
  cost, against core.async's own."
  (:require
   [clojure.core.async :as async]
   [thrum.async :as a]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.rounds :as rounds]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private n "How many at once." 64)

(def ^:private jobs
  {:full [{:items 20000, :warm-up 2, :rounds 5}], :quick [{:items 2000, :warm-up 1, :rounds 3}]})

;; In the child

(defn- sum [channel]
  (loop [sum 0]
    (if-some [v (async/<!! channel)]
      (recur (+ sum (long v)))
      sum)))

(defn- through [start items]
  (let [to (async/chan n)]
    (start to (async/to-chan! items))
    (sum to)))

(defn- across
  "Moves the items from a virtual thread to this one, by the given put and take."
  [channel put! take! items]
  (let [putter (Thread/startVirtualThread #(do
                                             (run! (fn [item] (put! channel item)) items)
                                             (async/close! channel)))]
    (loop [sum 0]
      (if-some [v (take! channel)]
        (recur (+ sum (long v)))
        (do
          (Thread/.join putter)
          sum)))))

(defn- pipelines
  [items]
  {:core/pipeline-blocking #(through (fn [to from] (async/pipeline-blocking n to (map inc) from))
                                     items)
   :pipeline-blocking #(through (fn [to from] (a/pipeline-blocking n to (map inc) from)) items)
   :pipeline-fn #(through (fn [to from] (a/pipeline-fn n to inc from)) items)
   :upipeline #(through (fn [to from] (a/upipeline n to (map inc) from)) items)})

(defn- transfers [items]
  {:core/unbuffered #(across (async/chan) async/>!! async/<!! items)
   :unbuffered #(across (async/chan) a/>!! a/<!! items)
   :core/buffered #(across (async/chan 1024) async/>!! async/<!! items)
   :buffered #(across (async/chan 1024) a/>!! a/<!! items)})

(defn measure
  "Returns {way [cost of an item, see thrum.lab.rounds/costs, for each round]}."
  [{:keys [items warm-up rounds]}]
  (let [all (vec (range items)), total (reduce + all)]
    (rounds/costs-of-one warm-up rounds
      (concat (for [[way f] (pipelines all)] [way (rounds/checked (+ total items) f)])
              (for [[way f] (transfers all)] [way (rounds/checked total f)]))
      (constantly items))))

;; In the parent

(def ^:private ways
  "In the order of the table: name, what it is compared with, and the highest ratio that is wanted."
  [[:core/pipeline-blocking "core.async's pipeline-blocking"]
   [:pipeline-blocking "a/pipeline-blocking" :core/pipeline-blocking 1.0]
   [:pipeline-fn "a/pipeline-fn" :core/pipeline-blocking 1.0]
   [:upipeline "a/upipeline" :core/pipeline-blocking 1.0]
   [:core/unbuffered "core.async's >!! and <!!, no buffer"]
   [:unbuffered "a/>!! and a/<!!, no buffer" :core/unbuffered]
   [:core/buffered "core.async's >!! and <!!, a buffer of 1 024"]
   [:buffered "a/>!! and a/<!!, a buffer of 1 024" :core/buffered]])

(defn- rows [[{:keys [runs]}]]
  (for [[way title other goal] ways]
    {:title title
     :goal goal
     :ns (stats/spread (rounds/medians runs way :ns))
     :to-core (when other (rounds/times runs way other :ns))}))

(def experiment
  (benchmark/experiment
    {:name :bench/pipelines
     :doc "pipelines, takes and puts, beside core.async's own"
     :title "Pipelines, takes and puts"
     :about (str "Trivial items from channel to channel, 64 at once, taken by core.async's <!! "
                 "on the main thread; and items from a virtual thread to the main one. Ratios to "
                 "core.async's own.")
     :jvm-opts ["-Xms1g" "-Xmx1g" "-XX:+UseG1GC"]
     :jobs jobs
     :jvms 1
     :measure `measure
     :rows rows
     :columns [{:heading "way", :left? true, :show :title}
               {:heading "ns per item", :show #(text/spread 0 (:ns %))}
               {:heading "x core.async's", :show #(if (:to-core %) (text/spread 2 (:to-core %)) "")}
               {:heading "goal", :show #(text/decimals 2 (:goal %))}]}))
