(ns thrum.lab.limit-line
  "The best that arithmetic allows: how many rounds of equal tasks a way of working needs.
  A round lasts as long as one task; the limit line is rounds x duration. Other limit lines stand in
  the rows of each experiment's plan: :limit-line-ms or :limit-line-per-second.")

(set! *warn-on-reflection* true)

(def chunk-size "How many items Clojure realises at once from a chunked sequence." 32)

(defn ceil-div
  "Returns a / b, rounded up, for positive integers."
  [a b]
  (quot (+ a (dec b)) b))

(defn bounded
  "Returns the rounds of n equal tasks of which at most `limit` run at once."
  [n limit]
  (ceil-div n (max 1 (min n limit))))

(defn ab
  "Returns the rounds of ab's n equal requests where at most `limit` run at once: ab sends its first
  one alone."
  [n limit]
  (inc (bounded (dec n) limit)))

(defn pmap-window
  "Returns how many tasks clojure.core/pmap keeps running over an unchunked input: the one it
  waits for and cpus + 2 ahead of it."
  [cpus]
  (+ cpus 3))

(defn- round-after
  "Returns the round in which chunk k starts. clojure.core/pmap touches it, and with it all of its
  items, once every item more than cpus + 2 before its first one has been delivered."
  [rounds k cpus]
  (let [last-awaited (- (* chunk-size k) (+ cpus 2) 1)]
    (if (neg? last-awaited)
      0
      (inc (nth rounds (quot last-awaited chunk-size))))))

(defn chunked-pmap
  "Returns the rounds clojure.core/pmap needs for n equal tasks over a chunked input."
  [n cpus]
  (let [chunks (ceil-div n chunk-size)
        starts (reduce (fn [rounds k] (conj rounds (round-after rounds k cpus))) [] (range chunks))]
    (inc (peek starts))))

(defn ms
  "Returns the limit line in ms of `rounds` rounds of tasks that take task-ms each."
  [rounds task-ms]
  (double (* rounds task-ms)))

(defn task-ms
  "Returns how long `bytes` take at `rate` bytes per second, in ms; nil when the rate is
  :unlimited."
  [bytes rate]
  (when (number? rate) (/ (* 1000.0 bytes) rate)))
