(ns thrum.lab.benchmarks.cancel.experiment
  "How long it takes to cancel parked tasks: from the cancel until all of them have ended."
  (:require
   [thrum.core :as t]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.by-hand :as by-hand]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text])
  (:import
   (clojure.lang ExceptionInfo)
   (java.util.concurrent CountDownLatch ExecutorService TimeUnit)
   (java.util.concurrent.atomic AtomicLong LongAdder)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(def ^:private jobs
  "All sizes in one JVM, since their ratio is what counts."
  {:full [{:sizes [10000 100000 300000], :warm-up 2, :rounds 2}]
   :quick [{:sizes [500 1500], :warm-up 1, :rounds 1}]})

;; In the child. Every task parks on its own: a shared latch would itself be quadratic to interrupt.

(defn- park-until-interrupted []
  (LockSupport/park)
  (if (Thread/interrupted)
    (throw (InterruptedException.))
    (recur)))

(defn- waiting [^LongAdder parked]
  (fn [_]
    (.increment parked)
    (park-until-interrupted)))

(defn- await-parked
  "Waits until n tasks have counted themselves and have had the time to park."
  [^LongAdder parked ^long n]
  (while (< (.sum parked) n)
    (Thread/sleep 5))
  (Thread/sleep 50))

(defn- since ^long [^AtomicLong start]
  (- (System/nanoTime) (.get start)))

(defn- failing-at
  "Returns a function that waits, but for one item: that one fails when n others have parked, and
  notes when."
  [index n ^AtomicLong start]
  (let [parked (LongAdder.), wait (waiting parked)]
    (fn [i]
      (if (= index i)
        (do (await-parked parked n)
            (.set start (System/nanoTime))
            (throw (ex-info "The failure that cancels the others" {:type ::stop})))
        (wait i)))))

(defn- until-thrown
  "Calls f, which must throw our failure; returns the ns from the failure until then."
  [start f]
  (try
    (f)
    (throw (IllegalStateException. "Nothing was thrown"))
    (catch ExceptionInfo e
      (let [ns (since start)]
        (when-not (= ::stop (:type (ex-data e))) (throw e))
        ns))))

(defn- pmapv-failing [n]
  (let [start (AtomicLong.)]
    (until-thrown start #(t/pmapv (inc n) (failing-at n n start) (range (inc n))))))

(defn- pmap-failing
  [n]
  (let [start (AtomicLong.)
        all (inc n)]
    (until-thrown start
                  #(first (t/pmap {:limit all, :window all} (failing-at 0 n start) (range all))))))

(defn- interrupted! [^CountDownLatch seen f]
  (try
    (f)
    (catch InterruptedException _ (.countDown seen))))

(defn- pmapv-interrupted
  [n]
  (let [parked (LongAdder.)
        seen (CountDownLatch. 1)
        consumer (Thread. ^Runnable
                          #(interrupted! seen (fn [] (t/pmapv n (waiting parked) (range n)))))]
    (.start consumer)
    (await-parked parked n)
    (let [start (AtomicLong. (System/nanoTime))]
      (.interrupt consumer)
      (.await seen)
      (let [ns (since start)]
        (.join consumer)
        ns))))

(defn- scope-cancelled [n]
  (let [parked (LongAdder.), wait (waiting parked), start (AtomicLong.)]
    (t/with-scope [s]
      (dotimes [i n] (t/fork s (wait i)))
      (await-parked parked n)
      (.set start (System/nanoTime))
      (t/cancel! s)
      ;; The cancel has interrupted this thread too, which does not wait.
      nil)
    (since start)))

(defn- executor-shut-down [n]
  (let [parked (LongAdder.), ^ExecutorService executor (by-hand/named-executor "hand-")]
    (run! (by-hand/conveying executor (waiting parked)) (range n))
    (await-parked parked n)
    (let [start (AtomicLong. (System/nanoTime))]
      (.shutdownNow executor)
      (.awaitTermination executor 10 TimeUnit/MINUTES)
      (since start))))

(def ^:private ways
  {:pmapv-failing pmapv-failing, :pmap-failing pmap-failing
   :pmapv-interrupted pmapv-interrupted, :scope scope-cancelled, :executor executor-shut-down})

(defn- timed [[way n]]
  (System/gc)
  {:way way, :tasks n, :ns ((ways way) n)})

(defn- turns [sizes rounds]
  (for [_ (range rounds), n sizes, way (keys ways)]
    [way n]))

(defn- by-way-and-size [samples]
  (reduce (fn [times {:keys [way tasks ns]}] (update-in times [way tasks] (fnil conj []) ns))
          {}
          samples))

(defn measure
  "Returns {way {tasks [ns, for each round]}}."
  [{:keys [sizes warm-up rounds]}]
  (run! timed (turns (take 1 sizes) warm-up))
  (by-way-and-size (mapv timed (turns sizes rounds))))

;; In the parent

(defn- growth
  "Returns how many times as long the largest size takes as the one before it."
  [sizes times]
  (let [[smaller larger] (take-last 2 sizes)]
    (/ (double (stats/median (times larger))) (stats/median (times smaller)))))

(defn- row
  [sizes runs way]
  (let [[smaller larger] (take-last 2 sizes)]
    {:way way
     :ms (into {}
               (map
                 (fn [n] [n (stats/spread (map #(/ (stats/median (get-in % [way n])) 1e6) runs))]))
               sizes)
     :growth (stats/spread (map #(growth sizes (way %)) runs))
     :linear (/ (double larger) smaller)}))

(defn- rows [[{:keys [job runs]}]]
  (map #(row (:sizes job) runs %)
       [:pmapv-failing :pmapv-interrupted :pmap-failing :scope :executor]))

(defn- figures [rows]
  (for [{:keys [way ms]} rows
        :let [[n spread] (last (sort-by key ms))]
        :when (not= :executor way)]
    {:figure (str "cancel of " n ", " (name way) ": ms"), :value (:median spread), :at-most 1200}))

(def ^:private names
  {:pmapv-failing "t/pmapv, one fails"
   :pmapv-interrupted "t/pmapv, its caller is interrupted"
   :pmap-failing "t/pmap, the first fails"
   :scope "t/with-scope, cancelled"
   :executor "executor's shutdownNow, awaitTermination"})

(defn- columns
  "Returns the columns for the sizes that were run."
  [rows]
  (concat [{:heading "way", :left? true, :show (comp names :way)}]
          (for [n (sort (keys (:ms (first rows))))]
            {:heading (str (text/whole n) ", ms"), :show #(text/spread 0 (get-in % [:ms n]))})
          [{:heading "last / one before", :show #(text/spread 2 (:growth %))}
           {:heading "linear", :show #(text/decimals 2 (:linear %))}]))

(def experiment
  (benchmark/experiment
    {:name :bench/cancel
     :doc "how long it takes to cancel parked tasks"
     :title "Time to cancel"
     :about (str "Parked tasks, each on its own; from the cancel until all of them have ended. "
                 "Goal: linear, about a second for 300 000.")
     ;; -Xmn: no collection, of stacks that are alive, falls into a cancel.
     :jvm-opts ["-Xms4g" "-Xmx4g" "-Xmn3g" "-XX:+UseG1GC"]
     :jobs jobs
     :measure `measure
     :rows rows
     :figures figures
     :jvms 1
     :columns columns}))
