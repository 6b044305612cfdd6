(ns thrum.impl.gather
  "A few calls at once, each in a task, in a scope that ends with them: the first failure, the first
  success or the first end may decide for all."
  {:no-doc true}
  (:require
   [thrum.impl.context :as context]
   [thrum.impl.error :as error]
   [thrum.impl.group :as scope]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (clojure.lang LazySeq)
   (java.util.concurrent CancellationException)
   (java.util.concurrent.atomic AtomicReference)
   (thrum.impl.error Failures)
   (thrum.impl.group Scope)
   (thrum.impl.task Cancelled Done Failed ITask Owner)))

(set! *warn-on-reflection* true)

(defn- failed? [outcome]
  (instance? Failed outcome))

(defn- done? [outcome]
  (instance? Done outcome))

(defn- cancelled? [outcome]
  (instance? Cancelled outcome))

;; decides: does this outcome settle the matter for all? decisive: the task whose outcome did.
(deftype Gathering [^Scope scope ^Failures failures decides ^AtomicReference decisive]
  Owner
  (failed [_ task t]
    (.record failures {:throwable t, :task (.taskName ^ITask task), :index (.index ^ITask task)}))
  (ended [_ task]
    (try
      (when (and (decides (.outcome ^ITask task)) (.compareAndSet decisive nil task))
        (scope/cancel! scope :decided))
      (finally (scope/leave! scope task)))))

(defn- gathering
  "Returns a gathering of the calling thread, unless its work is cancelled."
  ^Gathering [name decides]
  (wait/check-state!)
  (let [place (context/place)
        scope (scope/scope (task/unique-name name)
                           (some-> place
                                   .scope)
                           {:opener (some-> place
                                            .task)})]
    (Gathering. scope (error/failures) decides (AtomicReference.))))

(defn- decisive [^Gathering gathering]
  (.get ^AtomicReference (.-decisive gathering)))

(defn- start-one!
  "Returns the started task; nil if all has been decided."
  [^Gathering gathering context i thunk]
  (try
    (scope/start! (.-scope gathering) (task/task context gathering i thunk))
    (catch Throwable t
      (when-not (decisive gathering) (throw t)))))

(defn- start-all! [gathering wrap thunks]
  (let [context (context/capture wrap (.-scope ^Gathering gathering))]
    (into []
          (comp (map-indexed #(start-one! gathering context %1 %2))
                (take-while some?))
          thunks)))

(defn- await-all! [^Gathering gathering]
  (let [scope (.-scope gathering)]
    (scope/await! scope #(scope/empty-scope? scope))))

(defn- end! [^Gathering gathering]
  (scope/end! (.-scope gathering) :ended))

(defn- gather!
  "Starts the thunks, waits with await! and returns the tasks, none of which runs any more."
  [^Gathering gathering {:keys [wrap]} await! thunks]
  (try
    (let [tasks (start-all! gathering wrap thunks)]
      (await! gathering)
      tasks)
    (catch Throwable t
      (end! gathering)
      (throw (error/merged {:throwable t} (.-failures gathering))))
    (finally
      (end! gathering))))

(defn- throw-failure!
  "Throws the failure of this task (nil: the first of all), if there is one."
  [^Gathering gathering ^ITask task]
  (let [failures (.-failures gathering)
        same? #(or (nil? task) (identical? (:throwable %) (.-throwable ^Failed (.outcome task))))]
    (when-some [failure (first (filter same? (.kept ^Failures failures)))]
      (throw (error/merged failure failures)))))

(defn- winner
  "Returns the value of the task that decided. Without one, throws the first failure, or what
  cancelled all."
  [gathering tasks]
  (let [task (decisive gathering)]
    (when-not (and task (done? (.outcome ^ITask task)))
      (throw-failure! gathering task))
    (task/value (or task (first tasks)))))

(defn all
  "Returns a vector of the thunks' values; the first failure cancels the others and is thrown."
  [{:keys [name] :as options} thunks]
  (let [gathering (gathering name failed?)
        tasks (gather! gathering options await-all! thunks)]
    (throw-failure! gathering nil)
    (mapv task/value tasks)))

(defn race
  "Returns or throws what the first to end did; the others are cancelled and joined."
  [{:keys [name] :as options} thunks]
  (let [gathering (gathering name (complement cancelled?))]
    (winner gathering (gather! gathering options await-all! thunks))))

(defn any
  "Returns the value of the first to succeed; the others are cancelled and joined. When all have
  failed, the first is thrown."
  [{:keys [name] :as options} thunks]
  (let [gathering (gathering name done?)]
    (winner gathering (gather! gathering options await-all! thunks))))

(def ^:private nothing (constantly false))

(defn- data
  "Returns how a task ended as data."
  [^ITask task]
  (let [outcome (.outcome task)]
    (condp instance? outcome
      Done {:value (.-value ^Done outcome)}
      Cancelled {:cancelled (.-reason ^Cancelled outcome)}
      Failed (let [t (.-throwable ^Failed outcome)
                   cause (error/cause-of t)]
               (if (and (instance? CancellationException t)
                        (= :thrum/cancelled (error/type-of cause)))
                 {:cancelled (:reason (ex-data cause))}
                 {:error t})))))

(defn- await-end!
  "Waits for all; a cancel of the caller's work cancels them, and is theirs to report."
  [^Gathering gathering]
  (try
    (await-all! gathering)
    (catch CancellationException _
      (scope/cancel! (.-scope gathering) (wait/cancel-reason))
      (scope/join! (.-scope gathering)))))

(defn settle
  "Returns a vector of the thunks' outcomes as data: {:value v}, {:error e} or {:cancelled reason}."
  [{:keys [name] :as options} thunks]
  (mapv data (gather! (gathering name nothing) options await-end! thunks)))

(defn- values [tasks]
  (LazySeq.
    (fn []
      (when-some [[task & more] (seq tasks)]
        (cons (task/value task) (values more))))))

(defn calls
  "Returns the thunks' values as a lazy seq that throws where one failed; a failure stops nobody."
  [{:keys [name], :as options} thunks]
  (let [gathering (gathering name nothing)
        tasks (gather! gathering options await-all! thunks)]
    (when (some #(cancelled? (.outcome ^ITask %)) tasks) (wait/check-state!))
    (some-> (first (filter #(failed? (.outcome ^ITask %)) tasks))
            (as-> task (error/merged {:throwable (.-throwable ^Failed (.outcome ^ITask task))
                                      :task (.taskName ^ITask task)
                                      :index (.index ^ITask task)}
                                     (.-failures gathering))))
    (values tasks)))
