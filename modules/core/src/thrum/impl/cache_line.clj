(ns thrum.impl.cache-line
  "Arrays for what a thread writes for every item: in a cache line that no other thread reads beside
  it. A processor whose line another one has written waits for it; see decision 54."
  {:no-doc true}
  (:import
   (java.util.concurrent.atomic AtomicLongArray)))

(set! *warn-on-reflection* true)

;; At least 60 bytes from either end of the array, and of references that take 4 bytes each: the
;; objects beside it are others'.

(def ^:const index "Where an array of these has its element." 16)

(def ^:const other-index "Where an array of numbers has others, in another line." 24)

(defn numbers
  "Returns an array of longs, 0 at first, to be used from an index on, for the few after it."
  ^longs []
  (long-array 32))

(defn atomic-numbers
  "As numbers, for several threads."
  ^AtomicLongArray []
  (AtomicLongArray. 32))

(defn object
  "Returns an array with one object, nil at first, to be used at its index alone."
  ^objects []
  (object-array 32))
