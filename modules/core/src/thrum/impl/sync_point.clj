(ns thrum.impl.sync-point
  "Marks the places in the code where the order of threads matters. Marks compile to nothing, unless
  Thrum is loaded with -Dthrum.sync-points=true: then a test can delay or interrupt a thread that
  reaches one."
  {:no-doc true})

(set! *warn-on-reflection* true)

(def listener
  "A function of the sync point's name, called on every thread that reaches one; nil for none."
  (atom nil))

(defmacro reached
  "Marks a sync point of that name, a keyword."
  [sync-point]
  (when (Boolean/getBoolean "thrum.sync-points")
    `(when-some [listener# @listener] (listener# ~sync-point))))
