(ns thrum.async.impl.job
  "The work of a pipeline on one item, on the item's own thread. A job returns the list of the
  item's outputs. The pipeline's rule for errors decides what a failure becomes."
  {:no-doc true}
  (:require
   [clojure.core.async :as async]
   [thrum.async.impl.port :as port]
   [thrum.core :as t]
   [thrum.spi :as spi])
  (:import
   (java.util ArrayList List)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

;; How many items had a nil result, and how many throwables there were.
(deftype Counts [^AtomicLong dropped ^AtomicLong failed])

(defn counts
  "Returns counts of zero."
  []
  (Counts. (AtomicLong.) (AtomicLong.)))

(defn totals
  "Returns {:dropped n, :failed n}, in items and in throwables."
  [^Counts counts]
  {:dropped (.get ^AtomicLong (.-dropped counts)), :failed (.get ^AtomicLong (.-failed counts))})

(defn- check-casualty
  "Rethrows a casualty of the pipeline's cancel."
  [t]
  (when (and (t/cancelled?) (spi/casualty? t))
    (throw t)))

;; The rule for errors: a function of the throwable. Its value is an output in the item's place,
;; unless it is nil.

(defn rule
  "Returns the rule of this name, or for this function. If the function throws, that goes to the
  uncaught exception handler, unless the pipeline's cancel caused it, and the item is dropped."
  [on-error]
  (case on-error
    :report spi/uncaught!
    :skip (constantly nil)
    :close (fn [t] (throw t))
    (fn [t]
      (try
        (on-error t)
        (catch Throwable other
          (check-casualty other)
          (spi/uncaught! other))))))

(defn- answer!
  "Applies the rule to t and returns nil. A casualty of the pipeline's cancel is rethrown."
  [^Counts counts rule ^List outputs t]
  (check-casualty t)
  (.incrementAndGet ^AtomicLong (.-failed counts))
  (when-some [v (rule t)]
    (.add outputs v))
  nil)

(defmacro ^:private answering
  "Returns the value of the body, or nil where it throws and the rule has an answer."
  [counts rule outputs & body]
  `(try
     ~@body
     (catch Throwable t#
       (answer! ~counts ~rule ~outputs t#))))

;; The jobs

(defn- add!
  ([outputs] outputs)
  ([^List outputs v]
   (when (nil? v)
     (throw (spi/invalid "A pipeline's transducer gave nil, which no channel can carry"
              {:value nil})))
   (doto outputs (.add v))))

(defn- reducing [xf]
  (let [rf (xf add!)]
    (when-not (ifn? rf)
      (throw (spi/invalid (str "A pipeline's transducer made no function, but " (spi/text rf))
               {:value rf, :accepts "a function"})))
    rf))

(defn transducing
  "Applies xf to each item by itself, with its completion. Outputs before a throw are kept, and so
  are those of the completion after one, as in a channel with a transducer."
  [counts rule xf]
  (fn [v]
    (let [outputs (ArrayList.)]
      (when-some [rf (answering counts rule outputs (reducing xf))]
        (answering counts rule outputs (rf outputs v))
        (answering counts rule outputs (rf outputs)))
      outputs)))

(defn calling
  "Calls f with each item. A nil is dropped and counted."
  [^Counts counts rule f]
  (fn [v]
    (let [outputs (ArrayList. 1)]
      (answering counts rule outputs
        (let [result (f v)]
          (if (nil? result)
            (.incrementAndGet ^AtomicLong (.-dropped counts))
            (.add outputs result))))
      outputs)))

(defn asynchronous
  "Calls af with each item and a channel, and takes values from the channel until it is closed. The
  channel has room for all, as the list of outputs has: af may put by itself, before any are taken,
  and no put still waits when the channel is closed."
  [counts rule af]
  (fn [v]
    (let [outputs (ArrayList.), results (async/chan Integer/MAX_VALUE)]
      (answering counts rule outputs
        (try
          (af v results)
          (run! #(.add outputs %) (port/reducible results))
          (finally (async/close! results))))
      outputs)))
