(ns thrum.impl.batch
  "Thunks that share a task: it calls one after the other, on one thread."
  {:no-doc true}
  (:require
   [thrum.impl.completion :as completion]
   [thrum.impl.error :as error]
   [thrum.impl.failures :as failures]
   [thrum.impl.place :as place]
   [thrum.impl.task]
   [thrum.impl.wait :as wait])
  (:import
   (clojure.lang ArrayChunk)
   (java.util ArrayList HashMap)
   (java.util.concurrent.atomic AtomicLong)
   (thrum.impl.failures Failures)
   (thrum.impl.place Place)
   (thrum.impl.task Done Failed ITask)))

(set! *warn-on-reflection* true)

(declare index-of-failure)

;; The handler of its task. slots: the thunks, each replaced by its value. called: how many have
;; one; the task's outcome publishes it. index: that of the first among all thunks of the fan-out.
(deftype Batch [^objects slots ^AtomicLong called ^long index ^Failures failures handler]
  completion/CompletionHandler
  (failed [this task t]
    (.record failures (assoc (failures/of-task task t) :index (index-of-failure this))))
  (ended [_ task]
    (completion/ended handler task)))

(defn- size ^long [^Batch batch]
  (alength ^objects (.-slots batch)))

(defn index-of-failure
  "Returns the index of the thunk that failed; of the last, where the wrap failed after it."
  ^long [^Batch batch]
  (+ (.-index batch) (min (.get ^AtomicLong (.-called batch)) (dec (size batch)))))

;; What a fan-out with batches has, for its consumer alone. size: of a full one. gathered: the
;; thunks of the next. started: by task, the batches that have not left.
(deftype Batches [^long size ^ArrayList gathered ^HashMap started])

(defn batches
  "Returns the batches of a fan-out, of so many thunks each; nil for 1 or nil."
  ^Batches [size]
  (when (and size (< 1 (long size)))
    (Batches. size (ArrayList.) (HashMap.))))

(defn gather!
  "Adds a thunk. Returns whether the batch is full."
  [^Batches batches thunk]
  (let [^ArrayList thunks (.-gathered batches)]
    (.add thunks thunk)
    (= (.-size batches) (.size thunks))))

(defn gathered
  "Returns a batch of the thunks that were gathered, and lets go of them; nil for none. n: how many
  batches were started before; handler: of the end of its task."
  ^Batch [^Batches batches n failures handler]
  (let [^ArrayList thunks (.-gathered batches)]
    (when-not (.isEmpty thunks)
      (let [slots (.toArray thunks)]
        (.clear thunks)
        (Batch. slots (AtomicLong.) (* (long n) (.-size batches)) failures handler)))))

(defn started!
  "Keeps the batch of a task."
  [^Batches batches task batch]
  (.put ^HashMap (.-started batches) task batch))

(defn of-task
  "Returns the batch of a task, or nil."
  ^Batch [^Batches batches task]
  (when batches (.get ^HashMap (.-started batches) task)))

(defn left!
  "Lets go of the batch of a task."
  [^Batches batches task]
  (.remove ^HashMap (.-started batches) task))

;; On the thread of its task

(defn- thunk! [^objects slots ^long i]
  (let [thunk (aget slots i)]
    (aset slots i nil)
    thunk))

(defn- check-cancel!
  "Throws where the task was cancelled meanwhile; drops an interrupt that was left behind: the next
  thunk must not meet it."
  [^Place place]
  (Thread/interrupted)
  (when (some-> place .cancelReason) (wait/check-state!)))

(defn call-all
  "Calls the thunks one after the other, up to the first that throws or until the task is
  cancelled."
  [^Batch batch]
  (let [^objects slots (.-slots batch)
        ^AtomicLong called (.-called batch)
        place (place/current)]
    (loop [i 0]
      (when (< i (alength slots))
        (when (pos? i) (check-cancel! place))
        (aset slots i ((thunk! slots i)))
        (.setPlain called (inc i))
        (recur (inc i))))))

;; For the consumer, when the task is done or has failed

(defn whole?
  "True if all thunks have values."
  [^Batch batch ^ITask task]
  (and (instance? Done (.outcome task))
       (= (.get ^AtomicLong (.-called batch)) (size batch))))

(defn count-values
  "Returns how many values there are: all, or those before the failure."
  ^long [^Batch batch ^ITask task]
  (condp instance? (.outcome task)
    Done (.get ^AtomicLong (.-called batch))
    Failed (- (index-of-failure batch) (.-index batch))
    0))

(defn onto
  "Returns the values in front of the seq."
  [^Batch batch task more]
  (chunk-cons (ArrayChunk. (.-slots batch) 0 (count-values batch task)) more))

(defn reduce-values
  "Reduces the values with (f acc index value)."
  [^Batch batch task f acc]
  (let [^objects slots (.-slots batch), n (count-values batch task)]
    (loop [i 0, acc acc]
      (if (or (= i n) (reduced? acc))
        acc
        (recur (inc i) (f acc (+ (.-index batch) i) (aget slots i)))))))

(defn not-called
  "Returns the exception for a wrap that has not called its thunk, or has taken its exception."
  [^Batch batch]
  (error/invalid (str "The :wrap of a batch returned, but not all of its items have results: it "
                      "must call its thunk, and throw what that throws")
                 {:option :wrap, :index (index-of-failure batch)}))
