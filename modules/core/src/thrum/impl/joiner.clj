(ns thrum.impl.joiner
  "A few functions at once, each in a task, joined before the call returns. The first failure, the
  first success or the first end may decide for all."
  {:no-doc true}
  (:require
   [thrum.impl.completion :as completion]
   [thrum.impl.context :as context]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.failures :as failures]
   [thrum.impl.group :as group]
   [thrum.impl.place :as place]
   [thrum.impl.registry :as registry]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (clojure.lang LazySeq)
   (java.util.concurrent CancellationException)
   (java.util.concurrent.atomic AtomicReference)
   (thrum.impl.failures Failures)
   (thrum.impl.group Group)
   (thrum.impl.task Cancelled Done Failed ITask)))

(set! *warn-on-reflection* true)

(defn- failed? [outcome]
  (instance? Failed outcome))

(defn- done? [outcome]
  (instance? Done outcome))

(defn- cancelled? [outcome]
  (instance? Cancelled outcome))

;; decides?: a predicate of outcomes. decisive: the first task whose outcome decides for all.
(deftype Joiner [^Group group children ^Failures failures decides? ^AtomicReference decisive]
  completion/CompletionHandler
  (failed [_ task t]
    (.record failures (failures/of-task task t)))
  (ended [_ task]
    (try
      (when (and (decides? (.outcome ^ITask task)) (.compareAndSet decisive nil task))
        (group/cancel! group :decided))
      ;; The tasks are kept until all have ended: none is taken out.
      (finally
        (group/awaited-ended! children)
        (group/child-ended! children)))))

(defn- joiner
  "Returns a joiner of the calling thread, unless its work is cancelled."
  ^Joiner [name decides?]
  (wait/check-state!)
  (let [place (place/current)
        group (group/opened-group name (some-> place .group) nil (some-> place .task) nil)]
    (doto (Joiner. group (group/children-of group) (failures/failures) decides? (AtomicReference.))
      (->> (registry/keep! :joiner)))))

(defn- decisive [^Joiner joiner]
  (.get ^AtomicReference (.-decisive joiner)))

(defn- start-one!
  "Returns the started task; nil if all has been decided, or the caller's work is cancelled."
  [^Joiner joiner context i thunk]
  (when-not (decisive joiner)
    (try
      (group/start! (.-group joiner) (task/task context joiner i thunk))
      (catch Throwable t
        (when-not (or (decisive joiner) (wait/cancel-reason)) (throw t))))))

;; :waiting - a function of the group and a thunk that waits, which calls the thunk.

(defn- plainly [_ wait]
  (wait))

(defn- await-room!
  "Waits until fewer than :limit of the i tasks run that were started, or all is decided."
  [^Joiner joiner {:keys [limit waiting], :or {waiting plainly}} i]
  (when limit
    (let [running #(- (long i) (group/awaited-ended (.-children joiner)))
          room? #(or (decisive joiner) (< (long (running)) (long limit)))]
      (waiting (.-group joiner) #(group/await! (.-group joiner) room?)))))

(defn- await-delay!
  "Waits, before another thunk than the first, for so many ms, or until those before have failed."
  [^Joiner joiner {:keys [after-ms]} i]
  (when (and after-ms (pos? (long i)))
    (let [group (.-group joiner)
          ready? #(or (decisive joiner) (group/empty-group? group))]
      (wait/look! ready?)
      (group/await! group (deadline/in-ms after-ms) ready?))))

(defn- start-all!
  "Starts the thunks until all is decided, or the caller's work is cancelled. Returns the tasks."
  [^Joiner joiner {:keys [wrap], :as options} thunks]
  (let [context (context/capture wrap (.-group joiner))]
    (into []
          (comp (map-indexed (fn [i thunk]
                               (await-room! joiner options i)
                               (await-delay! joiner options i)
                               (start-one! joiner context i thunk)))
                (take-while some?))
          thunks)))

(defn- await-end! [^Joiner joiner {:keys [waiting], :or {waiting plainly}}]
  (let [group (.-group joiner)]
    (waiting group (fn [] (group/await-idle! group #(group/empty-group? group))))))

(defn- end! [^Joiner joiner]
  (group/end! (.-group joiner) :ended))

(defn- check-not-cut-off!
  "Throws CancellationException where a cancel of the caller's work has ended tasks, or has kept
  thunks from being started, before a task decided."
  [joiner tasks thunks]
  (when (and (not (decisive joiner))
             (or (< (count tasks) (count thunks))
                 (some #(cancelled? (.outcome ^ITask %)) tasks)))
    (wait/check-state!)))

(defn- run-all!
  "Starts the thunks, waits and returns the tasks, none of which runs any more. They are fewer than
  the thunks where a task has decided for all before; with :partial?, also where a cancel came.
  options: :wrap, :limit, :after-ms, :waiting, :partial?."
  [^Joiner joiner options thunks]
  (try
    (let [tasks (start-all! joiner options thunks)]
      (await-end! joiner options)
      (when-not (:partial? options) (check-not-cut-off! joiner tasks thunks))
      tasks)
    (catch Throwable t
      (end! joiner)
      (throw (failures/merged {:throwable t} (.-failures joiner))))
    (finally
      (end! joiner))))

(defn- failure-of
  "Returns the task's failure, or nil."
  [^ITask task]
  (let [outcome (.outcome task)]
    (when (instance? Failed outcome)
      (failures/of-task task (.-throwable ^Failed outcome)))))

(defn- throw-failure!
  "Throws the failure (nil: none), with the others suppressed."
  [^Joiner joiner failure]
  (some-> failure (failures/merged (.-failures joiner)) throw))

(defn- throw-first-failure! [^Joiner joiner]
  (throw-failure! joiner (failures/root (.-failures joiner))))

(defn- winner
  "Returns the value of the task that decided, or throws its failure. Without one, throws the first
  failure, or what cancelled all."
  [joiner tasks]
  (if-some [task (decisive joiner)]
    (do (throw-failure! joiner (failure-of task))
        (task/value task))
    (do (throw-first-failure! joiner)
        (task/value (first tasks)))))

(defn all
  "Returns a vector of the thunks' values; the first failure cancels the others and is thrown."
  [{:keys [name], :as options} thunks]
  (let [joiner (joiner name failed?)
        tasks (run-all! joiner options thunks)]
    (throw-first-failure! joiner)
    (mapv task/value tasks)))

(defn race
  "Returns or throws what the first to end did; the others are cancelled and joined."
  [{:keys [name], :as options} thunks]
  (let [joiner (joiner name (complement cancelled?))]
    (winner joiner (run-all! joiner options thunks))))

(defn any
  "Returns the value of the first to succeed; the others are cancelled and joined. When all have
  failed, the first failure is thrown. :after-ms - how long each waits for those before it."
  [{:keys [name], :as options} thunks]
  (let [joiner (joiner name done?)]
    (winner joiner (run-all! joiner options thunks))))

(def ^:private nothing (constantly false))

(defn- or-cancel!
  "Waits. A cancel of the caller's work cancels the group: each task reports it as its outcome."
  [group wait]
  (try
    (wait)
    (catch CancellationException _
      (group/cancel! group (wait/cancel-reason))
      (group/join! group))))

(defn- not-started [n reason]
  (repeat n {:cancelled reason}))

(defn settle
  "Returns a vector of the thunks' outcomes as data: {:value v}, {:error e} or {:cancelled reason}."
  [{:keys [name], :as options} thunks]
  (let [options (assoc options :waiting or-cancel! :partial? true)
        outcomes (mapv task/outcome-data (run-all! (joiner name nothing) options thunks))]
    (into outcomes (not-started (- (count thunks) (count outcomes)) (wait/cancel-reason)))))

(defn none-settled
  "Returns what settle does where a deadline came before it began."
  [thunks]
  (vec (not-started (count thunks) :thrum/timeout)))

(defn- values [tasks]
  (LazySeq.
    (fn []
      (when-some [[task & more] (seq tasks)]
        (cons (task/value task) (values more))))))

(defn- suppress-others!
  "Suppresses the other failures on that of the first task that failed."
  [^Joiner joiner tasks]
  (some-> (some failure-of tasks) (failures/merged (.-failures joiner))))

(defn calls
  "Returns the thunks' values as a lazy seq that throws where one failed. A failure cancels
  nothing."
  [{:keys [name], :as options} thunks]
  (let [joiner (joiner name nothing)
        tasks (run-all! joiner options thunks)]
    (suppress-others! joiner tasks)
    (values tasks)))
