(ns thrum.lab.channels.pipeline
  "The pipelines of core.async and of thrum.async, as one: how long they take, how many items they
  have in work at once, and what is left of them when their values are no longer taken."
  (:require
   [clojure.core.async :as core]
   [thrum.async :as a]
   [thrum.lab.measure :as measure]
   [thrum.lab.threads :as threads])
  (:import
   (java.lang.management ManagementFactory)
   (java.time Duration)))

(set! *warn-on-reflection* true)

(def ^:private watch-ms "How long after it was abandoned a pipeline is looked at." 200)
(def ^:private taken-before "How many values are taken before a pipeline is abandoned." 10)
(def ^:private warm-up-items "How many items a pipeline is warmed up with." 1000)

(def ^:private kinds
  "By id: starts the pipeline that calls f on what comes from a channel, n at once."
  {:core-pipeline (fn [n to f from] (core/pipeline n to (map f) from))
   :core-pipeline-blocking (fn [n to f from] (core/pipeline-blocking n to (map f) from))
   :core-pipeline-async (fn [n to f from]
                          (core/pipeline-async
                            n
                            to
                            (fn [x ch] (core/io-thread (core/>!! ch (f x)) (core/close! ch)))
                            from))
   :thrum-pipeline-blocking (fn [n to f from] (a/pipeline-blocking n to (map f) from))
   :thrum-pipeline-fn (fn [n to f from] (a/pipeline-fn n to f from))
   :thrum-upipeline (fn [n to f from] (a/upipeline n to (map f) from))})

(defn- count-values
  "Takes all values of a channel and returns how many there were."
  [ch]
  (loop [n 0]
    (if (some? (core/<!! ch)) (recur (inc n)) n)))

(defn way
  "Returns a function of f and coll that calls f on every item by way of a pipeline of this kind, n
  at once, and returns how many values came out."
  [kind n]
  (fn [f coll]
    (let [to (core/chan)]
      ((kinds kind) n to f (core/to-chan! coll))
      (count-values to))))

;; What is left of a pipeline that was abandoned

(defn- start-source!
  "Puts 0, 1, 2 … into ch from a thread of its own; returns how many were taken, as an atom."
  [ch]
  (let [taken (atom 0)]
    (.start (.name (Thread/ofVirtual) "lab-source")
            #(while (core/>!! ch @taken)
               (swap! taken inc)))
    taken))

(defn- left
  "Returns by how many threads there are more than before."
  [before]
  (update-vals (merge-with - (threads/busy) before) #(max 0 %)))

(defn- abandon
  "Starts a pipeline on a source without end, takes a few values, calls (abandon! to), and returns
  what is so some time after that: {:platform n :virtual n}, threads that are left, and :taken, how
  many items it took from its source meanwhile. Leaves the source behind: for a JVM that is about to
  end."
  [kind n f abandon!]
  (let [from (core/chan), to (core/chan), taken (start-source! from), threads (threads/busy)]
    ((kinds kind) n to f from)
    (dotimes [_ taken-before]
      (core/<!! to))
    (abandon! to)
    (let [then @taken]
      (Thread/sleep (long watch-ms))
      (assoc (left threads) :taken (- @taken then)))))

;; Samples

(defn- waiter
  "Returns a function that waits, as for a database, and returns an outcome."
  [wait-ms]
  (let [wait (Duration/ofMillis wait-ms)]
    (fn [_]
      (Thread/sleep wait)
      {})))

(defn- timed
  [kind n wait-ms items]
  (let [values (volatile! nil)
        sample (measure/sample (fn [f coll] (vreset! values ((way kind n) f coll)))
                               (waiter wait-ms)
                               (vec (range items))
                               (fn []))]
    (when-let [error (:error sample)] (throw (ex-info (:message error) {:error error})))
    (when-not (= items @values)
      (throw (ex-info (str "Of " items " items " @values " came out")
                      {:items items, :values @values})))
    (select-keys sample [:ms :peak :curve])))

(defn sample
  "Passes items, each of which waits for wait-ms, through a pipeline of a kind, n at once, and
  returns the sample: :ms :peak :curve as of thrum.lab.measure/sample; :threads, the most platform
  threads that this JVM has had; and what is left of one that was abandoned (see abandon): :unread,
  when a few values were taken and no more, and :closed, when the channel for its values was closed
  then."
  [{:keys [kind n wait-ms items]}]
  (timed kind n wait-ms warm-up-items)
  (let [sample (timed kind n wait-ms items)
        threads (.getPeakThreadCount (ManagementFactory/getThreadMXBean))
        f (waiter wait-ms)]
    (assoc sample
           :threads threads
           :unread (abandon kind n f (fn [_]))
           :closed (abandon kind n f core/close!))))
