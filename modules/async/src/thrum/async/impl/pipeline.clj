(ns thrum.async.impl.pipeline
  "Pipelines: from one channel to another through a job, a task for every item. A pipeline holds
  no thread while it waits. An event starts a thread that takes the next steps and ends, or uses
  that of a task which has just ended. So nothing of an abandoned pipeline runs, and it can be
  collected."
  {:no-doc true}
  (:require
   [clojure.core.async :as async]
   [clojure.core.async.impl.protocols :as impl]
   [thrum.async.impl.handler :as handler]
   [thrum.async.impl.job :as job]
   [thrum.spi :as spi]
   [thrum.spi.fan-out :as fanout])
  (:import
   (java.util Iterator List)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (thrum.async.impl.handler Once)))

(set! *warn-on-reflection* true)

(declare call-off! signal!)

;; events: how many events the thread that takes the steps has not seen. called-off: why the
;; pipeline ends before its input does; :over at the end. taking: the take that waits at `from`,
;; or whose value is in taken. putting: the put that waits for an answer of `to`, or the answer.
;; outputs: those of an item, or a batch, that are still to be put. failure: what comes after them,
;; or nil. took: how many items were taken. put: how many values `to` accepted. done: the channel
;; that delivers the totals. loader: the caller's context class loader.
(deftype Pipeline [fan-out options from to job counts done ^ClassLoader loader
                   ^AtomicReference attachment
                   ^AtomicLong events ^AtomicReference called-off
                   ^AtomicReference taking ^AtomicReference taken
                   ^AtomicReference putting ^AtomicReference outputs ^AtomicReference failure
                   ^AtomicLong took ^AtomicLong put])

;; One step after another. Callbacks of the channels come on any thread, sometimes under a channel's
;; lock.

(defn- called-off [^Pipeline pipeline]
  (.get ^AtomicReference (.-called-off pipeline)))

(defn- taken! [^Pipeline pipeline v]
  (.set ^AtomicReference (.-taken pipeline) (if (nil? v) ::closed v)))

(defn- begin-take!
  "Begins a take from `from`. Returns a box of a value that was there at once, or nil."
  [^Pipeline pipeline]
  (let [once (handler/once)]
    (.set ^AtomicReference (.-taking pipeline) once)
    ;; A concurrent call-off! revokes this take, or is seen here.
    (if (called-off pipeline)
      (do (handler/revoke! once) nil)
      (impl/take! (.-from pipeline)
                  (handler/handler once #(do (taken! pipeline %) (signal! pipeline)))))))

(defn- load-with!
  "Sets the calling thread's context class loader."
  [loader]
  (.setContextClassLoader (Thread/currentThread) loader))

(defn- launch! [^Pipeline pipeline v]
  (let [job (.-job pipeline), loader (.-loader pipeline)]
    (fanout/launch! (.-fan-out pipeline)
                    (^{:once true} fn* []
                      (load-with! loader)
                      (job v)))))

(defn- accept! [^Pipeline pipeline v]
  (if (identical? ::closed v)
    (fanout/exhaust! (.-fan-out pipeline))
    (do (.incrementAndGet ^AtomicLong (.-took pipeline))
        (launch! pipeline v))))

(defn- take-item!
  "Starts a task for the next item, if it is at hand and there is room. Returns whether it was."
  [^Pipeline pipeline]
  (let [^AtomicReference taken (.-taken pipeline)
        ^AtomicReference taking (.-taking pipeline)]
    (when (and (nil? (.get taking)) (fanout/room? (.-fan-out pipeline)))
      (when-some [box (begin-take! pipeline)] (taken! pipeline @box)))
    (when-some [v (.getAndSet taken nil)]
      (.set taking nil)
      (accept! pipeline v)
      true)))

(defn- take-items!
  "Starts a task for every item that is at hand, as long as there is room."
  [pipeline]
  (while (take-item! pipeline)))

(defn- put-output!
  [^Pipeline pipeline v]
  (let [once (handler/once), ^AtomicReference putting (.-putting pipeline)]
    (.set putting once)
    ;; A concurrent call-off! revokes this put, or is seen here.
    (when-not (called-off pipeline)
      (let [answered #(do (.set putting (boolean %)) (signal! pipeline))]
        (when-some [box (impl/put! (.-to pipeline) v (handler/handler once answered))]
          (.set putting (boolean @box)))))))

(defn- check-outputs [outputs]
  (when-not (instance? List outputs)
    (throw (spi/invalid (str "A pipeline's :wrap must return what its thunk returns, a list, not "
                             (spi/text outputs))
             {:option :wrap, :value outputs, :accepts "a list"}))))

(defn- poll-outputs!
  "Returns the outputs of the next due item, or batch; nil where none is due. A failure is thrown,
  but where it comes after outputs of its batch: then it waits for them."
  ^List [^Pipeline pipeline]
  (let [due (volatile! nil)
        add! (fn [outputs]
               (check-outputs outputs)
               (if-some [before @due]
                 (.addAll ^List before outputs)
                 (vreset! due outputs)))]
    (try
      (fanout/poll! (.-fan-out pipeline) add!)
      (catch Throwable t
        (when-not @due (throw t))
        (.set ^AtomicReference (.-failure pipeline) t)))
    @due))

(defn- next-outputs!
  "Makes the outputs that are due next current. Returns whether there are any. Throws the failure
  that waited for its turn."
  [^Pipeline pipeline]
  (some-> ^Throwable (.get ^AtomicReference (.-failure pipeline)) throw)
  (when-some [outputs (poll-outputs! pipeline)]
    (.set ^AtomicReference (.-outputs pipeline) (.iterator outputs))
    true))

(defn- put-outputs!
  "Puts due outputs into `to`, as long as it accepts them at once."
  [^Pipeline pipeline]
  (let [^AtomicReference putting (.-putting pipeline)
        ^AtomicReference current (.-outputs pipeline)]
    (loop []
      (let [answer (.get putting), ^Iterator outputs (.get current)]
        (when (true? answer)
          (.set putting nil)
          (.incrementAndGet ^AtomicLong (.-put pipeline)))
        (cond
          (instance? Once answer) nil
          (false? answer) (call-off! pipeline :to-closed)
          (nil? outputs) (when (next-outputs! pipeline) (recur))
          (.hasNext outputs) (do (put-output! pipeline (.next outputs)) (recur))
          :else (do (.set current nil) (recur)))))))

(defn- put-before-take!
  "As put-outputs!, and starts tasks as long as no output waits at `to`."
  [^Pipeline pipeline]
  (put-outputs! pipeline)
  (when (and (nil? (.get ^AtomicReference (.-putting pipeline)))
             (take-item! pipeline))
    (recur pipeline)))

(defn- take-and-put!
  "As put-outputs!, and starts tasks also while an output waits at `to`."
  [pipeline]
  ;; An ended task makes room for a call before its result has been put.
  (take-items! pipeline)
  (put-outputs! pipeline)
  (take-items! pipeline))

(defn- finished? [^Pipeline pipeline]
  (and (fanout/idle? (.-fan-out pipeline))
       (nil? (.get ^AtomicReference (.-outputs pipeline)))))

(defn- deliver!
  "Puts v, unless it is nil, into the channel, which has room for it, and closes it."
  [channel v]
  (when (some? v) (async/put! channel v))
  (async/close! channel))

(defn- report
  "Returns what the pipeline's channel delivers at its end. t: the throwable that ended it, or
  nil."
  [^Pipeline pipeline t]
  (or t
      (when-not (:silent? (.-options pipeline))
        (assoc (job/totals (.-counts pipeline))
               :taken (.get ^AtomicLong (.-took pipeline))
               :put (.get ^AtomicLong (.-put pipeline))))))

(defn- close-output!
  "Closes `to`, unless :close? is false. Returns what that throws, or nil."
  [^Pipeline pipeline]
  (try
    (when (:close? (.-options pipeline)) (async/close! (.-to pipeline)))
    (catch Throwable t
      t)))

(defn- attachment [^Pipeline pipeline]
  (.get ^AtomicReference (.-attachment pipeline)))

(defn- complete!
  "Ends the pipeline when nothing of it runs any more. t: the throwable that ended it, or nil."
  [^Pipeline pipeline t]
  (.set ^AtomicReference (.-called-off pipeline) :over)
  (handler/unwatch-close! (.-to pipeline) pipeline)
  (let [not-closed (close-output! pipeline)]
    (deliver! (.-done pipeline) (report pipeline (or t not-closed))))
  (spi/detach! (attachment pipeline))
  (handler/sweep! (.-from pipeline)))

(defn- take-to-come?
  "True if a take has been committed whose value is still to come."
  [^Pipeline pipeline]
  (let [once (.get ^AtomicReference (.-taking pipeline))]
    (and (some? once)
         (handler/committed? once)
         (nil? (.get ^AtomicReference (.-taken pipeline))))))

(defn- count-last-take!
  "Counts the item that a pipeline took whose call did not begin any more."
  [^Pipeline pipeline]
  (let [v (.getAndSet ^AtomicReference (.-taken pipeline) nil)]
    (when-not (or (nil? v) (identical? ::closed v))
      (.incrementAndGet ^AtomicLong (.-took pipeline)))))

(defn- count-last-put!
  "Counts the put of a pipeline that was called off, if it came about."
  [^Pipeline pipeline]
  (let [answer (.get ^AtomicReference (.-putting pipeline))]
    (when (if (instance? Once answer) (handler/committed? answer) answer)
      (.incrementAndGet ^AtomicLong (.-put pipeline)))))

(defn- wind-up!
  "Cancels what runs, waits until it has ended, and ends the pipeline: without a t only when the
  value of a committed take has come, which is an event."
  [^Pipeline pipeline t]
  (fanout/end! (.-fan-out pipeline) :pipeline-ended)
  (when (or t (not (take-to-come? pipeline)))
    (count-last-take! pipeline)
    (count-last-put! pipeline)
    (handler/sweep! (.-to pipeline))
    (complete! pipeline t)))

(defn- cancelled? [^Pipeline pipeline t]
  (and (= :thrum/closed (spi/type-of t))
       (some-> (attachment pipeline) spi/scope-ended?)))

(defn- fail! [^Pipeline pipeline t]
  (call-off! pipeline :failed)
  (wind-up! pipeline (when-not (cancelled? pipeline t) t)))

(defn- step! [^Pipeline pipeline]
  (case (called-off pipeline)
    nil (when (try
                (if (:on-demand? (.-options pipeline))
                  (put-before-take! pipeline)
                  (take-and-put! pipeline))
                (finished? pipeline)
                (catch Throwable t
                  (fail! pipeline t)
                  false))
          (complete! pipeline nil))
    :over nil
    (wind-up! pipeline nil)))

(defn- take-steps!
  "Takes steps until all events have been seen."
  [^Pipeline pipeline]
  (let [^AtomicLong events (.-events pipeline)]
    (loop [seen (.get events)]
      (step! pipeline)
      (let [more (.addAndGet events (- seen))]
        (when (pos? more) (recur more))))))

(defn- take-steps-after!
  "Has the calling thread take the next steps after the task that has ended on it (nil: none)."
  [^Pipeline pipeline task]
  (fanout/go-on! (.-fan-out pipeline) task)
  (load-with! (.-loader pipeline))
  (take-steps! pipeline))

(defn- go-on!
  "Starts a thread that takes the next steps."
  [^Pipeline pipeline]
  (try
    (.start (spi/clean-thread (fanout/id (.-fan-out pipeline))
                              #(take-steps-after! pipeline nil)))
    (catch Throwable _
      ;; No memory for a thread.
      (take-steps! pipeline))))

(defn- first-event?
  "Counts an event. Returns true if no thread takes steps now."
  [^Pipeline pipeline]
  (zero? (.getAndIncrement ^AtomicLong (.-events pipeline))))

(defn- signal!
  "Counts an event and starts a thread for the next steps, if none takes steps now."
  [^Pipeline pipeline]
  (when (first-event? pipeline)
    (go-on! pipeline)))

(defn- ended!
  "Counts the end of a task, whose thread takes the next steps, if none takes steps now."
  [^Pipeline pipeline task]
  (when (first-event? pipeline)
    (take-steps-after! pipeline task)))

(defn- revoke-put! [^Pipeline pipeline]
  (let [answer (.get ^AtomicReference (.-putting pipeline))]
    (when (instance? Once answer) (handler/revoke! answer))))

(defn- withdraws?
  "True if what waits at `to` is withdrawn when the pipeline ends for this reason."
  [^Pipeline pipeline reason]
  (or (:on-demand? (.-options pipeline))
      (not= :to-closed reason)))

(defn- call-off!
  "Ends the pipeline for this reason. From now on it takes nothing from `from`, and offers nothing
  to `to`, but for what waits there when that is closed: as in core.async, it can still be taken,
  unless the pipeline is :on-demand?."
  [^Pipeline pipeline reason]
  (when (.compareAndSet ^AtomicReference (.-called-off pipeline) nil reason)
    (some-> (.get ^AtomicReference (.-taking pipeline)) handler/revoke!)
    (when (withdraws? pipeline reason) (revoke-put! pipeline))
    (signal! pipeline)))

;; How it begins

(defn start!
  "Starts a pipeline in the calling thread's scope, if there is one, and returns a channel that
  closes when it has ended. Options: those of a fan-out; :job, :on-error - what is done with an
  item; :close? - whether `to` is closed; :silent? - whether the channel delivers no totals;
  :on-demand? - whether no task starts while an output waits at `to`, which is withdrawn when that
  is closed."
  [{:keys [job on-error], :as options} from to f]
  (let [closed? (impl/closed? to)
        self (AtomicReference.)
        fan-out (fanout/fan-out (assoc options
                                  :clean-threads? true
                                  :on-ended #(ended! (.get self) %)))
        counts (job/counts)
        pipeline (Pipeline. fan-out
                            options
                            from
                            to
                            (job counts (job/rule on-error) f)
                            counts
                            (async/chan 1)
                            (.getContextClassLoader (Thread/currentThread))
                            (AtomicReference.)
                            (AtomicLong. 1)
                            (AtomicReference.)
                            (AtomicReference.)
                            (AtomicReference.)
                            (AtomicReference.)
                            (AtomicReference.)
                            (AtomicReference.)
                            (AtomicLong.)
                            (AtomicLong.))]
    (.set self pipeline)
    (.set ^AtomicReference (.-attachment pipeline) (spi/attach! #(call-off! pipeline :cancelled)))
    (handler/watch-close! to pipeline #(call-off! pipeline :to-closed))
    (when closed? (call-off! pipeline :to-closed))
    ;; The first event is the start itself: the pipeline cannot be over before it is watched.
    (go-on! pipeline)
    (.-done pipeline)))
