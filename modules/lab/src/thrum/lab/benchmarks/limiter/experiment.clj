(ns thrum.lab.benchmarks.limiter.experiment
  "Many who wait for few permits: how fast and how evenly they are handed over, and how long a
  cancel of all who wait takes. Beside it java.util.concurrent.Semaphore."
  (:require
   [clojure.datafy :as datafy]
   [thrum.core :as t]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.by-hand :as by-hand]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text])
  (:import
   (java.util.concurrent CountDownLatch ExecutorService Semaphore TimeUnit)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(def ^:private permits 8)

(def ^:private jobs
  {:full [{:waiters 10000, :grants 200000, :cancelled [10000 20000], :rounds 3}]
   :quick [{:waiters 100, :grants 2000, :cancelled [100 200], :rounds 1}]})

;; In the child. A way is a map: :enter and :leave around the work, :waiting says how many wait,
;; :hold takes all permits and returns a function that gives them back.

(defn- way-of [limiter acquire!]
  {:enter #(acquire! limiter)
   :leave t/release!
   :waiting #(:waiting (datafy/datafy limiter))
   :hold #(let [held (t/pmapv permits (fn [_] (acquire! limiter)) (range permits))]
            (fn [] (run! t/release! held)))})

(defn- limiter-way []
  (way-of (t/limiter permits) t/acquire!))

(defn- weighted-way []
  (way-of (t/limiter (* 2 permits)) #(t/acquire! % 2)))

(defn- adaptive-way []
  (way-of (t/limiter permits {:adaptive (constantly permits)}) t/acquire!))

(defn- semaphore-way [fair]
  (let [semaphore (Semaphore. permits fair)]
    {:enter #(.acquire semaphore)
     :leave (fn [_] (.release semaphore))
     :waiting #(.getQueueLength semaphore)
     :hold #(do (.acquire semaphore permits)
                (fn [] (.release semaphore permits)))}))

(def ^:private ways
  {:limiter limiter-way
   :weighted weighted-way
   :adaptive adaptive-way
   :fair #(semaphore-way true)
   :unfair #(semaphore-way false)})

(defn- await-waiting [{:keys [waiting]} n]
  (while (< (long (waiting)) (long n))
    (Thread/sleep 5)))

(defn- take-part
  "Enters and leaves until there have been as many grants as wanted; counts its own."
  [{:keys [enter leave]} ^longs counts i ^AtomicLong granted wanted]
  (while (< (.get granted) (long wanted))
    (let [permit (enter)]
      (aset counts (int i) (inc (aget counts (int i))))
      (.incrementAndGet granted)
      (leave permit))))

(defn- evenness
  "Returns Jain's index of the counts: 1 when all are equal, 1/n when one has all."
  [counts]
  (let [sum (double (reduce + counts))]
    (/ (* sum sum) (* (count counts) (double (reduce + (map #(* % %) counts)))))))

(defn- handed-over
  [make {:keys [waiters grants]}]
  (let [{:keys [hold], :as way} (make)
        give-back (hold)
        counts (long-array waiters)
        granted (AtomicLong.)
        ended (CountDownLatch. waiters)]
    (dotimes [i waiters]
      (Thread/startVirtualThread #(try
                                    (take-part way counts i granted grants)
                                    (finally
                                      (.countDown ended)))))
    (await-waiting way waiters)
    (let [start (System/nanoTime)]
      (give-back)
      (.await ended)
      {:ns (/ (double (- (System/nanoTime) start)) (.get granted))
       :evenness (evenness (vec counts))})))

(defn- limiter-cancelled [n]
  (let [{:keys [hold enter] :as way} (limiter-way)
        give-back (hold), start (AtomicLong.)]
    (t/with-scope [s]
      (dotimes [_ n] (t/fork s (enter)))
      (await-waiting way n)
      (.set start (System/nanoTime))
      (t/cancel! s)
      nil)
    (let [ns (- (System/nanoTime) (.get start))]
      (give-back)
      ns)))

(defn- semaphore-cancelled [n]
  (let [{:keys [hold enter] :as way} (semaphore-way true)
        ^ExecutorService executor (by-hand/named-executor "hand-")]
    (hold)
    (dotimes [_ n] (.submit executor ^Callable enter))
    (await-waiting way n)
    (let [start (System/nanoTime)]
      (.shutdownNow executor)
      (.awaitTermination executor 10 TimeUnit/MINUTES)
      (- (System/nanoTime) start))))

(defn- several [rounds f]
  (f)
  (vec (repeatedly rounds f)))

(defn measure
  "Returns {:handed-over {way [{:ns per grant, :evenness} ...]}, :cancelled {way {waiters [ns
  ...]}}}."
  [{:keys [cancelled rounds], :as job}]
  {:handed-over
   (into {} (map (fn [[way make]] [way (several rounds #(handed-over make job))])) ways)
   :cancelled {:limiter
               (into {} (map (fn [n] [n (several rounds #(limiter-cancelled n))])) cancelled)
               :fair (into {} (map (fn [n] [n [(semaphore-cancelled n)]])) cancelled)}})

;; In the parent

(defn- figure-of [runs path f]
  (stats/spread (map #(stats/median (map f (get-in % path))) runs)))

(defn- row
  [{:keys [cancelled]} runs way]
  {:way way
   :ns (figure-of runs [:handed-over way] :ns)
   :evenness (figure-of runs [:handed-over way] :evenness)
   :cancel-ms (when (#{:limiter :fair} way)
                (into {}
                      (map (fn [n] [n (figure-of runs [:cancelled way n] #(/ (double %) 1e6))]))
                      cancelled))})

(defn- rows [[{:keys [job runs]}]]
  (map #(row job runs %) [:limiter :weighted :adaptive :fair :unfair]))

(def ^:private names
  {:limiter "t/limiter"
   :weighted "t/limiter, 2 of 16 permits each"
   :adaptive "t/limiter, adaptive"
   :fair "Semaphore, fair"
   :unfair "Semaphore, unfair"})

(defn- columns
  "Returns the columns for the sizes that were run."
  [rows]
  (concat [{:heading "way", :left? true, :show (comp names :way)}
           {:heading "ns per grant", :show #(text/spread 0 (:ns %))}
           {:heading "Jain's index", :show #(text/spread 3 (:evenness %))}]
          (for [n (sort (keys (:cancel-ms (first rows))))]
            {:heading (str "cancel of " (text/whole n) ", ms")
             :show #(text/spread 0 (get-in % [:cancel-ms n]))})))

(def experiment
  (benchmark/experiment
    {:name :bench/limiter
     :doc "many tasks that wait for few permits, beside Semaphore"
     :title "A limiter"
     :about (str "8 permits. Handed over among 10 000 virtual threads that come again at once, "
                 "until 200 000 have been granted; and a cancel of so many who wait. Goal: 40 "
                 "000 below 500 ms, and linear.")
     :jvm-opts ["-Xms2g" "-Xmx2g" "-XX:+UseG1GC"]
     :jobs jobs
     :jvms 1
     :measure `measure
     :rows rows
     :columns columns}))
