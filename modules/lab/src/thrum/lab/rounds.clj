(ns thrum.lab.rounds
  "Takes what several ways of doing the same work cost, in turns, in one JVM. A way is
  [name thunk]."
  (:require
   [thrum.lab.cpu-time :as cpu-time]
   [thrum.lab.stats :as stats])
  (:import
   (com.sun.management ThreadMXBean)
   (java.lang.management ManagementFactory)))

(set! *warn-on-reflection* true)

(def ^:private ^ThreadMXBean threads (ManagementFactory/getThreadMXBean))

(defn- cost
  "Returns what f costs: :ns of wall time, :cpu-ns that all threads of the process took, :bytes that
  they allocated."
  [f]
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

(defn- measured
  "Returns the costs of the rounds before, and of one more that begins with a heap without garbage."
  [costs ways]
  (System/gc)
  (reduce (fn [costs [way f]] (update costs way (fnil conj []) (cost f))) costs ways))

(defn costs
  "Runs every way once in each of the rounds; each begins with another way, and the first `warm-up`
  ones are not measured. Returns {name [cost, for each measured round]}; a cost is {:ns :cpu-ns
  :bytes}: of wall time, of CPU time of all threads of the process, allocated by them."
  [warm-up rounds ways]
  (let [[before counted] (split-at warm-up (map #(rotated % ways) (range (+ warm-up rounds))))]
    (run! (fn [[_ f]] (f)) (apply concat before))
    (reduce measured {} counted)))

(defn costs-of-one
  "As costs, of one of the items of a round, of which a way has (items name)."
  [warm-up measured ways items]
  (into {}
        (for [[way costs] (costs warm-up measured ways), :let [n (double (items way))]]
          [way (mapv (fn [cost] (update-vals cost #(/ % n))) costs)])))

;; Ways

(defn checked
  "Returns f, which throws where its result is not the one expected."
  [expected f]
  (fn []
    (let [actual (f)]
      (when-not (= expected actual)
        (throw (ex-info "A way gave a wrong result" {:expected expected, :actual actual}))))))

(defn on-virtual-thread
  "Returns f, called on a virtual thread of its own, and waited for."
  [f]
  (fn [] (.join (Thread/startVirtualThread f))))

(def callers
  "By kind of thread: the function from a way to the same called on such a thread."
  {:main identity, :virtual on-virtual-thread})

;; What several JVMs make of them: runs are what costs returned in each

(defn medians
  "Returns the medians of a way's figure, by JVM."
  [runs way figure]
  (map #(stats/median (map figure (get % way))) runs))

(defn- compared [f runs way other figure]
  (map #(f (map figure (get % way)) (map figure (get % other))) runs))

(defn times
  "Returns how many times as much of a figure a way costs as another, paired by round: the spread of
  the medians of the JVMs."
  [runs way other figure]
  (stats/spread (compared stats/paired runs way other figure)))

(defn more
  "Returns by how much more of a figure a way costs than another; see times."
  [runs way other figure]
  (stats/spread (compared #(stats/median (map - %1 %2)) runs way other figure)))
