(ns thrum.lab.benchmarks.scopes.experiment
  "What a scope costs, against the same written by hand over an executor and its futures; and forms
  that stand alone: a deadline, a hedge, a permit, a periodic call."
  (:require
   [thrum.core :as t]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.by-hand :as by-hand]
   [thrum.lab.rounds :as rounds]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text])
  (:import
   (java.util.concurrent CountDownLatch Executors ScheduledExecutorService Semaphore TimeUnit)))

(set! *warn-on-reflection* true)

(def ^:private goals
  "By way and number of forks: the highest ratio of CPU time to the same by hand."
  {[:scope 0] 1.0, [:scope 2] 1.2, [:scope 8] 1.2, [:all 8] 1.0})

;; :warm-up - how many rounds are not measured: before the 20th or so the compilers' threads take
;; some of the CPU time. In the 7th an empty scope costs up to 1.5 times that by hand, later 1.1.
(def jobs
  "By size: a job for each kind of calling thread. Forks of a platform thread take ten times as long
  as those of a virtual one: fewer are timed."
  {:full (for [[consumer times hedges] [[:main {0 25000, 2 1000, 8 500} 600]
                                        [:virtual {0 25000, 2 2500, 8 1000} 1500]]]
           {:times times
            :calls {:deadline 25000, :permit 25000, :hedge hedges, :tick 20}
            :warm-up 25
            :rounds 5
            :consumer consumer})
   :quick [{:times {0 2000, 2 200, 8 200}
            :calls {:deadline 2000, :permit 2000, :hedge 200, :tick 5}
            :warm-up 1
            :rounds 3
            :consumer :main}]})

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
    [[way n] #(many (times n) (vec (range n)) f n)]))

(defn- permit [limiter]
  #(t/release! (t/acquire! limiter)))

(defn- semaphores-permit []
  (let [semaphore (Semaphore. 1 true)]
    #(do (.acquire semaphore) (.release semaphore))))

(def ^:private alone
  "By way: which of :calls says how often it is called, and a function that returns it."
  {:with-timeout [:deadline (constantly #(t/with-timeout 60000 nil))]
   :empty-scope [:deadline (constantly #(t/with-scope [_s] nil))]
   :hedge [:hedge (constantly #(t/hedge {:after-ms 60000} 1 2))]
   :race [:hedge (constantly #(t/race 1 2))]
   :limiter [:permit #(permit (t/limiter 1))]
   :rate-limiter [:permit #(permit (t/rate-limiter 1000000 {:per-ms 1, :burst 1000}))]
   :semaphore [:permit semaphores-permit]})

(defn- repeated [n f]
  (dotimes [_ n] (f)))

(defn- of-calls [calls]
  (for [[way [kind make]] alone, :let [f (make)]]
    [[way 0] #(repeated (calls kind) f)]))

;; A tick every ms

(defn- every! [n]
  (let [left (CountDownLatch. n)]
    (t/with-scope [s]
      (t/every! s {:ms 1} #(.countDown left))
      (.await left))))

(defn- scheduled [n]
  (let [left (CountDownLatch. n)]
    (with-open [^ScheduledExecutorService pool (Executors/newScheduledThreadPool 1)]
      (.scheduleAtFixedRate pool #(.countDown left) 0 1 TimeUnit/MILLISECONDS)
      (.await left)
      (.shutdownNow pool))))

(def ^:private ticking {:every! every!, :scheduled scheduled})

(defn- of-ticks [{:keys [tick]}]
  (for [[way f] ticking]
    [[way 0] #(f tick)]))

(defn- calls-of
  "Returns how many calls a way makes in a round."
  [{:keys [times calls]} [way n]]
  (cond
    (ticking way) (:tick calls)
    (alone way) (calls (first (alone way)))
    :else (times n)))

(defn measure
  "Returns {[way forks] [cost per call, see thrum.lab.rounds/costs, for each round]}."
  [{:keys [times calls warm-up rounds consumer] :as job}]
  (let [ways (mapv (fn [[way f]] [way ((rounds/callers consumer) f)])
                   (concat (of-forks times) (of-calls calls) (of-ticks calls)))]
    (rounds/costs-of-one warm-up rounds ways #(calls-of job %))))

;; In the parent

(def ^:private beside
  "By way: what it is compared with."
  {:scope :hand, :all :hand, :hedge :race, :limiter :semaphore, :rate-limiter :semaphore
   :every! :scheduled})

(defn- ratio [runs [way n :as both] figure]
  (when-some [other (beside way)]
    (rounds/times runs both [other n] figure)))

(defn- row [{:keys [consumer]} runs [way n :as both]]
  {:way way, :forks n, :consumer consumer
   :ns (stats/spread (rounds/medians runs both :ns))
   :cpu-ns (stats/spread (rounds/medians runs both :cpu-ns))
   :to-hand (ratio runs both :ns)
   :cpu-to-hand (ratio runs both :cpu-ns)
   :goal (goals both)})

(defn- arming
  "Returns the row of what a deadline adds to an empty scope."
  [{:keys [consumer]} runs]
  {:way :arming
   :forks 0
   :consumer consumer
   :ns (stats/spread
         (map -
              (rounds/medians runs [:with-timeout 0] :ns)
              (rounds/medians runs [:empty-scope 0] :ns)))})

(defn- rows [results]
  (mapcat (fn [{:keys [job runs]}]
            (concat (for [n [0 2 8], way [:scope :all :hand]] (row job runs [way n]))
                    [(row job runs [:with-timeout 0]) (arming job runs)]
                    (for [way [:hedge :race :limiter :rate-limiter :semaphore :every! :scheduled]]
                      (row job runs [way 0]))))
          results))

(defn- figures [rows]
  (for [{:keys [way forks consumer cpu-to-hand goal]} rows :when goal]
    {:figure (str ({:scope "t/with-scope", :all "t/all"} way) " of " forks ", " (name consumer)
                  " caller: CPU, x by hand")
     :value (:median cpu-to-hand)
     :at-most goal
     :cpu? true}))

(def ^:private names
  {:scope "t/with-scope"
   :all "t/all"
   :hand "executor and futures by hand"
   :with-timeout "t/with-timeout, empty"
   :arming "the same, less an empty scope"
   :hedge "t/hedge of two, the first in time"
   :race "t/race of two"
   :limiter "t/limiter, a free permit"
   :rate-limiter "t/rate-limiter, a free permit"
   :semaphore "Semaphore, fair, a free permit"
   :every! "t/every!, a tick"
   :scheduled "ScheduledExecutorService, a tick"})

(def experiment
  (benchmark/experiment
    {:name :bench/scopes
     :doc "a scope, beside executors by hand; a deadline, a hedge, a permit, a periodic call"
     :title "A scope"
     :about (str "Opened, with so many forks of no work, their values taken, and ended. By hand: "
                 "a thread-per-task executor whose threads have unique names and conveyed "
                 "bindings, its futures, and a cancel of them all when one fails. A hedge is "
                 "compared with race, a permit with Semaphore's, a tick every ms with the JDK's "
                 "pool.")
     ;; -Xmn: a round ends without a collection.
     :jvm-opts ["-Xms1g" "-Xmx1g" "-Xmn640m" "-XX:+UseG1GC"]
     :jvms 3
     :jobs jobs
     :measure `measure
     :rows rows
     :figures figures
     :columns [{:heading "way", :left? true, :show (comp names :way)}
               {:heading "caller", :left? true, :show (comp name :consumer)}
               {:heading "forks", :show (comp text/whole :forks)}
               {:heading "ns", :show #(text/spread 0 (:ns %))}
               {:heading "CPU ns", :show #(text/spread 0 (:cpu-ns %))}
               {:heading "x other", :show #(text/spread 2 (:to-hand %))}
               {:heading "CPU x other", :show #(text/spread 2 (:cpu-to-hand %))}
               {:heading "goal", :show #(text/decimals 2 (:goal %))}]}))
