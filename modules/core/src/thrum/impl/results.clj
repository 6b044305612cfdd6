(ns thrum.impl.results
  "The results of a fan-out by index. One thread makes room for them, many threads put them there."
  {:no-doc true}
  (:import
   (java.util Arrays)))

(set! *warn-on-reflection* true)

(def ^:private ^:const segment-size 64)

;; No protocol: it is called for every item, see decision 32.
(definterface IResults
  (^Object reserve [])
  (^Object put [^long index value])
  (toArray []))

;; segments: arrays, of which the last ones may be nil. They never move: a result that is put while
;; another segment is added is not lost.
(deftype Results [^:volatile-mutable ^objects segments ^:unsynchronized-mutable ^long size]
  IResults
  (reserve [_]
    (let [n (quot size (long segment-size))]
      (when (= n (alength segments))
        (set! segments (Arrays/copyOf segments (int (* 2 n)))))
      (when (zero? (rem size (long segment-size)))
        (aset segments n (object-array segment-size)))
      (set! size (inc size))
      nil))
  (put [_ index value]
    (aset ^objects (aget segments (quot index (long segment-size)))
          (rem index (long segment-size))
          value))
  (toArray [_]
    (let [all (object-array size)]
      (loop [from 0]
        (when (< from size)
          (System/arraycopy (aget segments (quot from (long segment-size))) 0 all from
                            (min (long segment-size) (- size from)))
          (recur (+ from (long segment-size)))))
      all)))

(defn results
  "Returns one without room. Its thread reserves one place for each index from 0 on, before another
  thread can put a result there."
  ^Results []
  (Results. (object-array 4) 0))
