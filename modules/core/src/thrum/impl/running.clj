(ns thrum.impl.running
  "The tasks of a fan-out that run, in no order, so that a cancel finds them. One thread, the
  consumer, adds tasks; any thread may take them out, and cancel them."
  {:no-doc true}
  (:require
   [thrum.impl.cache-line :as cache-line]
   [thrum.impl.task])
  (:import
   (java.util.concurrent.atomic AtomicReferenceArray)
   (thrum.impl.task ITask)))

(set! *warn-on-reflection* true)

;; No protocol: it is called for every item, see decision 32.
(definterface IRunning
  (^Object add [task])
  (^Object forget [task])
  (all [])
  (^Object cancelAll [reason]))

(defn cancel-all!
  "Cancels the tasks in the slots."
  [^AtomicReferenceArray slots reason]
  (dotimes [i (.length slots)]
    (when-some [^ITask task (.get slots i)]
      (.cancelWith task reason true))))

(defn tasks
  "Returns the tasks in the slots that have not ended, as a vector."
  [^AtomicReferenceArray slots]
  (into []
        (comp (map #(.get slots (int %)))
              (filter #(and (some? %) (some? (.thread ^ITask %)))))
        (range (.length slots))))

(defn doubled
  "Returns slots of twice the length, with the same tasks in the same places."
  ^AtomicReferenceArray [^AtomicReferenceArray slots]
  (let [more (AtomicReferenceArray. (* 2 (.length slots)))]
    (dotimes [i (.length slots)]
      (.setPlain more i (.get slots i)))
    more))

;; Tasks that begin one after the other end at about the same time: their slots lie in cache lines
;; of their own. An odd step meets every slot.
(def ^:private ^:const step 17)

(defn- free-slot
  "Returns the first slot from the hand on whose task is gone or has ended; -1 where half of all
  slots have none."
  ^long [^AtomicReferenceArray slots ^long hand]
  (let [mask (dec (.length slots))]
    (loop [i 0]
      (if (<= mask (* 2 i))
        -1
        (let [slot (bit-and (+ hand (* (long step) i)) mask), ^ITask task (.get slots slot)]
          (if (or (nil? task) (some? (.outcome task)))
            slot
            (recur (inc i))))))))

;; slots: a power of two. hand: at its place, where the search for a free one begins. It goes round,
;; so that a search is short: at most half of the slots have tasks that run.
(deftype Running [^:volatile-mutable ^AtomicReferenceArray slots
                  ^longs hand]
  IRunning
  ;; A cancel sets its state before it reads the slots, and the consumer reads that state after this
  ;; volatile write: one of the two sees the other.
  (add [this task]
    (let [slot (free-slot slots (aget hand cache-line/place))]
      (if (neg? slot)
        (do (aset hand cache-line/place (long (.length slots)))
            (set! slots (doubled slots))
            (.add this task))
        (do (aset hand cache-line/place (+ slot (long step)))
            (.setSlot ^thrum.impl.task.Child task slot)
            (.set slots slot task)))))
  ;; Another task may have the slot by now.
  (forget [_ task]
    (.compareAndSet slots (.slot ^thrum.impl.task.Child task) task nil))
  (all [_] (tasks slots))
  (cancelAll [_ reason]
    (cancel-all! slots reason)))

(defn running
  "Returns an empty one."
  ^Running []
  (Running. (AtomicReferenceArray. 16) (cache-line/numbers)))
