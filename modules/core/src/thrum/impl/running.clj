(ns thrum.impl.running
  "The children that run, in no order, so that a cancel finds them. One thread at a time adds some:
  the consumer of a fan-out, or one that holds the lock of a group. Any thread may take them out,
  and cancel them, without a lock."
  {:no-doc true}
  (:require
   [thrum.impl.cache-line :as cache-line]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.task])
  (:import
   (java.util ArrayList)
   (java.util.concurrent.atomic AtomicLongArray AtomicReferenceArray)
   (thrum.impl.task Child ITask)))

(set! *warn-on-reflection* true)

;; No protocol: it is called for every item, see decision 32.
(definterface IRunning
  (^Object add [child])
  (^boolean forget [child])           ; false: it is out
  (^boolean holds [child])
  (tasks [])
  (^Object cancelAll [reason])
  (children []))

(defn- held
  "Returns the child in the slot, or nil. A slot whose child has moved has the slots where it is
  now, at the same index."
  [^AtomicReferenceArray slots ^long i]
  (let [x (.get slots i)]
    (if (instance? AtomicReferenceArray x) (recur x i) x)))

(defn cancel-all!
  "Cancels the tasks in the slots."
  [^AtomicReferenceArray slots reason]
  (dotimes [i (.length slots)]
    (when-some [^ITask task (held slots i)]
      (.cancelWith task reason true))))

(defn tasks
  "Returns the tasks in the slots that have not ended, as a vector."
  [^AtomicReferenceArray slots]
  (into []
        (comp (map #(held slots %))
              (filter #(and (some? %) (some? (.thread ^ITask %)))))
        (range (.length slots))))

(defn- children
  "Returns the children in the slots, as a list."
  ^ArrayList [^AtomicReferenceArray slots]
  (let [all (ArrayList.)]
    (dotimes [i (.length slots)]
      (when-some [child (held slots i)] (.add all child)))
    all))

(defn- move!
  "Moves the child of a slot, unless it leaves first: one compare-and-set in the old slot decides."
  [^AtomicReferenceArray slots ^AtomicReferenceArray more i]
  (let [child (.get slots i)]
    (.set more i child)
    (sync-point/reached :running/move)
    (when-not (.compareAndSet slots i child more)
      (recur slots more i))))

(defn- doubled
  "Returns slots of twice the length, to which the children have moved."
  ^AtomicReferenceArray [^AtomicReferenceArray slots]
  (let [more (AtomicReferenceArray. (* 2 (.length slots)))]
    (dotimes [i (.length slots)]
      (move! slots more i))
    more))

(def ^:private ^:const hand-at cache-line/index)

;; Tasks that begin one after the other end at about the same time: their slots lie in cache lines
;; of their own. An odd step meets every slot.
(def ^:private ^:const step 17)

(defn- free-slot
  "Returns the first slot from the hand on whose child is gone; -1 where half of all slots have
  none."
  ^long [^AtomicReferenceArray slots ^long hand]
  (let [mask (dec (.length slots))]
    (loop [i 0]
      (if (<= mask (* 2 i))
        -1
        (let [slot (bit-and (+ hand (* (long step) i)) mask), ^Child child (.get slots slot)]
          (if (or (nil? child) (.isGone child))
            slot
            (recur (inc i))))))))

;; slots: a power of two. numbers: see thrum.impl.cache-line; the first is the hand, where the
;; search for a free slot begins. It goes round, so that a search is short: at most half of the
;; slots have children that run. All others are for the owner.
(deftype Running [^:volatile-mutable ^AtomicReferenceArray slots
                  ^AtomicLongArray numbers]
  IRunning
  ;; A cancel sets its state before it reads the slots, and the thread that adds reads that state
  ;; after this volatile write: one of the two sees the other.
  (add [this child]
    (let [slot (free-slot slots (.getPlain numbers hand-at))]
      (if (neg? slot)
        (do (.setPlain numbers hand-at (.length slots))
            (set! slots (doubled slots))
            (.add this child))
        (do (.setPlain numbers hand-at (+ slot (long step)))
            (.setSlot ^Child child slot)
            (.set slots slot child)))))
  ;; Another may have its slot by now.
  (forget [_ child]
    (let [slot (.slot ^Child child)]
      (and (<= 0 slot)
           (loop [slots slots]
             (or (.compareAndSet slots slot child nil)
                 (let [x (.get slots slot)]
                   (and (instance? AtomicReferenceArray x)
                        (recur ^AtomicReferenceArray x))))))))
  (holds [_ child]
    (let [slot (.slot ^Child child)]
      (and (<= 0 slot)
           (identical? child (held slots slot)))))
  (tasks [_] (tasks slots))
  (cancelAll [_ reason]
    (cancel-all! slots reason))
  (children [_] (children slots)))

(defn running
  "Returns an empty one."
  ^Running []
  ;; The slots first: the numbers, whose ends are not written, lie between them and what all read.
  (let [slots (AtomicReferenceArray. 16)]
    (Running. slots (cache-line/atomic-numbers))))
