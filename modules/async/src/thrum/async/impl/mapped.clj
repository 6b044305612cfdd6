(ns thrum.async.impl.mapped
  "The results of a function over a collection, in a channel: a pipeline whose input is the
  collection. A thread of its own reads the collection, so no result waits for the next item."
  {:no-doc true}
  (:require
   [clojure.core.async :as async]
   [thrum.async.impl.pipeline :as pipeline]
   [thrum.async.impl.port :as port]
   [thrum.core :as t]
   [thrum.spi :as spi]
   [thrum.spi.fan-out :as fan-out])
  (:import
   (java.util.concurrent.atomic AtomicReference)))

(set! *warn-on-reflection* true)

(defn- call [thunk]
  (thunk))

(defn- on-item
  "Returns the call of f on the item as a thunk to be called once. It does not hold the item while f
  runs. No channel could carry the item itself if it is nil."
  [f item]
  (^{:once true} fn* [] (f item)))

(defn- feed!
  "Puts a thunk for each item of coll into the channel, wrapped."
  [from wrap f coll]
  (reduce (fn [_ item] (port/put!! from (spi/wrapped-once wrap (on-item f item))) nil) nil coll))

(defn- noting
  "Returns a thunk, to be called once, that notes in ended how the thunk ends: :read, or what it
  throws. A wrap around it may swallow that."
  [^AtomicReference ended thunk]
  (^{:once true} fn* []
    (try
      (thunk)
      (.set ended :read)
      (catch Throwable t
        (.set ended t)
        (throw t)))))

(defn- not-read []
  (spi/invalid "The :wrap has not called its thunk, which reads the collection" {:option :wrap}))

(defn- check-read! [^AtomicReference ended]
  (let [end (.get ended)]
    (when-not (= :read end)
      (throw (or end (not-read))))))

(defn mapping
  "Returns a thunk, to be called once, that puts the results of f over coll into the channel. When
  it returns or throws, nothing of that runs any more. It throws the failure of f, or of coll, that
  is the first in the order of the items. Options: see thrum.async.impl.settings/mapping; :wrap is
  called here for coll, and on the thread that reads coll for each item."
  [{:keys [name wrap], :as options} to f coll]
  (let [f (fan-out/in-time options f)
        from (async/chan)
        ended (AtomicReference.)
        feed (spi/wrapped-once wrap
                               (noting ended (^{:once true} fn* [] (feed! from wrap f coll))))]
    (^{:once true} fn* []
      (spi/call-in-scope {:name name}
        (^{:once true} fn* [_]
          (let [done (pipeline/start! (dissoc options :wrap) from to call)
                source (spi/start-in-scope! {:name name, :on-end (fn [_] (async/close! from))}
                                            feed)]
            (some-> ^Throwable (port/take!! done) throw)
            ;; A failure of coll has waited for the results before it.
            (t/value source)
            (check-read! ended)))))))
