(ns thrum.lab.stats
  "Turns samples into figures. Pure: spans and outcomes in, numbers out. Times are in ms.")

(set! *warn-on-reflection* true)

(defn median
  "Returns the median of numbers, the mean of the middle two for an even count; nil of nothing."
  [xs]
  (when-let [sorted (seq (sort xs))]
    (let [n (count sorted), upper (nth sorted (quot n 2))]
      (if (odd? n)
        upper
        (/ (+ upper (nth sorted (dec (quot n 2)))) 2.0)))))

(defn spread
  "Returns {:median :min :max} of numbers, without the nils among them; nil where nothing is left."
  [xs]
  (when-some [known (seq (remove nil? xs))]
    {:median (double (median known))
     :min (double (apply min known))
     :max (double (apply max known))}))

(defn p99
  "Returns the 99th percentile of numbers, the least of them that 99 % do not exceed; nil of
  nothing."
  [xs]
  (when-let [sorted (seq (sort xs))]
    (nth sorted (quot (dec (* 99 (count sorted))) 100))))

(defn paired
  "Returns the median of the ratios x to y of each round: what slows down a whole round cancels
  out."
  [xs ys]
  (median (map #(/ (double %1) (double %2)) xs ys)))

(defn- steps
  "Returns [time change] pairs in time order; at the same time, ends come before starts."
  [spans]
  (sort (into [] (mapcat (fn [[start end]] [[start 1] [end -1]])) spans)))

(defn in-flight
  "Returns the curve [[time tasks-in-flight] …] of spans [[start end] …], one point per change."
  [spans]
  (loop [points [], running 0, [[at change] & more] (steps spans)]
    (if at
      (recur (conj points [at (+ running (long change))]) (+ running (long change)) more)
      points)))

(defn peak
  "Returns the largest number of tasks in flight on a curve, 0 of an empty one."
  [curve]
  (transduce (map second) max 0 curve))

(defn- extremes
  "Returns the lowest and the highest of neighbouring points, in time order."
  [points]
  (sort (distinct [(apply min-key second points) (apply max-key second points)])))

(defn thin
  "Returns a curve of at most `most` points (even, >= 4) that keeps the first point, the last one
  and every height that a reader could see: of each run of neighbours the lowest and the highest."
  [most curve]
  (if (<= (count curve) most)
    (vec curve)
    (let [inner (subvec (vec curve) 1 (dec (count curve)))
          runs (partition-all (inc (quot (* 2 (count inner)) (- most 2))) inner)]
      (-> [(first curve)]
          (into (mapcat extremes) runs)
          (conj (peek (vec curve)))))))

(defn tally
  "Returns what outcomes add up to: {:ok :failed :cancelled :bytes :kinds {kind n} :messages {kind
  first} :statuses {status n}}. An outcome with a :kind failed; a cancelled one (nil) counts as
  neither."
  [outcomes]
  (let [ended (remove nil? outcomes)]
    {:ok (count (remove :kind ended))
     :failed (count (filter :kind ended))
     :cancelled (- (count outcomes) (count ended))
     :bytes (transduce (keep :bytes) + 0 ended)
     :kinds (frequencies (keep :kind ended))
     :messages (into {} (map (juxt :kind :message)) (filter :kind (reverse ended)))
     :statuses (frequencies (keep :status ended))}))
