(ns thrum.lab.benchmarks.overload.experiment
  "A backend whose capacity halves and comes back, under three times the load that it can take: how
  many clients are answered in time, with which limit in front of it?

  Load comes at an even pace, also while no client is answered. A client waits for a time and then
  leaves. The backend does not notice that, and works for it all the same."
  (:require
   [thrum.adaptive :as adaptive]
   [thrum.core :as t]
   [thrum.lab.benchmark :as benchmark]
   [thrum.lab.measure :as measure]
   [thrum.lab.stats :as stats]
   [thrum.lab.text :as text])
  (:import
   (clojure.lang ExceptionInfo)
   (java.util.concurrent ConcurrentLinkedQueue Semaphore)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(def ^:private slots "How many requests the backend serves at once, at full capacity." 16)

(def ^:private service-ms "How long it takes for one." 20)

(def ^:private patience-ms "How long a client waits." 200)

(def ^:private times-capacity "How much more comes than the backend can take." 3)

(def ^:private window-ms "What the figures over time are taken of." 1000)

(def ^:private settling
  "How many windows at the beginning of a phase do not count in its figures."
  2)

(def ^:private jobs {:full [{:phase-ms 8000}], :quick [{:phase-ms 200}]})

;; In the child

(def ^:private ways
  "Functions that make a limiter. A request finds a permit at once or is refused: what waits in
  front of the limit costs clients the time that it saves the backend."
  (array-map
    :none (constantly nil)
    :fixed-16 #(t/limiter 16 {:queue 0})
    :fixed-32 #(t/limiter 32 {:queue 0})
    :fixed-64 #(t/limiter 64 {:queue 0})
    :fixed-128 #(t/limiter 128 {:queue 0})
    :vegas #(t/limiter {:queue 0, :adaptive (adaptive/vegas)})
    :gradient2 #(t/limiter {:queue 0, :adaptive (adaptive/gradient2)})))

(defn- serve! [^Semaphore backend]
  (.acquire backend)
  (try
    (Thread/sleep (long service-ms))
    (finally (.release backend))))

(defn- refused? [e]
  (= :thrum/rejected (t/error-type e)))

(defn- request!
  "Asks the backend, within the limit; adds [ms of its end, ms that it took] to answers."
  [{:keys [limiter backend ^ConcurrentLinkedQueue answers start]}]
  (let [asked (measure/now-ms)]
    (try
      (if limiter (t/with-permit limiter (serve! backend)) (serve! backend))
      (let [now (measure/now-ms)]
        (.add answers [(- now start) (- now asked)]))
      (catch ExceptionInfo e
        (when-not (refused? e) (throw e)))
      ;; The run is over.
      (catch InterruptedException _))))

(def ^:private gap-ns
  (quot (* 1000000 (long service-ms)) (* (long times-capacity) (long slots))))

(defn- press!
  "Calls (begin!) at an even pace for so many ms."
  [phase-ms begin!]
  (let [start (System/nanoTime), gap (long gap-ns)]
    (dotimes [i (quot (* 1000000 (long phase-ms)) gap)]
      (let [wait (- (+ start (* i gap)) (System/nanoTime))]
        (when (pos? wait) (LockSupport/parkNanos wait))
        (begin!)))))

(defn- answers-of
  "Returns the answers of three phases: the capacity is whole, halved, and whole again."
  [make-limiter phase-ms]
  (let [half (quot (long slots) 2)
        backend (Semaphore. slots true)
        answers (ConcurrentLinkedQueue.)
        run {:limiter (make-limiter), :backend backend, :answers answers
             :start (measure/now-ms)}]
    (t/with-scope [s]
      (let [begin! #(t/fork s (request! run))]
        (press! phase-ms begin!)
        ;; It waits behind those who wait already, as a backend that is being repaired would.
        (t/fork s (.acquire backend half))
        (press! phase-ms begin!)
        (.release backend half)
        (press! phase-ms begin!))
      (t/cancel! s))
    (vec answers)))

(defn- window
  "Returns {:good, how many a second were answered in time, :p99-ms} of these answers."
  [answers]
  (let [times (map second answers)]
    {:good (/ (* 1000.0 (count (filter #(<= % patience-ms) times))) window-ms)
     :p99-ms (stats/p99 times)}))

(defn- over-time [answers phase-ms]
  (let [by-window (group-by #(long (quot (first %) window-ms)) answers)]
    (mapv #(window (by-window %)) (range (max 1 (quot (* 3 phase-ms) window-ms))))))

(defn measure
  "Returns {way [{:good, answers in time per second, :p99-ms} of each second]}."
  [{:keys [phase-ms]}]
  (answers-of (ways :fixed-16) (quot phase-ms 8))
  (update-vals ways #(over-time (answers-of % phase-ms) phase-ms)))

;; In the parent

(defn- phases
  "Returns the three phases' windows; each has as many."
  [windows]
  (let [n (max 1 (quot (count windows) 3))]
    (take 3 (concat (partition-all n windows) (repeat [])))))

(defn- mean [values]
  (if (seq values) (/ (reduce + values) (double (count values))) 0.0))

(defn- settled [windows]
  (if (< settling (count windows)) (drop settling windows) windows))

(defn- back-s
  "Returns after how many seconds of the last phase as much is answered as in the first, nearly; nil
  for never."
  [[before _ after]]
  (let [enough (* 0.9 (mean (map :good (settled before))))]
    (when-some [i (first (keep-indexed #(when (<= 1 enough (:good %2)) %1) after))]
      (inc i))))

(defn- row [runs way]
  (let [of-runs (fn [f] (stats/median (keep #(f (phases (way %))) runs)))
        good (fn [i] (of-runs #(mean (map :good (settled (nth % i))))))
        p99 (fn [i] (of-runs #(reduce max 0 (keep :p99-ms (settled (nth % i))))))]
    {:way way
     :good (mapv good (range 3))
     :p99-ms (mapv p99 (range 3))
     :back-s (of-runs back-s)}))

(defn rows
  "Returns a row for each way."
  [[{:keys [runs]}]]
  (mapv #(row runs %) (keys ways)))

(def ^:private names
  {:none "no limit"
   :fixed-16 "16"
   :fixed-32 "32"
   :fixed-64 "64"
   :fixed-128 "128, the most that full capacity answers in time"
   :vegas "adaptive/vegas"
   :gradient2 "adaptive/gradient2"})

(def ^:private columns
  (concat [{:heading "limit", :left? true, :show (comp names :way)}]
          (for [[i phase] (map-indexed vector ["whole" "half" "whole again"])
                [heading k] [["in time/s, " :good] ["p99 ms, " :p99-ms]]]
            {:heading (str heading phase), :show #(text/decimals 0 (nth (k %) i))})
          [{:heading "back after s", :show #(some->> (:back-s %) (text/decimals 0))}]))

(defn- best-fixed
  "Returns the most that one of the limits that hold for both capacities answers in a phase."
  [rows i]
  (reduce max (map #(nth (:good %) i) (filter (comp #{:fixed-16 :fixed-32 :fixed-64} :way) rows))))

(defn figures
  "Returns the figures of the table's rows."
  [rows]
  (for [way [:vegas :gradient2]
        :let [row (first (filter (comp #{way} :way) rows))]
        figure (concat
                 (for [[i phase] [[0 "whole"] [1 "halved"]]
                       :let [best (best-fixed rows i)]
                       :when (pos? best)]
                   {:figure (str (names way) ": in time, x the best fixed limit, capacity " phase)
                    :value (/ (nth (:good row) i) best)
                    :at-least 0.9})
                 [{:figure (str (names way) ": s until it is back")
                   :value (or (:back-s row) ##Inf)
                   :at-most 5}])]
    figure))

(def experiment
  (benchmark/experiment
    {:name :bench/overload
     :doc "a backend at three times its load, whose capacity halves, behind limits of several kinds"
     :title "Overload"
     :about (str "A backend serves 16 requests at once, 20 ms each; for a while only 8. 2 400 come "
                 "each second, and each client waits for 200 ms. How many are answered in time, "
                 "and the p99 of all answers, from the third second of each phase of 8 s; after "
                 "how many seconds of whole capacity is it as before? Goal: an adaptive limit "
                 "reaches 0.9 of the best fixed one at either capacity, and is back after 5 s.")
     :jvm-opts ["-Xms1g" "-Xmx1g"]
     :jvms 1
     :only-by-name? true
     :jobs jobs
     :measure `measure
     :rows rows
     :columns columns
     :figures figures}))
