(ns thrum.impl.scope
  "A scope around a body that runs on the calling thread. It ends when the body and every fork have
  ended, then closes what they used. with-timeout and shield are scopes as well."
  {:no-doc true}
  (:require
   [thrum.impl.completed :as completed]
   [thrum.impl.completion :as completion]
   [thrum.impl.context :as context]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.failures :as failures]
   [thrum.impl.group :as group]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.options :as options]
   [thrum.impl.place :as place]
   [thrum.impl.registry :as registry]
   [thrum.impl.scope-body :as scope-body]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (java.util ArrayDeque)
   (java.util.concurrent CancellationException)
   (thrum.impl.failures Failures)
   (thrum.impl.group Group)
   (thrum.impl.place Place)
   (thrum.impl.scope_body ScopeBody)
   (thrum.impl.task Cancelled Done Failed ITask)))

(set! *warn-on-reflection* true)

;; No protocol: with those of core a scope with a fork costs 1.2 x the CPU (decision 32).
(definterface IScope
  (^Object arm [])
  (^Object disarm [])
  (^Object cancel [reason])
  (^Object expire [])
  (^boolean hasExpired [])
  (^Object forkEnded [task])
  (^boolean forkCancelled [])
  (^boolean forksDone [])
  (^boolean addClose [close])
  (^boolean stopUse [])
  (nextToClose []))

(def ^:private timed-out :thrum/timeout)

(defn- ended-by-cancel? [^ITask task]
  (instance? Cancelled (.outcome task)))

;; options: of the call. own-deadline: its deadline where that is earlier than the inherited one, or
;; nil. The group counts the forks that the scope waits for; its end cancels all others.
;; fork-cancelled: a cancel, of the scope or of work around it, has ended one of these; read when
;; all have ended. closing: true from when the scope closes what was used; all forks have ended by
;; then. completed: with :on-error :keep, the forks that have ended, for completions. No field is
;; volatile, which would cost each scope a fence.
(deftype Scope [^Group group ^ScopeBody body ^Failures failures options own-deadline shield
                completed
                ^:unsynchronized-mutable alarm
                ^:unsynchronized-mutable expired
                ^:unsynchronized-mutable fork-cancelled
                ^:unsynchronized-mutable ^ArrayDeque to-close
                ^:unsynchronized-mutable closing]
  IScope
  (arm [this]
    (when own-deadline
      (set! alarm
            (deadline/arm! own-deadline (or (:on-deadline options) #(.expire this))))))
  (disarm [_]
    (when alarm (deadline/disarm! alarm)))
  (cancel [_ reason]
    (.expectCancel body)
    (let [first-time (group/cancel! group reason)]
      (when first-time (.interrupt body))
      first-time))
  ;; Another may cancel for that reason too.
  (expire [this]
    (set! expired true)
    (.cancel this timed-out))
  (hasExpired [_] expired)
  (forkEnded [this task]
    (when (and (instance? Failed (.outcome ^ITask task))
               (not (#{:collect :keep} (:on-error options))))
      (.cancel this :sibling-failed)))
  (forkCancelled [_] fork-cancelled)
  ;; Another thread than the body's may have made the children.
  (forksDone [_]
    (if-some [children (.childrenNow group)]
      (group/none-awaited? children)
      true))
  (addClose [this close]
    (locking this
      (when-not closing
        (when-not to-close (set! to-close (ArrayDeque.)))
        (.push to-close close))
      (not closing)))
  ;; Only the body and its forks may call use!, and all have ended.
  (stopUse [_]
    (set! closing true)
    (some? to-close))
  (nextToClose [_]
    (.poll to-close))

  completion/CompletionHandler
  (failed [_ task t]
    (when-not completed (.record failures (failures/of-task task t))))
  (ended [this task]
    (try
      (when (and (ended-by-cancel? task) (group/cancel-reason group))
        (set! fork-cancelled true))
      (.forkEnded this task)
      (when completed (completed/put! completed task))
      (finally
        (let [children (group/children-of group)]
          (group/awaited-ended! children)
          (group/child-left! children task)
          ;; A daemon may still run in the group.
          (when (and (group/idle-awaited? children) (.forksDone this)) (group/wake! group))
          (when completed (completed/wake! completed)))))))

;; The handler of forks that the scope does not wait for.
(deftype DaemonHandler [^Scope scope]
  completion/CompletionHandler
  (failed [_ task t]
    (completion/failed scope task t))
  (ended [_ task]
    (try
      (.forkEnded scope task)
      (finally (group/child-left! (group/children-of (.-group scope)) task)))))

;; A handler that calls (on-end task) first, but behind the cancel that a failure is for the scope:
;; what on-end closes would look complete to work that is not cancelled.
(deftype CallingHandler [^Scope scope handler on-end]
  completion/CompletionHandler
  (failed [_ task t]
    (completion/failed handler task t))
  (ended [_ task]
    (try
      (try
        (.forkEnded scope task)
        (finally (on-end task)))
      (finally (completion/ended handler task)))))

(defn- daemon? [handler]
  (if (instance? CallingHandler handler)
    (recur (.-handler ^CallingHandler handler))
    (instance? DaemonHandler handler)))

(defn awaited?
  "True if the child is a fork that the scope waits for."
  [child]
  (and (instance? ITask child)
       (not (daemon? (.handler ^ITask child)))))

(defn forks-done?
  "True if all forks have ended that the scope waits for."
  [^Scope scope]
  (.forksDone scope))

(defn scope-name
  "Returns the scope's name."
  [^Scope scope]
  (group/group-name (.-group scope)))

(defn facts
  "Returns what the scope knows of itself: :body-ended?, true where only forks are waited for;
  :shield? and :timeout-ms, from its options; :closing?, of the scope that a close of use! runs in."
  [^Scope scope]
  (let [{:keys [timeout-ms closing?]} (.-options scope)]
    (cond-> {:body-ended? (.isOver ^Place (.-body scope))}
      (.-shield scope) (assoc :shield? true)
      closing? (assoc :closing? true)
      timeout-ms (assoc :timeout-ms timeout-ms))))

(defmethod print-method Scope [^Scope scope ^java.io.Writer w]
  (let [group (.-group scope)]
    (.write w (str "#<scope " (scope-name scope) " "))
    (print-method {:status (if (group/end-reason group) :ended :open)
                   :running (group/running group)}
                  w)
    (.write w ">")))

(defn checked
  "Returns x if it is a scope; throws :thrum/invalid otherwise."
  ^Scope [x]
  (options/instance Scope "a scope, the symbol that with-scope binds" x))

(defn cancel-reason
  "Returns why the scope, or work around it, is cancelled, or nil."
  [^Scope scope]
  (group/cancel-reason (.-group scope)))

(defn cancel!
  "Cancels the scope's body and forks, unless the scope or work around it is cancelled. Returns
  whether it did."
  [^Scope scope reason]
  (and (nil? (cancel-reason scope))
       (.cancel scope reason)))

(defn lift-deadline!
  "Takes the scope's deadline away, for what begins in it from now on."
  [^Scope scope]
  (group/lift-deadline! (.-group scope)))

;; For the body and the forks

(defn- check-works-for!
  "Throws unless the calling thread works for the scope, which is open. Returns the group that its
  work belongs to."
  [^Scope scope]
  (let [group (.-group scope), callers-group (place/current-group)]
    (group/check-open! group)
    (when-not (group/within? callers-group group)
      (throw (error/foreign (scope-name scope))))
    callers-group))

(declare call shielded)

(defn- in-time
  "Returns f; inside the deadline of the caller's group, where the scope has none or a later one."
  [^Scope scope callers-group f]
  (let [deadline (group/deadline callers-group)]
    (if (deadline/earlier? deadline (group/deadline (.-group scope)))
      (fn [] (call {:name "deadline", :deadline deadline} (fn [_] (f))))
      f)))

(defn- handler [scope daemon? on-end]
  (let [handler (if daemon? (DaemonHandler. scope) scope)]
    (if on-end
      (CallingHandler. scope handler on-end)
      handler)))

(defn- fork
  "Returns the task of a fork that has not begun."
  [^Scope scope callers-group {:keys [name daemon? on-end]} f]
  (let [{:keys [wrap scoped-values]} (.-options scope)
        group (.-group scope)
        task (task/task (context/capture (jdk/with-scoped wrap scoped-values) group)
               (handler scope daemon? on-end)
               (group/next-index! (group/children-of group))
               (in-time scope callers-group f))]
    (if name
      (task/named task (str (group/group-name group) "/" name "-" (.index ^ITask task)))
      task)))

;; The end of the scope takes its group out of its parent, which would wait for it for ever. A fork
;; of the body's is called deeper on the stack than the end will be. 100 frames were too few. Looked
;; for (0.35 us) where there is a parent: a recursion in a scope need not be one over scopes.
(defn- room-for-end!
  "Overflows a stack that may have no room for the end of the scope, before it has a child."
  [^Scope scope]
  (when (and (some? (.outer ^Place (.-body scope)))
             (nil? (.childrenNow ^Group (.-group scope))))
    (wait/room 250)))

(defn fork!
  "Starts f as a task of the scope, for a thread that works for the scope. Returns the task.
  :on-end - called with the task, on its thread, when it has ended, also where it was cancelled
  before f began."
  [^Scope scope {:keys [daemon?] :as options} f]
  (room-for-end! scope)
  (let [task (fork scope (check-works-for! scope) options f)
        group (.-group scope)
        children (group/children-of group)]
    (when-not daemon? (group/add-awaited! children 1))
    (try
      (group/start! group task)
      (catch Throwable t
        (when-not daemon?
          (group/add-awaited! children -1)
          (group/wake! group)
          (some-> (.-completed scope) completed/wake!))
        (throw t)))))

(defn- close! [close]
  (shielded {:name "close", :closing? true} (fn [_] (close))))

(defn use!
  "Has x closed by (close x) when the scope ends. Returns x. Closes x at once and throws where the
  scope has gone past that, or the thread does not work for it."
  [^Scope scope x close]
  (try
    (check-works-for! scope)
    (when-not (.addClose scope #(close x))
      (throw (error/closed (scope-name scope) :ended)))
    x
    (catch Throwable t
      (try (close! #(close x)) (catch Throwable other (.addSuppressed t other)))
      (throw t))))

;; The body

;; Armed in the body: the alarm of a scope whose body never began would hit the thread's later work.
;; With room for the end of the scope: it takes the alarm's interrupt back, also on a stack that the
;; body has filled.
(defn- begin! [^Scope scope f]
  (when (.-own-deadline scope) (wait/room 100))
  (.arm scope)
  (f scope))

(defn- attempt [^Scope scope f]
  (let [^ScopeBody body (.-body scope)]
    (try
      (let [value (.run body begin! scope f)]
        (Done. value))                  ; see thrum.impl.task/attempt
      (catch Throwable t
        (Failed. t))
      (finally
        (sync-point/reached :scope/body-ended)
        (.finish body)
        (place/enter! (.outer body))))))

(defn- classified
  "Returns the outcome that counts: a casualty of the cancel is Cancelled; a failure is recorded."
  [^Scope scope outcome]
  (if-some [t (when (instance? Failed outcome) (.-throwable ^Failed outcome))]
    (if (and (.cancelReason ^Place (.-body scope)) (error/casualty? t))
      (Cancelled. t)
      (do (.record ^Failures (.-failures scope) {:throwable t}) outcome))
    outcome))

(defn- cancelled? [^Scope scope]
  (some? (group/own-cancel-reason (.-group scope))))

(defn- await-forks!
  "Waits for the forks, if the body had a value. Returns the outcome: the same, or what ended the
  wait."
  [^Scope scope outcome]
  (if (and (instance? Done outcome) (not (cancelled? scope)))
    (try
      (group/await-idle! (.-group scope) #(or (.forksDone scope) (cancelled? scope)))
      outcome
      (catch Throwable t
        (classified scope (Failed. t))))
    outcome))

;; The outcome

(defn- own-timeout? [^Scope scope reason]
  (and (.hasExpired scope) (identical? timed-out reason)))

(defn- timeout [^Scope scope cause]
  (error/timeout (scope-name scope) (select-keys (.-options scope) [:timeout-ms]) cause))

(defn- after-deadline
  "Returns the outcome of a scope whose deadline came first."
  [^Scope scope cause]
  (if-some [fallback (:fallback (.-options scope))]
    (try (Done. (fallback)) (catch Throwable t (Failed. t)))
    (Failed. (timeout scope cause))))

(defn- after-cancel
  "Returns the outcome of a cancelled scope. t: what ended its body; nil: a fork was cancelled."
  [scope reason t]
  (Failed. (if (instance? CancellationException t)
             t
             (error/cancelled (scope-name scope) reason t))))

(defn- verdict
  "Returns the outcome of the scope, Done or Failed, from that of its body and from why the scope,
  and the work around it, was cancelled while it had work."
  [^Scope scope outcome own-reason outer-reason]
  (let [failures (.-failures scope)
        casualty (when (instance? Cancelled outcome) (.-reason ^Cancelled outcome))]
    (if-some [root (failures/root failures)]
      (Failed. (failures/merged root failures))
      (cond
        (and (own-timeout? scope own-reason) (or casualty (.forkCancelled scope)))
        (after-deadline scope casualty)

        casualty (after-cancel scope (or own-reason outer-reason) casualty)
        (and outer-reason (.forkCancelled scope)) (after-cancel scope outer-reason nil)
        :else outcome))))

;; The end

(defn- close-all!
  "Closes what was used. Returns the failures."
  ^Failures [^Scope scope]
  (let [failures (failures/failures)]
    (loop []
      (when-some [close (.nextToClose scope)]
        (try (close! close)
             (catch Throwable t (.record failures {:throwable t})))
        (recur)))
    failures))

(defn- after-closing
  "Returns the outcome when all that was used has been closed. A failed close is suppressed on the
  scope's failure, or is the failure."
  [^Scope scope outcome]
  (if (.stopUse scope)
    (let [closing (close-all! scope)]
      (if-some [first-failed (failures/root closing)]
        (Failed. (failures/merged (if (instance? Failed outcome)
                                    {:throwable (.-throwable ^Failed outcome)}
                                    first-failed)
                   closing))
        outcome))
    outcome))

(defn- throwable [outcome]
  (cond
    (instance? Failed outcome) (.-throwable ^Failed outcome)
    (instance? Cancelled outcome) (.-reason ^Cancelled outcome)))

(defn- give-back-interrupt!
  "Sets the interrupt flag again for a foreign interrupt that ended the body, or the wait for the
  forks, and that the scope does not throw."
  [^Scope scope outcome interrupted-further-out final]
  (let [t (throwable outcome)]
    (when (and (instance? InterruptedException t)
               (not (identical? t (throwable final)))
               (not (.wasInterrupted ^ScopeBody (.-body scope)))
               (not interrupted-further-out))
      (wait/give-back!))))

(defn- fork-lost?
  "True if a fork has failed, or was cancelled."
  [^Scope scope]
  (or (.forkCancelled scope)
      (some? (failures/root (.-failures scope)))))

(defn- concluded-with-forks
  "As concluded, from the body's outcome as classified, where a fork may have run on behind the body
  (idle?: none has), have failed or been cancelled, or the body has failed."
  [^Scope scope outcome idle?]
  (let [group (.-group scope)
        outcome (if idle? outcome (await-forks! scope outcome))
        own-reason (group/own-cancel-reason group)
        outer (when-not (.-shield scope) (.outer ^Place (.-body scope)))
        outer-reason (some-> ^Place outer .cancelReason)
        interrupted-further-out (place/interrupted? outer)]
    (when-not idle? (group/end! group :ended))
    (doto (after-closing scope (verdict scope outcome own-reason outer-reason))
      (->> (give-back-interrupt! scope outcome interrupted-further-out)))))

(defn- concluded
  "Waits for the forks, joins them, closes what was used, and returns the outcome of the scope."
  [^Scope scope outcome]
  (let [outcome (classified scope outcome)
        idle? (and (instance? Done outcome) (group/close-if-idle! (.-group scope) :ended))]
    ;; Most scopes: nothing is looked at that only a cancel or a failure could change.
    (if (and idle? (not (fork-lost? scope)))
      (after-closing scope outcome)
      (concluded-with-forks scope outcome idle?))))

(defn- end-anyway! [^Scope scope]
  (try
    (group/end! (.-group scope) :ended)
    (finally
      (when (.stopUse scope) (close-all! scope)))))

(defn- conclude
  "Runs the body and concludes the scope. When this returns or throws, no task runs any more and all
  resources are closed."
  [scope f]
  (try
    (concluded scope (attempt scope f))
    (catch Throwable t
      (end-anyway! scope)
      (throw t))))

(defn- value-of [outcome]
  (if (instance? Done outcome)
    (.-value ^Done outcome)
    (throw (.-throwable ^Failed outcome))))

;; A whole scope

(defn- scope
  ^Scope [{:keys [name deadline], :as options} ^Place outer shield]
  (let [parent (some-> outer .group)
        inherited (when-not shield (some-> parent group/deadline))
        own-deadline (when (deadline/earlier? deadline inherited) deadline)
        group (group/opened-group name parent deadline (some-> outer .task) shield)]
    (Scope. group
            (scope-body/scope-body group outer shield)
            (failures/failures)
            options
            own-deadline
            shield
            (when (identical? :keep (:on-error options)) (completed/completed))
            nil
            false
            false
            nil
            false)))

(defn- run
  "Runs f in the scope and returns or throws the scope's outcome. A deadline that has passed already
  lets nothing run."
  [^Scope scope f]
  (let [own-deadline (.-own-deadline scope)]
    (if (and own-deadline (deadline/passed? own-deadline))
      (value-of (after-deadline scope nil))
      (try
        (value-of (conclude scope f))
        (finally (.disarm scope))))))

(defn- run-registered [^Scope scope f]
  (let [entry (when-not (:unregistered? (.-options scope)) (registry/keep! :scope scope))]
    (try (run scope f) (finally (registry/forget! entry)))))

(defn- run-watched [scope f]
  (if (registry/watching?)
    (let [on-end (registry/observe-begin! :scope scope)]
      (try (run-registered scope f) (finally (registry/observe-end! on-end scope))))
    (run scope f)))

(defn call
  "Calls f with a scope on the calling thread and returns its value when every fork has ended.
  Options: :name; :deadline; :timeout-ms - for its message; :fallback - a thunk, called instead of
  throwing at the deadline; :on-deadline - a thunk, called at the deadline instead of cancelling the
  scope; :on-error; :wrap; :scoped-values; :unregistered? - see thrum.spi/call-in-scope."
  [options f]
  (let [outer (place/current)]
    (wait/check-state! outer)
    (run-watched (scope options outer false) f)))

(defn shielded
  "As call, for a body that goes on where the calling thread's work is cancelled."
  [options f]
  (wait/shielded #(run-watched (scope options (place/current) true) f)))
