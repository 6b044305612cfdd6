(ns thrum.adaptive
  "Functions for the option :adaptive of thrum.core/limiter, on the algorithms of Netflix's
  concurrency-limits. Use it as (require '[thrum.adaptive :as adaptive])."
  (:require
   [thrum.spi :as spi]
   [thrum.spi.options :as options])
  (:import
   (com.netflix.concurrency.limits Limit)
   (com.netflix.concurrency.limits.limit AIMDLimit Gradient2Limit VegasLimit)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(defn- integer [default doc]
  {:check #(and (pos-int? %) (<= % Integer/MAX_VALUE))
   :accepts "a positive integer"
   :default default
   :doc doc})

(def ^:private rows
  {:initial (integer 20 "the limit that the first use starts from")
   :min (integer 1 "the lowest limit")
   :max (integer 200 "the highest limit")
   :tolerance {:check #(and (number? %) (<= 1 %))
               :accepts "a number, at least 1"
               :default 1.5
               :doc "from how many times the usual latency on the limit falls"}
   :queue (integer 4 "how many beyond what the latency allows the limit lets in, to find more")
   :backoff {:check #(and (number? %) (<= 1/2 %) (< % 1))
             :accepts "a number from 0.5, below 1"
             :default 0.9
             :doc "what a dropped use multiplies the limit by"}
   :slow-ms (integer 5000 "a longer use counts as dropped")})

(defn- within-bounds
  "Returns the options with an :initial between :min and :max: where it begins beyond them, an
  algorithm may stay there."
  [{:keys [initial], lowest :min, highest :max, :or {lowest 1}, :as options}]
  (when (< highest lowest)
    (throw (spi/invalid (str "The option :min is " lowest ", above :max, " highest)
                        {:option :min, :value lowest, :accepts "a positive integer, up to :max"})))
  (assoc options :initial (-> initial (max lowest) (min highest))))

(defn- checked
  "Returns the options of these keys, with the defaults of those that are missing."
  [ks options]
  (within-bounds (merge (update-vals (select-keys rows ks) :default)
                        (options/check rows options ks))))

(defn- following
  "Returns the function of a use to the limit."
  [^Limit limit]
  (fn [{:keys [latency-ns in-flight dropped?]}]
    (.onSample limit (System/nanoTime) (max 1 (long latency-ns)) in-flight dropped?)
    (max 1 (.getLimit limit))))

(defn gradient2
  "Returns a function that lowers the limit where the latest use took longer than usual, by
  Netflix's Gradient2: the usual is an average of some hundred uses. For calls whose latency differs
  widely. Where the limit is always used up, it rises to :max: what is slow for long is usual then.
  A dropped use counts as any other. Throws :thrum/invalid.

  Options:
    :initial - the limit that the first use starts from (a positive integer; default 20)
    :min - the lowest limit (a positive integer; default 1)
    :max - the highest limit (a positive integer; default 200)
    :tolerance - from how many times the usual latency on the limit falls (a number, at least
      1; default 1.5)
    :queue - how many beyond what the latency allows the limit lets in, to find more (a
      positive integer; default 4)"
  ([] (gradient2 {}))
  ([options]
   (let [{:keys [initial min max tolerance queue]}
         (checked [:initial :min :max :tolerance :queue] options)]
     (following
       (-> (Gradient2Limit/newBuilder)
           (.initialLimit initial)
           (.minLimit min)
           (.maxConcurrency max)
           (.rttTolerance tolerance)
           (.queueSize (int queue))
           .build)))))

(defn vegas
  "Returns a function that lowers the limit where latency shows a queue, by the shortest latency
  seen, as TCP Vegas. For calls whose latency without load hardly varies, also where the limit is
  always used up. Throws :thrum/invalid.

      (t/limiter {:adaptive (adaptive/vegas), :queue 100})

  Options:
    :initial - the limit that the first use starts from (a positive integer; default 20)
    :max - the highest limit (a positive integer; default 200)"
  ([] (vegas {}))
  ([options]
   (let [{:keys [initial max]} (checked [:initial :max] options)]
     (following
       (-> (VegasLimit/newBuilder)
           (.initialLimit initial)
           (.maxConcurrency max)
           .build)))))

(defn aimd
  "Returns a function that raises the limit by one for each use with half of it or more in use, and
  multiplies it by :backoff for a dropped use, as TCP does; latency counts only beyond :slow-ms. For
  calls that are refused or time out under too much load. Throws :thrum/invalid.

  Options:
    :initial - the limit that the first use starts from (a positive integer; default 20)
    :min - the lowest limit (a positive integer; default 1)
    :max - the highest limit (a positive integer; default 200)
    :backoff - what a dropped use multiplies the limit by (a number from 0.5, below 1; default
      0.9)
    :slow-ms - a longer use counts as dropped (a positive integer; default 5000)"
  ([] (aimd {}))
  ([options]
   (let [{:keys [initial min max backoff slow-ms]}
         (checked [:initial :min :max :backoff :slow-ms] options)]
     (following
       (-> (AIMDLimit/newBuilder)
           (.initialLimit initial)
           (.minLimit min)
           (.maxLimit max)
           (.backoffRatio backoff)
           (.timeout slow-ms TimeUnit/MILLISECONDS)
           .build)))))
