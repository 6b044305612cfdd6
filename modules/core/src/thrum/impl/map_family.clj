(ns thrum.impl.map-family
  "The consumers of a fan-out: a lazy seq that pulls, a transducing process that pushes, and the
  forms that return when all has ended."
  {:no-doc true}
  (:refer-clojure :exclude [run!])
  (:require
   [thrum.impl.batch :as batch]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.fanout :as fanout]
   [thrum.impl.order :as order]
   [thrum.impl.place :as place]
   [thrum.impl.results :as results]
   [thrum.impl.scope :as scope]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (clojure.lang ArrayChunk LazySeq)
   (java.util Arrays)
   (thrum.impl.fanout FanOut)
   (thrum.impl.results Results)
   (thrum.impl.task ITask)))

(set! *warn-on-reflection* true)

(defn- check-not-failed!
  "Throws again what has ended the fan-out."
  [^FanOut fan-out]
  (when-some [thrown (.thrown fan-out)]
    (throw (fanout/thrown-again fan-out thrown))))

;; Pulled by a lazy sequence

(defn- on-item
  "Returns the call of f on the item as a thunk to be called once. It does not hold the item while f
  runs."
  [f item]
  (^{:once true} fn* [] (f item)))

(defmacro ^:private in-turn
  "Returns the value of the body. An interrupt is thrown; any other throwable, of the source or the
  wrap, waits for its turn, and nil is returned."
  [fan-out & body]
  `(try
     ~@body
     (catch InterruptedException t#
       (throw t#))
     (catch Throwable t#
       (.setSourceFailure ~fan-out t#)
       (.exhaust ~fan-out))))

(defn- pull!
  "Pulls an item, if there is one. Returns what a task is to run now, or nil."
  [^FanOut fan-out f]
  (let [item (in-turn fan-out (.pull fan-out))]
    (when (.more fan-out)
      (fanout/gather! fan-out (on-item f item)))))

;; A consumer that never has to wait sees its cancel and its interrupt before each start.

(defn- start-next!
  "Pulls an item, and starts a task if one is to run now. Returns nil if there is none."
  [^FanOut fan-out f]
  (when-some [work (or (pull! fan-out f)
                       (when-not (.more fan-out) (fanout/gathered fan-out)))]
    (wait/check!)
    (when-some [task (in-turn fan-out (.task fan-out work))]
      (.start fan-out task))))

(defn- keep-up!
  "Starts a task for each that may leave now, if its items are at hand, so that work goes on beside
  a slow consumer. The pull also calls rest on the source."
  [^FanOut fan-out f]
  (loop [n 0]
    (when (and (< n (.together fan-out)) (.behind fan-out))
      (recur (if (start-next! fan-out f) (inc n) n)))))

(defn- look-ahead!
  "Finds the end of the source, where tasks leave as they start: before there is room for another,
  for those that run may wait for what the consumer does with them."
  [^FanOut fan-out]
  (when (order/as-started? (.-order fan-out))
    (in-turn fan-out (.lookAhead fan-out))))

(defn- take!
  "Returns the next task to leave, or nil at the end."
  [^FanOut fan-out f]
  (.consumerBack fan-out)
  (loop []
    (case (fanout/decide fan-out)
      :leave (do (keep-up! fan-out f) (fanout/leave! fan-out))
      :start (do (start-next! fan-out f) (recur))
      :end (some-> (.sourceFailure fan-out) throw)
      :wait (do (look-ahead! fan-out) (fanout/await! fan-out) (recur)))))

(defmacro ^:private pulling
  "Evaluates the body in the thunk of a lazy seq. The thunk can run again, unlike lazy-seq's: a
  failed seq throws again, and the thunk of all can serve for the rest."
  [fan-out & body]
  `(do
     (check-not-failed! ~fan-out)
     (fanout/failing ~fan-out ~@body)))

(defn- task-first [_fan-out task more]
  (cons task more))

(defn- batch-first
  "Its failure is thrown after the values before it."
  [^FanOut fan-out batch task more]
  (let [end #(fanout/end-of-batch! fan-out batch task)]
    (if (or (batch/whole? batch task) (zero? (batch/count-values batch task)))
      (do (end) (batch/onto batch task more))
      (batch/onto batch task (LazySeq. (fn [] (pulling fan-out (end))))))))

(defn- with-room
  "Returns the array, or a longer one that begins alike, with room for another after n."
  [^objects values ^long n]
  (if (< n (alength values))
    values
    (Arrays/copyOf values (int (* 2 n)))))

(defn- value-first
  "With the value leave those that are ready after it, if the consumer is quick: to start a task
  for each one costs him less at once."
  [^FanOut fan-out value more]
  (let [most (.together fan-out)]
    (if (and (< 1 most) (.valueReady fan-out))
      (loop [^objects values (doto (object-array (min most 32)) (aset 0 value)), n 1]
        (if (and (< n most) (.valueReady fan-out))
          (let [^objects values (with-room values n)]
            (aset values n (task/value (.consume fan-out)))
            (recur values (inc n)))
          (chunk-cons (ArrayChunk. values 0 n) more)))
      (cons value more))))

(defn- results-first [^FanOut fan-out task more]
  (if-some [batch (fanout/batch-of fan-out task)]
    (batch-first fan-out batch task more)
    (let [elements (value-first fan-out (fanout/result fan-out task) more)]
      (.consumerGone fan-out)
      elements)))

(defn- pulled
  "Returns as a lazy seq what leaves; (onto fan-out task more) - what a task stands for, in front of
  more."
  [^FanOut fan-out f onto]
  (LazySeq.
    (fn pull []
      (pulling fan-out
        (when-some [task (take! fan-out f)]
          (onto fan-out task (LazySeq. pull)))))))

;; Pushed by a transducing process

(defn- unless-room
  "Starts the work if there is room for it; returns it if there is none."
  [^FanOut fan-out work]
  (if (.room fan-out)
    (do (wait/check!)
        (fanout/launch! fan-out work)
        nil)
    work))

(defn- leave-early! [^FanOut fan-out]
  (.setOver fan-out)
  (fanout/end! fan-out :reduced))

(defn- push!
  "Starts the work (nil: none), as soon as there is room, and hands on what is ready. A process may
  go on after a failure, as that of a channel with an ex-handler does."
  [^FanOut fan-out emit rf acc work]
  (check-not-failed! fan-out)
  (fanout/failing fan-out
    (loop [acc acc, work (some->> work (unless-room fan-out))]
      (if (reduced? acc)
        (do (leave-early! fan-out) acc)
        (case (fanout/decide fan-out)
          :leave (recur (emit fan-out rf acc (fanout/leave! fan-out)) work)
          :start (if work (recur acc (unless-room fan-out work)) acc)
          :wait (if work (do (fanout/await! fan-out) (recur acc work)) acc))))))

(defn- drain! [^FanOut fan-out emit rf acc]
  (fanout/failing fan-out
    (.exhaust fan-out)
    (loop [acc acc]
      (if (reduced? acc)
        (do (leave-early! fan-out) (unreduced acc))
        (case (fanout/decide fan-out)
          :leave (recur (emit fan-out rf acc (fanout/leave! fan-out)))
          :end acc
          :wait (do (fanout/await! fan-out) (recur acc)))))))

(defn- flush!
  "Starts the last work, and hands on all that is still to come."
  [^FanOut fan-out emit rf acc]
  (.setOver fan-out)
  (let [acc (push! fan-out emit rf acc (fanout/gathered fan-out))]
    (if (reduced? acc) (unreduced acc) (drain! fan-out emit rf acc))))

(defn- feeding
  "Returns the reducing function that starts f on its inputs and hands to rf what leaves the
  fan-out, by (emit fan-out rf acc task)."
  [fan-out emit f rf]
  (let [push #(push! fan-out emit rf %1 (fanout/gather! fan-out %2))]
    (fn
      ([] (rf))
      ;; A channel completes again at each take after its close.
      ([acc] (rf (if (.isOver ^FanOut fan-out) acc (flush! fan-out emit rf acc))))
      ([acc item] (push acc (on-item f item)))
      ([acc item & items] (push acc (^{:once true} fn* [] (apply f item items)))))))

(defn- emit-task [_fan-out rf acc task]
  (rf acc task))

(defn- emit-results [fan-out rf acc task]
  (if-some [batch (fanout/batch-of fan-out task)]
    (fanout/reduce-batch fan-out batch task (fn [acc _ value] (rf acc value)) acc)
    (rf acc (fanout/result fan-out task))))

;; The map family

(defn in-time
  "Returns f with a deadline for each call of it, :item-timeout-ms later; f itself without that
  option."
  [{ms :item-timeout-ms} f]
  (if ms
    (fn [& args]
      (scope/call {:name "item", :timeout-ms ms, :deadline (deadline/in-ms ms)}
        (^{:once true} fn* [_] (apply f args))))
    f))

(defn- zipped
  "Returns the items of one or several collections, and f as a function of an item."
  [f [coll & colls]]
  (if colls
    [(apply map vector coll colls) #(apply f %)]
    [coll f]))

(defn results
  "Returns the results of f over the collections as a lazy seq, in the order that the options name."
  [{:keys [order], :as options} f colls]
  (let [[items f] (zipped (in-time options f) colls)]
    (pulled (fanout/fan-out options items)
            f
            (if (= :as-started order) task-first results-first))))

(defn- call [thunk]
  (thunk))

(defn of-thunks
  "Returns the values of thunks as a lazy seq, as pmap does."
  [options thunks]
  (results options call [thunks]))

(defn transducer
  "Returns a transducer in the order that the options name. Each process that uses it takes the
  context of the thread that starts it, and current-options, called there."
  [current-options f]
  (fn [rf]
    (let [{:keys [order], :as options} (current-options)]
      (feeding (fanout/fan-out options nil)
               (if (= :as-started order) emit-task emit-results)
               (in-time options f)
               rf))))

(defn- reserving
  "Returns a transducer that makes room in the results for each item; results: or nil."
  [^Results results]
  (if results
    (map (fn [item] (.reserve results) item))
    identity))

(defn- put!
  "Returns nil: a batch is reduced with this, and a result may be a Reduced."
  [^Results results ^long index value]
  (when results (.put results index value))
  nil)

(defn- eagerly
  "Calls f on each item and puts its value into the results, or nowhere for nil. Nothing runs any
  more when this returns or throws. The thread of a task puts its value there itself: handing over
  each task to the consumer costs as much as all else."
  [options results f colls]
  (wait/check-state!)
  ;; The end takes the fan-out out of the work around it, which would wait for it for ever.
  (when (place/current) (wait/room 250))
  (let [put-value (fn [^ITask task] (put! results (.index task) (task/value task)))
        fan-out (fanout/fan-out (assoc options
                                  :order :as-completed
                                  :window Long/MAX_VALUE
                                  :on-done put-value)
                                nil)
        [items f] (zipped (in-time options f) colls)
        emit (fn [fan-out _ _ task]
               (fanout/reduce-batch fan-out (fanout/batch-of fan-out task) task
                                    (fn [_ i value] (put! results i value))
                                    nil))]
    (try
      (fanout/failing fan-out
        (transduce (comp (reserving results) #(feeding fan-out emit f %))
                   (constantly nil)
                   nil
                   items))
      (finally (fanout/end! fan-out :ended)))))

(defn vector-of-results
  "Returns the results as a vector in the order of the input, when all have ended."
  [options f colls]
  (let [results (results/results)]
    (eagerly options results f colls)
    (vec (.toArray results))))

(defn run!
  "Calls f on every item, for its effects; returns nil when all have ended."
  [options f coll]
  (eagerly options nil f [coll]))
