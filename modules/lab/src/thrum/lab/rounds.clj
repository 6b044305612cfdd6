(ns thrum.lab.rounds
  "Takes what several ways of doing the same work cost, in turns, in one JVM. A way is
  [name thunk]."
  (:require
   [thrum.lab.cpu-time :as cpu-time])
  (:import
   (com.sun.management ThreadMXBean)
   (java.lang.management ManagementFactory)))

(set! *warn-on-reflection* true)

(def ^:private ^ThreadMXBean threads (ManagementFactory/getThreadMXBean))

(defn cost
  "Returns what f costs from a heap without garbage: :ns of wall time, :cpu-ns that all threads of
  the process took, :bytes that they allocated."
  [f]
  (System/gc)
  (let [bytes (.getTotalThreadAllocatedBytes threads)
        cpu-ns (cpu-time/process-ns)
        ns (System/nanoTime)]
    (f)
    {:ns (- (System/nanoTime) ns)
     :cpu-ns (- (cpu-time/process-ns) cpu-ns)
     :bytes (- (.getTotalThreadAllocatedBytes threads) bytes)}))

(defn- rotated [n xs]
  (let [[before after] (split-at (mod n (count xs)) xs)]
    (concat after before)))

(defn costs
  "Runs every way once in each round; each round begins with another way, and the first `warm-up`
  rounds are not measured. Returns {name [cost, for each measured round]}."
  [warm-up measured ways]
  (let [rounds (map #(rotated % ways) (range (+ warm-up measured)))
        [before counted] (split-at warm-up rounds)]
    (run! (fn [[_ f]] (f)) (apply concat before))
    (reduce (fn [costs [way f]] (update costs way (fnil conj []) (cost f)))
            {}
            (apply concat counted))))

(defn run
  "As costs, of wall time alone: returns {name [ns, for each measured round]}."
  [warm-up measured ways]
  (update-vals (costs warm-up measured ways) #(mapv :ns %)))
