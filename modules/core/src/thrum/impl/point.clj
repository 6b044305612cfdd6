(ns thrum.impl.point
  "Where threads meet. A point is compiled to nothing, unless Thrum is loaded with
  -Dthrum.points=true: then a test hears of every thread that comes by, and may delay or interrupt
  it there."
  {:no-doc true})

(set! *warn-on-reflection* true)

(def listener
  "A function of the point's name, called by every thread that reaches a point."
  (atom nil))

(defmacro reached
  "Marks a point of that name, a keyword."
  [point]
  (when (Boolean/getBoolean "thrum.points")
    `(when-some [listener# @listener] (listener# ~point))))
