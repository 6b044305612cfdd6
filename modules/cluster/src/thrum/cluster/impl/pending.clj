(ns thrum.cluster.impl.pending
  "The requests whose answers this node waits for, a ConcurrentHashMap from run to Pending: which
  are for a member, which cancels have missed their run, and which answers are lost."
  {:no-doc true}
  (:import
   (java.util.concurrent CompletableFuture ConcurrentHashMap Future$State TimeoutException)
   (java.util.concurrent.atomic AtomicLong AtomicReference)))

(set! *warn-on-reflection* true)

;; cancel: nil, or a CompletableFuture of whether the member has stopped the run; unanswered: how
;; many cancels had no answer in time; absent: how often in a row the member has said that it does
;; not run it.
(deftype Pending [worker function ^CompletableFuture answer ^AtomicReference cancel
                  ^AtomicLong unanswered ^AtomicLong absent])

(defn pending
  "Returns a request to the member that has no answer yet. function: a name for it."
  ^Pending [worker function]
  (Pending. worker function (CompletableFuture.) (AtomicReference.) (AtomicLong.) (AtomicLong.)))

(defn waits-for?
  "Returns whether one of those that are pending is for the member."
  [^ConcurrentHashMap all member]
  (boolean (some #(= member (.-worker ^Pending %)) (.values all))))

(defn by-member
  "Returns those that are pending as vectors of entries, by member."
  [^ConcurrentHashMap all]
  (group-by #(.-worker ^Pending (val %)) all))

(defn shown
  "Returns what thrum.watch shows of a request that is waited for."
  [^Pending pending]
  {:name (str (.-function pending) " on " (.-worker pending))
   :state (if (.get ^AtomicReference (.-cancel pending)) :cancelled :running)
   :member (.-worker pending)})

(defn cancel-again?
  "Returns whether the run was cancelled, and the member had no such run then, or has not answered."
  [^Pending pending]
  (when-some [^CompletableFuture cancel (.get ^AtomicReference (.-cancel pending))]
    (and (.isDone cancel)
         (not (and (= Future$State/SUCCESS (.state cancel)) (.resultNow cancel))))))

;; Where many runs are cancelled at once, members answer late: repeats would hold them up more.

(def ^:private ^:const cancel-ms "For how long the first cancel is not sent again." 2000)

(def ^:private ^:const most-doublings 3)

(defn next-cancel-ms
  "Returns for how long the next cancel is not sent again without an answer: twice as long after
  each that had none in its time, 16 s at most. One that could not be sent holds up no member."
  ^long [^Pending pending]
  (let [^CompletableFuture cancel (.get ^AtomicReference (.-cancel pending))
        ^AtomicLong unanswered (.-unanswered pending)]
    (when (and cancel
               (= Future$State/FAILED (.state cancel))
               (instance? TimeoutException (.exceptionNow cancel)))
      (.incrementAndGet unanswered))
    (bit-shift-left cancel-ms (min most-doublings (.get unanswered)))))

(defn fail!
  "Ends the wait for the answer."
  [^Pending pending sentence]
  (.completeExceptionally ^CompletableFuture (.-answer pending)
                          (ex-info sentence {:member (.-worker pending)})))

;; An answer is lost where the members had put this node out of the cluster, as one that was frozen,
;; or where there was no memory for it. One on its way may be passed by what is said here, and a
;; request by what is asked: once is no proof. A greeting, which is no run, has a shorter time.

(defn count-absences!
  "Counts those of the entries whose run is not in the set that their member says it runs; nil: it
  has not said. Ends the wait for one that was not there so many times in a row."
  [entries runs most]
  (doseq [[run ^Pending pending] entries
          :let [^AtomicLong absent (.-absent pending)]]
    (cond
      (or (nil? runs) (runs run)) (.set absent 0)
      (<= (long most) (.incrementAndGet absent))
      (fail! pending "The member does not run it, and no answer has come"))))
