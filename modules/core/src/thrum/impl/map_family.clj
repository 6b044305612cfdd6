(ns thrum.impl.map-family
  "The consumers of a fan-out: a lazy seq that pulls, a transducing process that pushes, and the
  forms that return when all has ended."
  {:no-doc true}
  (:refer-clojure :exclude [run!])
  (:require
   [thrum.impl.fanout :as fanout]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (clojure.lang LazySeq)
   (java.util ArrayList)
   (thrum.impl.fanout FanOut)
   (thrum.impl.task ITask)))

(set! *warn-on-reflection* true)

(defn- itself [_fan-out task]
  task)

;; Pulled by a lazy sequence

(defn- on-item
  "Returns the call of f on the item as a thunk to be called once. It does not hold the item while f
  runs."
  [f item]
  (^{:once true} fn* [] (f item)))

(defn- next-task!
  "Returns the task for the next item, or nil. An interrupt is thrown; any other throwable of the
  source or the wrap waits for its turn."
  [^FanOut fan-out f]
  (try
    (when-some [items (.pull fan-out)]
      (.task fan-out (on-item f (first items))))
    (catch InterruptedException t
      (throw t))
    (catch Throwable t
      (.setSourceFailure fan-out t)
      (.exhaust fan-out))))

(defn- start-next! [^FanOut fan-out f]
  (when-some [task (next-task! fan-out f)]
    (.start fan-out task)))

(defn- keep-up!
  "Starts one more task before one leaves, if the next item is at hand, so that work goes on beside
  a slow consumer. The pull also calls rest on the source."
  [^FanOut fan-out f]
  (when (.behind fan-out)
    (start-next! fan-out f)))

(defn- take!
  "Returns the next task to leave, or nil at the end."
  [^FanOut fan-out f]
  (loop []
    (case (fanout/decide fan-out)
      :leave (do (keep-up! fan-out f) (fanout/leave! fan-out))
      :start (do (start-next! fan-out f) (recur))
      :end (some-> (.sourceFailure fan-out) throw)
      :wait (do (fanout/await! fan-out) (recur)))))

(defn- lazily
  "Returns the results as a lazy seq. Unlike lazy-seq's its thunks can run again: a failed seq
  throws again."
  [^FanOut fan-out f emit]
  (LazySeq.
    (fn []
      (when-some [thrown (.thrown fan-out)]
        (throw (fanout/thrown-again fan-out thrown)))
      (fanout/failing fan-out
        (when-some [task (take! fan-out f)]
          (cons (emit fan-out task) (lazily fan-out f emit)))))))

;; Pushed by a transducing process

(defn- unless-room
  "Starts the thunk if there is room for it; returns it if there is none."
  [^FanOut fan-out thunk]
  (if (.room fan-out)
    (do (fanout/launch! fan-out thunk) nil)
    thunk))

(defn- leave-early! [^FanOut fan-out]
  (.setLeftEarly fan-out)
  (fanout/end! fan-out :reduced))

(defn- push!
  "Starts the thunk, as soon as there is room, and hands on what is ready."
  [^FanOut fan-out emit rf acc thunk]
  (fanout/failing fan-out
    (loop [acc acc, thunk (unless-room fan-out thunk)]
      (if (reduced? acc)
        (do (leave-early! fan-out) acc)
        (case (fanout/decide fan-out)
          :leave (recur (rf acc (emit fan-out (fanout/leave! fan-out))) thunk)
          :start (if thunk (recur acc (unless-room fan-out thunk)) acc)
          :wait (if thunk (do (fanout/await! fan-out) (recur acc thunk)) acc))))))

(defn- flush! [^FanOut fan-out emit rf acc]
  (fanout/failing fan-out
    (.exhaust fan-out)
    (loop [acc acc]
      (if (reduced? acc)
        (do (leave-early! fan-out) (unreduced acc))
        (case (fanout/decide fan-out)
          :leave (recur (rf acc (emit fan-out (fanout/leave! fan-out))))
          :end acc
          :wait (do (fanout/await! fan-out) (recur acc)))))))

(defn- feeding
  "Returns the reducing function that starts f on its inputs and hands to rf what leaves the
  fan-out."
  [fan-out emit f rf]
  (fn
    ([] (rf))
    ([acc] (rf (if (.leftEarly ^FanOut fan-out) acc (flush! fan-out emit rf acc))))
    ([acc item] (push! fan-out emit rf acc (on-item f item)))
    ([acc item & items]
     (push! fan-out emit rf acc (^{:once true} fn* [] (apply f item items))))))

;; The map family

(def ^:private emits
  "By the name of the order: what is handed out for a task that leaves."
  {:ordered fanout/result, :as-completed fanout/result, :as-started itself})

(defn- zipped
  "Returns the items of one or several collections, and f as a function of an item."
  [f [coll & colls]]
  (if colls
    [(apply map vector coll colls) #(apply f %)]
    [coll f]))

(defn results
  "Returns the results of f over the collections as a lazy seq, in the order that the options name."
  [{:keys [order], :as options} f colls]
  (let [fan-out (fanout/fan-out options)
        [items f] (zipped f colls)]
    (.setSource ^FanOut fan-out items)
    (lazily fan-out f (emits order))))

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
      (feeding (fanout/fan-out options) (emits order) f rf))))

(defn- eagerly
  "Reduces the tasks over the items with rf, in order of completion. Nothing runs any more when this
  returns or throws."
  [options f colls rf]
  (wait/check-state!)
  (let [fan-out (fanout/fan-out (assoc options :order :as-completed :window Long/MAX_VALUE))
        [items f] (zipped f colls)]
    (try
      (fanout/failing fan-out
        (transduce #(feeding fan-out itself f %) rf nil items))
      (finally (fanout/end! fan-out :ended)))))

(defn- put! [^ArrayList results ^ITask task]
  (while (<= (.size results) (.index task))
    (.add results nil))
  (.set results (.index task) (task/value task)))

(defn vector-of-results
  "Returns the results as a vector in the order of the input, when all have ended."
  [options f colls]
  (let [results (ArrayList.)]
    (eagerly options f colls (fn ([_]) ([_ task] (put! results task))))
    (vec (.toArray results))))

(defn run!
  "Calls f on every item, for its effects; returns nil when all have ended."
  [options f coll]
  (eagerly options f [coll] (fn ([_]) ([_ _]))))
