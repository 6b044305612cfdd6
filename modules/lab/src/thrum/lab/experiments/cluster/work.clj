(ns thrum.lab.experiments.cluster.work
  "What the members of a cluster run: waits, computes, does nothing.")

(set! *warn-on-reflection* true)

(defn nap
  "Waits for so many ms."
  [ms]
  (Thread/sleep (long ms))
  ms)

(defn nothing
  "Returns nil."
  [_item]
  nil)

(defn compute
  "Returns the last of n steps of a generator of numbers."
  [n]
  (loop [i (long n), x 88172645463325252]
    (if (pos? i)
      (let [x (bit-xor x (bit-shift-left x 13)), x (bit-xor x (unsigned-bit-shift-right x 7))]
        (recur (dec i) (bit-xor x (bit-shift-left x 17))))
      x)))
