(ns thrum.impl.scope
  "A scope around a body that runs on the calling thread. The form ends when the body and every fork
  have ended, then closes what they used. It is a deadline's form and a shield's as well."
  {:no-doc true}
  (:require
   [thrum.impl.context :as context]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.group :as scope]
   [thrum.impl.interrupt :as body]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.options :as options]
   [thrum.impl.point :as point]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (java.util ArrayDeque)
   (java.util.concurrent CancellationException)
   (java.util.concurrent.atomic AtomicLong)
   (thrum.impl.context Owned Place)
   (thrum.impl.error Failures)
   (thrum.impl.group Scope)
   (thrum.impl.interrupt Body)
   (thrum.impl.task Cancelled Done Failed ITask Owner)))

(set! *warn-on-reflection* true)

(definterface IForm
  (^Object arm [])
  (^Object disarm [])
  (^Object cancel [reason])
  (^Object taken [task])
  (^boolean harmed [])
  (^boolean quiet [])
  (^boolean hold [close])
  (^boolean freeze [])
  (nextToClose []))

(def ^:private timed-out :thrum/timeout)

(defn- failure [^ITask task t]
  {:throwable t, :task (.taskName task), :index (.index task)})

(defn- ended-by-cancel? [^ITask task]
  (instance? Cancelled (.outcome task)))

;; options: of the call. pending: how many forks it waits for; what else runs in the scope is ended
;; with it. harmed: a cancel of the scope has ended a fork that it would have waited for.
(deftype Form [^Scope scope ^Body body ^Failures failures options ^AtomicLong forked
               ^AtomicLong pending ^:unsynchronized-mutable alarm ^:volatile-mutable harmed
               ^:unsynchronized-mutable ^ArrayDeque to-close ^:volatile-mutable closing]
  IForm
  (arm [this]
    (when-some [moment (:own-deadline options)]
      (set! alarm (deadline/arm! moment (or (:on-alarm options) #(.cancel this timed-out))))))
  (disarm [_] (when alarm (deadline/disarm! alarm)))
  (cancel [_ reason]
    (.ask body)
    (let [first-time (scope/cancel! scope reason)]
      (when first-time (.interrupt body))
      first-time))
  (taken [this task]
    (when (and (instance? Failed (.outcome ^ITask task)) (not= :collect (:on-error options)))
      (.cancel this :sibling-failed)))
  (harmed [_] harmed)
  (quiet [_] (zero? (.get pending)))
  (hold [this close]
    (locking this
      (when-not closing (when-not to-close (set! to-close (ArrayDeque.))) (.push to-close close))
      (not closing)))
  ;; Whoever could use! something works for the scope, and has ended.
  (freeze [_] (set! closing true) (some? to-close))
  (nextToClose [_] (.poll to-close))
  Owner
  (failed [_ task t] (.record failures (failure task t)))
  (ended [this task]
    (try
      (when (and (ended-by-cancel? task) (scope/cancel-reason scope)) (set! harmed true))
      (.taken this task)
      (finally
        (.decrementAndGet pending)
        (scope/leave! scope task)))))

;; The owner of forks that nobody waits for.
(deftype Daemons [^Form form]
  Owner
  (failed [_ task t]
    (.failed form task t))
  (ended [_ task]
    (try
      (.taken form task)
      (finally (scope/leave! (.-scope form) task)))))

;; An owner and whoever else wants to know how a fork has ended.
(deftype Overheard [^Owner owner on-end]
  Owner
  (failed [_ task t]
    (.failed owner task t))
  (ended [_ task]
    (try
      (on-end task)
      (finally (.ended owner task)))))

(defn checked
  "Returns x if it is a scope; throws :thrum/invalid otherwise."
  ^Form [x]
  (options/instance Form "a scope, the symbol that with-scope binds" x))

(defmethod print-method Form
  [^Form form ^java.io.Writer w]
  (let [scope (.-scope form)]
    (.write w (str "#<scope " (scope/scope-name scope) " "))
    (print-method {:status (if (scope/reason scope) :ended :open), :running (scope/running scope)}
                  w)
    (.write w ">")))

(defn cancel!
  "Cancels the scope's body and forks. Returns whether this was the first cancel."
  [^Form form reason]
  (.cancel form reason))

(defn lift-deadline!
  "The form has no deadline any more, for what begins in it from now on."
  [^Form form]
  (scope/lift-deadline! (.-scope form)))

(defn cancel-reason
  "Returns why the form's scope is cancelled, or nil."
  [^Form form]
  (.cancelReason ^Owned (.-scope form)))

;; What the body and the forks do

(defn- works-for? [^Form form]
  (scope/within? (context/current-scope) (.-scope form)))

(defn- check-works-for! [^Form form]
  (scope/check-open! (.-scope form))
  (when-not (works-for? form)
    (throw (error/foreign (scope/scope-name (.-scope form))))))

(declare call)

(defn- in-time
  "Returns f; inside the caller's deadline, where the fork's own scope has none or a later one."
  [^Form form f]
  (let [moment (some-> (context/current-scope) scope/moment)]
    (if (deadline/earlier? moment (scope/moment (.-scope form)))
      (fn [] (call {:name "deadline", :moment moment} (fn [_] (f))))
      f)))

(defn- named [task ^Scope scope name]
  (if name
    (task/named task (str (scope/scope-name scope) "/" name "-" (.index ^ITask task)))
    task))

(defn fork!
  "Starts f as a task of the form's scope, for a thread that works for it. Returns the task. :on-end
  - called with the task, on its thread, when it has ended, also where it was cancelled before f
  began."
  [^Form form {:keys [name daemon? on-end]} f]
  (check-works-for! form)
  (let [scope (.-scope form)
        {:keys [wrap scoped-values]} (.-options form)
        owner (cond-> (if daemon? (Daemons. form) form) on-end (Overheard. on-end))
        task (task/task (context/capture (jdk/with-scoped wrap scoped-values) scope)
                        owner
                        (.getAndIncrement ^AtomicLong (.-forked form))
                        (in-time form f))]
    (when-not daemon? (.incrementAndGet ^AtomicLong (.-pending form)))
    (try
      (scope/start! scope (named task scope name))
      (catch Throwable t
        (when-not daemon? (.decrementAndGet ^AtomicLong (.-pending form)) (scope/wake! scope))
        (throw t)))))

(defn use!
  "Has x closed by (close x) when the form ends. Returns x; where the form is past that, or the
  thread does not work for it, closes x at once and throws."
  [^Form form x close]
  (try
    (check-works-for! form)
    (when-not (.hold form #(close x))
      (throw (error/closed (scope/scope-name (.-scope form)) :ended)))
    x
    (catch Throwable t
      (try (close x) (catch Throwable other (.addSuppressed t other)))
      (throw t))))

;; How the body runs

;; Armed in the body: the alarm of a form whose body never began would go off in whatever the thread
;; does then.
(defn- begin! [^Form form f]
  (.arm form)
  (f form))

(defn- attempt [^Form form f]
  (let [^Body body (.-body form)]
    (try
      (Done. (.run body begin! form f))
      (catch Throwable t
        (Failed. t))
      (finally
        (point/reached :form/body-ended)
        (.finish body)
        (context/stand! (.outer body))))))

(defn- classified
  "Returns the outcome that counts: a casualty of the cancel is Cancelled, a failure goes on record."
  [^Form form outcome]
  (if-some [t (when (instance? Failed outcome) (.-throwable ^Failed outcome))]
    (if (and (.cancelReason ^Place (.-body form)) (error/casualty? t))
      (Cancelled. t)
      (do
        (.record ^Failures (.-failures form) {:throwable t})
        outcome))
    outcome))

(defn- await-forks!
  "Waits for the forks, if the body had a value. Returns the outcome: the same, or what ended the
  wait."
  [^Form form outcome]
  (if (and (instance? Done outcome) (nil? (scope/cancel-reason (.-scope form))))
    (try
      (scope/await! (.-scope form) #(or (.quiet form) (some? (scope/cancel-reason (.-scope form)))))
      outcome
      (catch Throwable t
        (classified form (Failed. t))))
    outcome))

;; What the form answers

(defn- fired? [^Form form reason]
  (and (:own-deadline (.-options form)) (identical? timed-out reason)))

(defn- timeout
  [^Form form cause]
  (error/timeout (scope/scope-name (.-scope form))
                 (select-keys (.-options form) [:timeout-ms])
                 cause))

(defn- answer
  "Returns the outcome of a form whose deadline came first."
  [^Form form cause]
  (if-some [fallback (:fallback (.-options form))]
    (try (Done. (fallback)) (catch Throwable t (Failed. t)))
    (Failed. (timeout form cause))))

(defn- cancelled
  "Returns what a form throws that was cancelled, for what ended its body (nil: its forks)."
  [^Form form reason t]
  (Failed. (if (instance? CancellationException t)
             t
             (error/cancelled (scope/scope-name (.-scope form)) reason t))))

(defn- verdict
  "Returns the outcome of the form, Done or Failed, from that of its body and from why its scope,
  and the work around it, was cancelled while it had work."
  [^Form form outcome own-reason outer-reason]
  (let [failures (.-failures form)
        casualty (when (instance? Cancelled outcome) (.-reason ^Cancelled outcome))]
    (if-some [root (when (pos? (.total ^Failures failures)) (first (.kept ^Failures failures)))]
      (Failed. (error/merged root failures))
      (cond
        (and (fired? form own-reason) (or casualty (.harmed form))) (answer form casualty)
        casualty (cancelled form (or own-reason outer-reason) casualty)
        (and outer-reason (.harmed form)) (cancelled form outer-reason nil)
        :else outcome))))

(declare shielded)

(defn- close-all!
  "Closes what the form holds. Returns the failures."
  [^Form form]
  (let [failures (error/failures)]
    (loop []
      (when-some [close (.nextToClose form)]
        (try (shielded {:name "close"} (fn [_] (close)))
             (catch Throwable t (.record failures {:throwable t})))
        (recur)))
    failures))

(defn- after-closing
  "Returns the outcome when all that the form holds has been closed: a failed close rides on the
  failure, or is one."
  [^Form form outcome]
  (if (.freeze form)
    (let [^Failures closing (close-all! form)]
      (if-some [first-failed (first (.kept closing))]
        (Failed.
          (error/merged
            (if (instance? Failed outcome) {:throwable (.-throwable ^Failed outcome)} first-failed)
            closing))
        outcome))
    outcome))

(defn- throwable [outcome]
  (condp instance? outcome
    Failed (.-throwable ^Failed outcome)
    Cancelled (.-reason ^Cancelled outcome)
    nil))

(defn- bear-again!
  "An interrupt that ended the body, or the wait for the forks, and is not what the form throws, is
  there again for whoever comes after, if it was somebody else's."
  [^Form form outcome outer-reason final]
  (let [t (throwable outcome)]
    (when (and (instance? InterruptedException t)
               (not (identical? t (throwable final)))
               (not (.wasInterrupted ^Body (.-body form)))
               (nil? outer-reason))
      (wait/give-back!))))

(defn- concluded
  "Waits for the forks, joins them, closes what was used, and returns the outcome of the form."
  [^Form form outcome]
  (let [scope (.-scope form)
        outcome (classified form outcome)
        idle? (and (instance? Done outcome) (scope/end-idle! scope :ended))
        outcome (if idle? outcome (await-forks! form outcome))
        own-reason (scope/cancel-reason scope)
        outer-reason (when-not (:shield (.-options form)) (wait/cancel-reason))]
    (when-not idle? (scope/end! scope :ended))
    (doto (after-closing form (verdict form outcome own-reason outer-reason))
      (->> (bear-again! form outcome outer-reason)))))

(defn- end-anyway! [^Form form]
  (try
    (scope/end! (.-scope form) :ended)
    (finally
      (when (.freeze form) (close-all! form)))))

(defn- conclude
  "Runs the body, then as concluded. Whatever throws, nothing runs any more and all is closed when
  it leaves."
  [^Form form f]
  (try
    (concluded form (attempt form f))
    (catch Throwable t
      (end-anyway! form)
      (throw t))))

(defn- hand-out [outcome]
  (if (instance? Done outcome)
    (.-value ^Done outcome)
    (throw (.-throwable ^Failed outcome))))

(defn- run-to-end
  "Runs the body, with the form's alarm armed, and returns or throws what the form does."
  [^Form form f]
  (try
    (hand-out (conclude form f))
    (finally (.disarm form))))

(defn- form
  ^Form [{:keys [name moment shield], :as options} ^Place outer]
  (let [parent (some-> outer
                       .scope)
        inherited (when-not shield
                    (some-> parent
                            scope/moment))
        own-deadline (when (deadline/earlier? moment inherited) moment)
        scope (scope/scope (task/unique-name name)
                           parent
                           {:moment moment
                            :opener (some-> outer
                                            .task)
                            :shield shield})]
    (Form. scope
           (body/body scope outer shield)
           (error/failures)
           (cond-> options own-deadline (assoc :own-deadline own-deadline))
           (AtomicLong.)
           (AtomicLong.)
           nil
           false
           nil
           false)))

(defn- run-in-time
  "As run-to-end; a deadline that has passed already lets nothing run."
  [^Form form f]
  (let [{:keys [own-deadline]} (.-options form)]
    (if (and own-deadline (deadline/passed? own-deadline))
      (hand-out (answer form nil))
      (run-to-end form f))))

(defn call
  "Calls f with a form on the calling thread and returns its value when every fork has ended.
  Options: :name, :moment - the deadline; :timeout-ms - for its message; :fallback - a thunk, called
  instead of throwing at the deadline; :on-alarm - a thunk, called at the deadline instead of
  cancelling the form; :on-error."
  [options f]
  (wait/check-state!)
  (run-in-time (form options (context/place)) f))

(defn shielded
  "As call, for a body that goes on where the calling thread's work is cancelled."
  [options f]
  (wait/undisturbed #(run-in-time (form (assoc options :shield true) (context/place)) f)))
