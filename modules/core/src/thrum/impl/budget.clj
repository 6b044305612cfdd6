(ns thrum.impl.budget
  "How many retries callers may make together, as a part of their calls: a store of tokens without a
  clock. A call adds a part of a token, a retry takes a whole one."
  {:no-doc true}
  (:require
   [clojure.core.protocols :as protocols])
  (:import
   (java.util.concurrent.atomic AtomicLong)
   (java.util.function LongUnaryOperator)))

(set! *warn-on-reflection* true)

(def ^:private ^:const token "Parts of a token." 1000000)

(def ^:private largest "More parts cannot be added up." (quot Long/MAX_VALUE 2))

(defn- update! ^long [^AtomicLong number ^LongUnaryOperator f]
  (.getAndUpdate number f))

;; tokens: in parts. deposit: of a call, in parts.
(deftype Budget [ratio ^long deposit ^long most ^AtomicLong tokens ^AtomicLong refused]
  protocols/Datafiable
  (datafy [_]
    {:ratio ratio
     :burst (quot most (long token))
     :retries (quot (.get tokens) (long token))
     :refused (.get refused)}))

(defn budget
  "Returns a budget that begins with a burst of retries, and holds no more of them. ratio: retries
  for a call, from 0 to 1."
  ^Budget [ratio burst]
  (let [most (long (min (long largest) (*' burst (long token))))]
    (Budget. ratio (long (* (double ratio) (long token))) most (AtomicLong. most) (AtomicLong.))))

(defn budget?
  "True if x is a budget."
  [x]
  (instance? Budget x))

(defn called!
  "Counts a call."
  [^Budget budget]
  (let [deposit (.-deposit budget), most (.-most budget)]
    (update! (.-tokens budget)
             (reify LongUnaryOperator (applyAsLong [_ tokens] (min most (+ tokens deposit)))))))

(defn retry?
  "Takes a retry out of the budget; returns false where there is none."
  [^Budget budget]
  (let [before (update! (.-tokens budget)
                        (reify LongUnaryOperator
                          (applyAsLong [_ tokens]
                            (if (<= (long token) tokens) (- tokens (long token)) tokens))))
        granted (<= (long token) before)]
    (when-not granted (.incrementAndGet ^AtomicLong (.-refused budget)))
    granted))

(defmethod print-method Budget [budget ^java.io.Writer w]
  (.write w "#<retry-budget ")
  (print-method (protocols/datafy budget) w)
  (.write w ">"))
