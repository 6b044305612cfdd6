(ns thrum.impl.results
  "The results of a fan-out by index. One thread makes room for them, many threads put them there."
  {:no-doc true}
  (:require
   [thrum.impl.cache-line :as cache-line])
  (:import
   (java.util Arrays)))

(set! *warn-on-reflection* true)

(def ^:private ^:const segment-size "16 cache lines of 16 results." 256)

(defn- segment
  "Returns the number of the segment that has the result of that index."
  ^long [^long index]
  (quot index (long segment-size)))

(defn- slot
  "Returns where the segment has it. Results that follow each other, which several carriers put at
  about the same time, lie in different cache lines."
  ^long [^long index]
  (bit-or (bit-shift-left (bit-and index 15) 4)
          (bit-and (bit-shift-right index 4) 15)))

;; No protocol: it is called for every item, see decision 32.
(definterface IResults
  (^Object reserve [])
  (^Object put [^long index value])
  (toArray []))

;; segments: arrays, of which the last ones may be nil. They never move: a result that is put while
;; another segment is added is not lost. size: a number, see thrum.impl.cache-line.
(deftype Results [^:volatile-mutable ^objects segments ^longs size]
  IResults
  (reserve [_]
    (let [index (aget size cache-line/index), i (segment index)]
      (when (= i (alength segments))
        (set! segments (Arrays/copyOf segments (int (* 2 i)))))
      (when (nil? (aget segments i))
        (aset segments i (object-array segment-size)))
      (aset size cache-line/index (inc index))
      nil))
  (put [_ index value]
    (aset ^objects (aget segments (segment index)) (slot index) value))
  (toArray [_]
    (let [n (aget size cache-line/index), all (object-array n)]
      (loop [i 0]
        (when (< i n)
          (aset all i (aget ^objects (aget segments (segment i)) (slot i)))
          (recur (inc i))))
      all)))

(defn results
  "Returns one without room. Its thread makes room for each index from 0 on, before another
  thread can put a result there."
  ^Results []
  (Results. (object-array 4) (cache-line/numbers)))
