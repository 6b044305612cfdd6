(ns thrum.lab.benchmarks.scopes.experiment
  "What a scope costs, against the same written by hand over an executor and its futures; and a
  deadline."
  (:require
   [thrum.core :as t]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.by-hand :as by-hand]
   [thrum.lab.rounds :as rounds]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text]))

(set! *warn-on-reflection* true)

(def ^:private goal "The highest ratio to hand." 1.2)

(def ^:private sizes
  {:full {:times 20000, :deadlines 1000000, :warm-up 3, :rounds 5, :consumers [:main :virtual]}
   :quick {:times 200, :deadlines 2000, :warm-up 1, :rounds 3, :consumers [:main]}})

(defn jobs
  "Returns a job for each kind of calling thread."
  [size]
  (let [{:keys [consumers] :as counts} (sizes size)]
    (for [consumer consumers]
      (assoc (dissoc counts :consumers) :consumer consumer))))

;; In the child

(defn- scope [n]
  (t/with-scope [s]
    (let [forks (mapv #(t/fork s %) (range n))]
      (mapv deref forks))))

(defn- all [n]
  (t/all-call (mapv #(fn [] %) (range n))))

(defn- many [times expected f n]
  (dotimes [_ times]
    (when-not (= expected (f n))
      (throw (ex-info "A way gave a wrong result" {:expected expected})))))

(defn- of-forks [times]
  (for [n [0 2 8], [way f] {:scope scope, :all all, :hand by-hand/together}]
    [[way n] #(many times (vec (range n)) f n)]))

(defn- of-deadlines [times]
  [[[:with-timeout 0] #(dotimes [_ times] (t/with-timeout 60000 nil))]
   [[:empty-scope 0] #(dotimes [_ times] (t/with-scope [_s] nil))]])

(defn- on-virtual-thread [f]
  (fn [] (.join (Thread/startVirtualThread f))))

(def ^:private consumers {:main identity, :virtual on-virtual-thread})

(defn measure
  "Returns {[way forks] [ns per call, for each round]}."
  [{:keys [times deadlines warm-up rounds consumer]}]
  (let [calls #(if (#{:with-timeout :empty-scope} (first %)) deadlines times)
        ways (mapv (fn [[way f]] [way ((consumers consumer) f)])
                   (concat (of-forks times) (of-deadlines deadlines)))]
    (into {}
          (map (fn [[way nanos]] [way (mapv #(/ (double %) (calls way)) nanos)]))
          (rounds/run warm-up rounds ways))))

;; In the parent

(defn- row [{:keys [consumer]} runs [way n]]
  {:way way, :forks n, :consumer consumer
   :ns (stats/spread (map #(stats/median (% [way n])) runs))
   :to-hand (when (#{:scope :all} way)
              (stats/spread (map #(stats/paired (% [way n]) (% [:hand n])) runs)))
   :goal (when (#{:scope :all} way) goal)})

(defn- arming
  "Returns the row of what a deadline adds to an empty scope."
  [{:keys [consumer]} runs]
  {:way :arming
   :forks 0
   :consumer consumer
   :ns (stats/spread
         (map #(- (stats/median (% [:with-timeout 0])) (stats/median (% [:empty-scope 0]))) runs))})

(defn rows
  "Returns a row for each job, way and number of forks."
  [results]
  (mapcat (fn [{:keys [job runs]}]
            (concat (for [n [0 2 8], way [:scope :all :hand]] (row job runs [way n]))
                    [(row job runs [:with-timeout 0]) (arming job runs)]))
          results))

(def ^:private names
  {:scope "t/with-scope"
   :all "t/all"
   :hand "executor and futures by hand"
   :with-timeout "t/with-timeout, empty"
   :arming "the same, less an empty scope"})

(def experiment
  (benchmark/experiment
    {:name :bench/scopes
     :doc "a scope, beside executors by hand; a deadline"
     :title "A scope"
     :about (str "Opened, with so many forks of no work, their values taken, and ended. By hand: "
                 "a thread-per-task executor whose threads have unique names and conveyed "
                 "bindings, its futures, and a cancel of them all when one fails.")
     :jvm-opts ["-Xms1g" "-Xmx1g" "-XX:+UseG1GC"]
     :jobs jobs
     :measure 'thrum.lab.benchmarks.scopes.experiment/measure
     :rows rows
     :columns [{:heading "way", :left? true, :show (comp names :way)}
               {:heading "caller", :left? true, :show (comp name :consumer)}
               {:heading "forks", :show (comp text/whole :forks)}
               {:heading "ns", :show #(text/spread 0 (:ns %))}
               {:heading "x hand", :show #(text/spread 2 (:to-hand %))}
               {:heading "goal", :show #(text/decimals 2 (:goal %))}]}))
