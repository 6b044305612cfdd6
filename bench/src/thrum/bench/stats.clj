(ns thrum.bench.stats
  "Turns samples into figures. Pure.")

(set! *warn-on-reflection* true)

(defn median
  "Returns the median of numbers, the mean of the middle two for an even count; nil of nothing."
  [xs]
  (when-some [sorted (seq (sort xs))]
    (let [n (count sorted), upper (nth sorted (quot n 2))]
      (if (odd? n)
        upper
        (/ (+ upper (nth sorted (dec (quot n 2)))) 2.0)))))

(defn summary
  "Returns {:median :min :max} of numbers, without the nils among them; nil where nothing is left."
  [xs]
  (when-some [known (seq (remove nil? xs))]
    {:median (double (median known))
     :min (double (apply min known))
     :max (double (apply max known))}))

(defn paired
  "Returns the median of the ratios x to y of each round: what slows down a whole round cancels out."
  [xs ys]
  (median (map #(/ (double %1) (double %2)) xs ys)))
