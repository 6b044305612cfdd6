(ns thrum.impl.fanout
  "A task for every item, or batch of items, at most limit of them at once. The thread that consumes
  the results starts the tasks, also while it waits for results: thrum.impl.map-family is that
  thread."
  {:no-doc true}
  (:require
   [thrum.impl.batch :as batch]
   [thrum.impl.cache-line :as cache-line]
   [thrum.impl.completion :as completion]
   [thrum.impl.context :as context]
   [thrum.impl.error :as error]
   [thrum.impl.failures :as failures]
   [thrum.impl.group :as group]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.order :as order]
   [thrum.impl.place :as place]
   [thrum.impl.registry :as registry]
   [thrum.impl.source :as source]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (java.util.concurrent Future)
   (java.util.concurrent.atomic AtomicLongArray AtomicReference)
   (thrum.impl.batch Batch Batches)
   (thrum.impl.context Context)
   (thrum.impl.failures Failures)
   (thrum.impl.group Group Members)
   (thrum.impl.source Source)
   (thrum.impl.task Failed ITask Task)))

(set! *warn-on-reflection* true)

;; No protocol: it is called for every item, see decision 32.
(definterface IFanOut
  (pull [])
  (^Object lookAhead [])
  (^boolean room [])
  (^boolean idle [])
  (^boolean more [])
  (^long started [])
  (task [work])
  (^Object start [task])
  (sourceFailure [])
  (^Object setSourceFailure [t])
  (consume [])
  (^boolean valueReady [])
  (goesOn [])
  (^Object letOthersRun [])
  (^Object consumerBack [])
  (^Object consumerGone [])
  (^long together [])
  (^Object exhaust [])
  (^boolean behind [])
  (^boolean isOver [])
  (^Object setOver [])
  (^Throwable thrown [])
  (^boolean interrupted [])
  (^Object setThrown [^Throwable t ^boolean interrupt]))

(def ^:private ^:const started-at cache-line/index)
(def ^:private ^:const ended-at cache-line/other-index)

;; The tasks, as their threads and those that cancel them see them. No field changes: threads that
;; end share no cache line with the fields of FanOut, which the consumer writes for every item.
;; counts: how many have started, which the consumer writes, and how many have ended.
(deftype Tasks [^Group group order ^Failures failures
                ^AtomicLongArray counts ^AtomicReference consumer on-ended]
  Members
  ;; What has ended first: a task that starts in between then counts as running.
  (running [_]
    (let [n (.get counts ended-at)]
      (- (.get counts started-at) n)))
  (added [_] (.get counts started-at))
  (tasks [_] (order/tasks order))
  (cancelAll [_ reason]
    (order/cancel-all order reason))

  completion/CompletionHandler
  (failed [_ task t]
    (.record failures (failures/of-task task t)))
  (ended [_ task]
    (try
      (order/ended order task)
      (finally
        (sync-point/reached :fan-out/task-ended)
        (.incrementAndGet counts ended-at)
        (wait/signal! consumer)
        (group/member-ended! group)
        (when on-ended (on-ended task))))))

(defn- start-added!
  "Starts the thread of a task that a cancel may not have found yet: it is seen here."
  [^Tasks tasks task ^Thread thread]
  (try
    (group/admit-member! (.-group tasks))
    (.start thread)
    (catch Throwable t
      (order/take-back (.-order tasks) task)
      (throw t))))

(defn- begin!
  "Runs the task on the thread, as the n-th of the fan-out."
  [^Tasks tasks ^Task task ^Thread thread ^long n]
  (let [^AtomicLongArray counts (.-counts tasks)]
    (.setThread task thread)
    (.lazySet counts started-at n)
    (try
      ;; It may have no memory for it.
      (order/started (.-order tasks) task)
      (start-added! tasks task thread)
      (catch Throwable t
        (.lazySet counts started-at (dec n))
        (group/member-ended! (.-group tasks))
        (throw t)))))

(def ^:private ^:const most-together
  "To start so many tasks, before their chunk leaves, takes some 0.1 ms."
  256)

;; Where the consumer's carrier alone runs virtual threads, others being busy, a consumer that parks
;; is woken by each task, and served first; one that yields comes back when all of them have run.
;; Where other carriers run the tasks, it comes back to none that has ended, and parks.

(def ^:private ^:const worth-it
  "How many tasks must end in a yield for the next wait to yield too, or limit of them."
  64)

(def ^:private ^:const parks-between
  "How many waits park at once before the next one yields."
  63)

(def ^:private ^:const quick-ns
  "The longest absence of a consumer who gets several results at a time. No task is started
  meanwhile."
  50000)

(defn next-together
  "Returns how many results may leave at a time, after so many, for a consumer who was away for so
  many ns. The number stays before the absence is too long."
  ^long [^long together ^long away ^long limit]
  (cond
    (< away (quot (long quick-ns) 2)) (max 1 (min (* 2 together) (long most-together)
                                                  (quot limit 2)))
    (< away (long quick-ns)) together
    :else 1))

;; The fields that only the consumer touches are not volatile: a LazySeq hands them from thread to
;; thread under its lock, a transducing process by its contract. batches: nil, or limit, window,
;; started and consumed count batches. together: how many results may leave at a time. gone: when
;; the consumer left with the last ones. goes-on: see goesOn; nil before the first wait. over:
;; a transducing process has ended, and hands on nothing more. thrown: what ended it; interrupted:
;; whether that was an interrupt of the consumer.
(deftype FanOut [^Context context ^Group group ^long limit ^long window
                 order ^Tasks tasks threads ^AtomicLongArray counts ^Batches batches on-done
                 ^Source source
                 ^:unsynchronized-mutable ^long ended-seen
                 ^:unsynchronized-mutable ^long together
                 ^:unsynchronized-mutable ^long gone
                 ^:unsynchronized-mutable more
                 ^:unsynchronized-mutable ^Throwable source-failure
                 ^:unsynchronized-mutable over
                 ^:unsynchronized-mutable ^long started
                 ^:unsynchronized-mutable ^long consumed
                 ^:unsynchronized-mutable goes-on
                 ^:unsynchronized-mutable ^long parks
                 ^:unsynchronized-mutable ^Throwable thrown
                 ^:unsynchronized-mutable interrupted]
  IFanOut
  ;; Returns the next item; nil also at the end, where more is false from then on.
  (pull [this]
    (let [item (.pull source)]
      (if (identical? source item) (.exhaust this) item)))
  (lookAhead [this]
    (when (.atEnd source) (.exhaust this)))
  (exhaust [_]
    (.close source)
    (set! more false)
    nil)
  ;; All carriers share the count of ended tasks: it is read only when the limit seems to be
  ;; reached.
  (room [_]
    (and more
         (or (< (- started ended-seen) limit)
             (do (set! ended-seen (.get counts ended-at))
                 (< (- started ended-seen) limit)))
         (< (- started consumed) window)
         (not (order/stopped? order))))
  ;; True if fewer than limit tasks are started and not consumed, there is room, and the next item
  ;; is at hand.
  (behind [this]
    (and (< (- started consumed) limit)
         (.atHand source)
         (.room this)))
  ;; With on-done a task without a value is counted as the others are. It has stopped the order
  ;; before that.
  (idle [_]
    (and (not more)
         (if on-done
           (and (= started (.get counts ended-at)) (not (order/stopped? order)))
           (= started consumed))))
  (more [_] (boolean more))
  (started [_] started)
  ;; work: a thunk, or a batch.
  (task [_ work]
    (if (instance? Batch work)
      (doto (task/task context work started (^{:once true} fn* [] (batch/call-all work)))
        (as-> task (batch/started! batches task work)))
      (task/task context tasks started work)))
  (start [_ task]
    (begin! tasks task (jdk/next-thread threads task) (inc started))
    (set! started (inc started))
    task)
  (consume [_]
    (when-some [task (order/next-task order)]
      (set! consumed (inc consumed))
      task))
  (valueReady [_] (order/value-ready? order))
  ;; Made once: a consumer waits for most items.
  (goesOn [this]
    (or goes-on
        (set! goes-on #(or (order/ready? order) (.room this) (.idle this)))))
  (letOthersRun [_]
    (if (pos? parks)
      (set! parks (dec parks))
      (let [ended (.get counts ended-at)]
        (Thread/yield)
        (when (< (- (.get counts ended-at) ended) (min limit (long worth-it)))
          (set! parks (long parks-between)))))
    nil)
  (consumerBack [_]
    (set! together
          (if (.chunked source) (next-together together (- (System/nanoTime) gone) limit) 1)))
  (consumerGone [_]
    (when (.chunked source) (set! gone (System/nanoTime))))
  (together [_] together)
  (isOver [_] over)
  (setOver [_] (set! over true))
  (sourceFailure [_] source-failure)
  (setSourceFailure [_ t] (set! source-failure t))
  (thrown [_] thrown)
  (interrupted [_] (boolean interrupted))
  (setThrown [_ t interrupt]
    (set! interrupted interrupt)
    (set! thrown t)))

(def ^:private orders
  "By name: a function of the group, the limit and on-done that makes an order."
  {:ordered (fn [_ _ _] (order/input-order))
   :as-completed (fn [group _ on-done] (order/completion-order group on-done))
   :as-started (fn [_ limit _] (order/start-order limit))})

(defn- tasks ^Tasks [group order on-ended]
  (Tasks. group order (failures/failures)
          (cache-line/atomic-numbers) (AtomicReference.) on-ended))

(defn- new-group
  "Returns the group of a fan-out. eager?: the calling thread ends it."
  ^Group [name eager?]
  (let [place (place/current), parent (some-> place .group)]
    (if eager?
      (group/opened-group name parent nil (some-> place .task) nil)
      (group/unique-group name parent))))

(defn fan-out
  "Returns a fan-out in the context of the calling thread that has started nothing yet. :on-ended -
  called with every task that has ended, on its thread and as the last thing there, for a consumer
  that does not wait. :on-done - for :as-completed, on a thread that calls end! in any case; see
  order/completion-order. Batches leave to the consumer all the same. :batch - how many items share
  a task, or nil; :window counts items. :clean-threads? - see thrum.spi.fan-out/fan-out. items: the
  collection that its consumer pulls from; nil where it is handed the items."
  ^FanOut [{:keys [order name limit window batch wrap clean-threads? on-ended on-done]} items]
  (let [group (new-group name (some? on-done))
        batches (batch/batches batch)
        on-done (when-not batches on-done)
        order ((orders order) group limit on-done)
        tasks (tasks group order on-ended)]
    (doto (FanOut. (context/capture wrap group)
                   (doto group (.setMembers tasks))
                   limit
                   (quot window (or batch 1))
                   order
                   tasks
                   (jdk/numbered-threads (group/thread-prefix group) (not clean-threads?))
                   (.-counts tasks)
                   batches
                   on-done
                   (source/source items)
                   0
                   1
                   (- (System/nanoTime) (long quick-ns))
                   true
                   nil
                   false
                   0
                   0
                   nil
                   0
                   nil
                   false)
      (->> (registry/keep! :fan-out)))))

(defn- failures-of ^Failures [^FanOut fan-out]
  (.-failures ^Tasks (.-tasks fan-out)))

;; What a task runs: a thunk, or a batch of thunks

(defn gathered
  "Returns the batch of the thunks that wait for others, or nil."
  [^FanOut fan-out]
  (when-some [batches (.-batches fan-out)]
    (batch/gathered batches (.started fan-out) (failures-of fan-out) (.-tasks fan-out))))

(defn gather!
  "Returns the next work, now that there is one more thunk; nil where the thunk waits for others."
  [^FanOut fan-out thunk]
  (if-some [batches (.-batches fan-out)]
    (when (batch/gather! batches thunk) (gathered fan-out))
    thunk))

(defn launch!
  "Starts the work, for which there is room."
  [^FanOut fan-out work]
  (.start fan-out (.task fan-out work)))

(defn batch-of
  "Returns the batch of a task that leaves, or nil."
  ^Batch [^FanOut fan-out task]
  (batch/of-task (.-batches fan-out) task))

;; How it ends

(defn- failure-of [fan-out ^ITask task]
  (let [outcome (.outcome task)]
    (when (instance? Failed outcome)
      (let [batch (batch-of fan-out task)]
        (cond-> (failures/of-task task (.-throwable ^Failed outcome))
          batch (assoc :index (batch/index-of-failure batch)))))))

(defn- interrupt?
  "True if the failure is an interrupt of the consumer, not what an item threw. The source runs on
  the consumer's thread: what it throws counts as the consumer's."
  [{:keys [throwable index]}]
  (and (nil? index) (instance? InterruptedException throwable)))

(defn- failure-to-throw
  "Returns the failure to throw. If a failed task has already stopped the fan-out, as in upmap,
  pmapv and prun!, the earliest recorded one; otherwise the one just met. An interrupt is always
  thrown itself."
  [^FanOut fan-out failure]
  (let [broken (order/broken (.-order fan-out))]
    (if (or (nil? broken) (interrupt? failure))
      failure
      (or (failures/root (failures-of fan-out))
          ;; There was no memory to record it.
          (failure-of fan-out broken)))))

(defn end!
  "Cancels what runs and waits until it has ended."
  [^FanOut fan-out reason]
  (try
    (group/cancel! (.-group fan-out) reason)
    (finally
      (group/join! (.-group fan-out))
      (group/leave! (.-group fan-out)))))

(defn thrown-again
  "Returns what a fan-out throws that has failed before. An interrupt of the consumer is not thrown
  again: it was another thread's, or is over."
  ^Throwable [^FanOut fan-out ^Throwable thrown]
  (if (.interrupted fan-out)
    (error/cancelled (group/group-name (.-group fan-out)) :interrupted thrown)
    thrown))

(defn fail!
  "Ends the fan-out and returns what it throws from now on."
  ^Throwable [^FanOut fan-out failure]
  (if-some [thrown (.thrown fan-out)]
    ;; A throwable passes here again on its way out.
    (if (identical? thrown (:throwable failure)) thrown (thrown-again fan-out thrown))
    (let [failure (try (failure-to-throw fan-out failure) (finally (end! fan-out :failed)))]
      (doto (failures/merged failure (failures-of fan-out))
        (as-> thrown (.setThrown fan-out thrown (interrupt? failure)))))))

(defmacro failing
  "Runs the body for the consumer; an exception of it ends the fan-out."
  [fan-out & body]
  `(try
     ~@body
     (catch Throwable t#
       (throw (fail! ~fan-out {:throwable t#})))))

;; The consumer's next step

(defn decide
  "Returns :leave, :start, :end or :wait. A task that is due leaves before the source is pulled
  again, so a due result waits for no lazy item. One exception: thrum.impl.map-family/keep-up!
  starts tasks first, for items that are at hand."
  [^FanOut fan-out]
  (let [order (.-order fan-out)]
    (group/check-going-on! (group/parent (.-group fan-out)))
    (cond
      (order/due? order) :leave
      ;; It may have ended since, and made the room.
      (.room fan-out) (if (order/due? order) :leave :start)
      (order/ready? order) :leave
      (do (sync-point/reached :fan-out/not-ready) (.idle fan-out)) :end
      :else :wait)))

(defn await!
  "Waits until there is another step than to wait."
  [^FanOut fan-out]
  (when (.isVirtual (Thread/currentThread)) (.letOthersRun fan-out))
  (wait/await-signal! (.-group fan-out)
    (.-consumer ^Tasks (.-tasks fan-out))
    nil
    (.goesOn fan-out)))

(defn leave!
  "Takes the next task to leave out of the order."
  [^FanOut fan-out]
  (or (.consume fan-out)
      ;; A failure ended all. A task may have finished without publishing its result yet.
      (do (end! fan-out :failed)
          (.consume fan-out))
      (group/check-going-on! (.-group fan-out))))

(defn result
  "Returns the value of a task that leaves. If it failed, so does the fan-out; if it was cancelled,
  the group was."
  [^FanOut fan-out ^ITask task]
  (when-some [failure (failure-of fan-out task)]
    (throw (fail! fan-out failure)))
  (when (.isCancelled ^Future task)
    (group/check-going-on! (.-group fan-out)))
  (task/value task))

(defn end-of-batch!
  "Lets go of the batch of a task that leaves. Unless each of its thunks has a value, throws as
  result does."
  [^FanOut fan-out batch task]
  (when-not (batch/whole? batch task)
    (result fan-out task)
    (throw (batch/not-called batch)))
  (batch/left! (.-batches fan-out) task))

(defn reduce-batch
  "Reduces the values of a batch that leaves with (f acc index value). Its failure is thrown after
  those before it."
  [fan-out batch task f acc]
  (let [acc (batch/reduce-values batch task f acc)]
    (when-not (reduced? acc) (end-of-batch! fan-out batch task))
    acc))

;; Polled by a consumer that does not wait

(defn poll!
  "Calls f with the next result, or each of the next batch; returns whether there was one. Throws
  the failure that ended the fan-out, when nothing runs any more. See thrum.spi.fan-out/poll!."
  [^FanOut fan-out f]
  (let [ready (order/ready? (.-order fan-out))]
    (when ready
      (failing fan-out
        (let [task (leave! fan-out)]
          (if-some [batch (batch-of fan-out task)]
            (reduce-batch fan-out batch task (fn [_ _ value] (f value) nil) nil)
            (f (result fan-out task))))))
    ready))
