(ns thrum.async.pipes
  "What the tests of pipelines share: every kind of pipeline, run over some items."
  (:require
   [clojure.core.async :as async]
   [clojure.test :refer [testing]]
   [thrum.async :as a]
   [thrum.test-kit.gate :as gate]))

(set! *warn-on-reflection* true)

(defn all
  "Returns what the channel delivers until it is closed, which it is within 10 s."
  [ch]
  (gate/in-time 10000 #(into [] (a/chan->reducible ch))))

(defn end
  "Returns what a pipeline's channel delivers; :late when that takes longer than 10 s."
  [done]
  (first (async/alts!! [done (async/go (async/<! (async/timeout 10000)) :late)])))

(defn through
  "Returns [results end] of (start n to f from) over the items."
  ([start n f items] (through start n f items {}))
  ([start n f items options]
   (let [to (async/chan)
         done (start n to f (async/to-chan! items) options)]
     [(all to) (end done)])))

(def kinds
  "By name: every kind of pipeline, with the same function, of an item."
  {"pipeline-blocking" (fn [n to f from options] (a/pipeline-blocking n to (map f) from options))
   "pipeline-fn" a/pipeline-fn
   "upipeline" (fn [n to f from options] (a/upipeline n to (map f) from options))
   "pipeline-async"
   (fn [n to f from options]
     (a/pipeline-async n to (fn [v ch] (async/put! ch (f v)) (async/close! ch)) from options))})

(defmacro each-kind
  "Runs the body with start bound to each kind of pipeline."
  [start & body]
  `(doseq [[kind# ~start] kinds]
     (testing kind# ~@body)))
