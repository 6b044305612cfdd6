(ns thrum.impl.source
  "What a fan-out pulls its items from, one at a time: a chunk's without a seq for each."
  {:no-doc true}
  (:import
   (clojure.lang EnumerationSeq IChunk IPending IteratorSeq LazySeq)))

(set! *warn-on-reflection* true)

;; No protocol: it is called for every item, see decision 32.
(definterface ISource
  (pull [])
  (^boolean atHand [])
  (^boolean atEnd [])
  (^boolean chunked [])
  (^Object close []))

(defn- iterated? [items]
  (or (instance? IteratorSeq items)
      (instance? EnumerationSeq items)))

(defn- may-block?
  "True if what to ask for the first of the items may do: it is still to be computed, or comes from
  an iterator."
  [items]
  (or (and (instance? IPending items) (not (.isRealized ^IPending items)))
      (iterated? items)))

(defn- behind-first
  "Returns the items after the first. An iterator is asked whether there are any when they are
  looked at: its rest would ask at once, before there is a task for the first. Until then its seq
  holds the first."
  [items]
  (if (iterated? items)
    (LazySeq. (fn [] (next items)))
    (rest items)))

;; For one thread at a time, as thrum.impl.fanout/FanOut is. items: what comes after the chunk.
;; chunk: nil, or one that is not pulled to its end: up to `pulled`.
(deftype Source [^:unsynchronized-mutable items
                 ^:unsynchronized-mutable ^IChunk chunk
                 ^:unsynchronized-mutable ^long pulled
                 ^:unsynchronized-mutable chunked]
  ISource
  ;; Returns the next item, or this at the end.
  (pull [this]
    (if chunk
      (let [item (.nth chunk pulled)]
        (set! pulled (inc pulled))
        (when (= pulled (.count chunk)) (set! chunk nil))
        item)
      (let [found (seq items)]
        (cond
          (nil? found) this
          (chunked-seq? found) (let [next-chunk ^IChunk (chunk-first found)]
                                 (set! items (chunk-rest found))
                                 (set! chunked true)
                                 (set! pulled 0)
                                 (when (pos? (.count next-chunk)) (set! chunk next-chunk))
                                 (recur))
          :else (let [item (first found)]
                  (set! items (behind-first found))
                  (set! chunked false)
                  item)))))
  ;; True if the next item, or the end, is there.
  (atHand [_] (or (some? chunk) (not (may-block? items))))
  ;; True if there is no next item, which this realises.
  (atEnd [_]
    (and (nil? chunk)
         (nil? (set! items (seq items)))))
  ;; True if the last item was in a chunk.
  (chunked [_] (boolean chunked))
  (close [_]
    (set! items nil)
    (set! chunk nil)))

(defn source
  "Returns the source of the items of a collection."
  ^Source [coll]
  (Source. coll nil 0 false))
