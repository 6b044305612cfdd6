(ns thrum.lab.rounds
  "Takes the time of several ways of doing the same work, in turns, in one JVM. A way is [name
  thunk].")

(set! *warn-on-reflection* true)

(defn nanos
  "Returns how long f takes, in ns, from a heap without garbage."
  [f]
  (System/gc)
  (let [start (System/nanoTime)]
    (f)
    (- (System/nanoTime) start)))

(defn- rotated [n xs]
  (let [[before after] (split-at (mod n (count xs)) xs)]
    (concat after before)))

(defn run
  "Runs every way once in each round; each round begins with another way, and the first `warm-up`
  rounds are dropped. Returns {name [ns, for each measured round]}."
  [warm-up measured ways]
  (->> (range (+ warm-up measured))
       (mapcat #(rotated % ways))
       (mapv (fn [[way f]] [way (nanos f)]))
       (drop (* warm-up (count ways)))
       (reduce (fn [times [way t]] (update times way (fnil conj []) t)) {})))
