(ns thrum.impl.group
  "A scope owns tasks: it ends only when all of them have ended. Its children are held strongly,
  added before they start, cancelled once, and joined."
  {:no-doc true}
  (:require
   [thrum.impl.context :as context]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.point :as point]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (java.util ArrayDeque ArrayList)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (java.util.concurrent.locks LockSupport)
   (thrum.impl.context Owned)
   (thrum.impl.task Child Owner Task)))

(set! *warn-on-reflection* true)

(definterface IScope
  (^String scopeName [])
  (reason [])
  (moment [])
  (^Object liftMoment [])
  (parent [])
  (^boolean isEmpty [])
  (^boolean accept [child])
  (^boolean enterParent [])
  (countEnd [])
  (leaveParent [])
  (^Object forget [child])
  (^Object close [reason])
  (^boolean closeEmpty [reason])
  (^Object closeForAll [reason])
  (^boolean cancelled [reason])
  (ownEnd [])
  (ownOpener [])
  (heard [])
  (^long running [])
  (^java.util.List children []))

(defn- add! [^ArrayList children ^Child child]
  (.setPlace child (.size children))
  (.add children child))

(defn- remove!
  "Takes a child out in constant time: the last one moves to its place."
  [^ArrayList children ^Child child]
  (let [place (.place child)
        ^Child last-child (.removeLast children)]
    (when-not (identical? child last-child)
      (.set children place last-child)
      (.setPlace last-child place))))

(defn- signal! [^AtomicReference waiter]
  (when-some [thread (.get waiter)]
    (when (.compareAndSet waiter thread nil)
      (LockSupport/unpark thread))))

(defn check-open!
  "Throws :thrum/closed when the scope, or one that it belongs to, has ended."
  [^IScope scope]
  (when-some [reason (.reason scope)]
    (throw (error/closed (.scopeName scope) reason))))

(defn- enter-parents!
  "Makes the scope a child of its parent, and that of its own, as far up as it is not yet so."
  [scope]
  (loop [^IScope scope scope, below nil]
    (cond
      (not (.enterParent scope)) (recur (.parent scope) (cons scope below))
      below (recur (first below) (next below)))))

(defn- end-child-of!
  "Notes that a child of the scope has ended; and where the scope leaves its parent for that, that a
  child of the parent has."
  [scope]
  (loop [^IScope scope scope]
    (when scope
      (recur (.countEnd scope)))))

(defn- leave-parents!
  "Takes back what enter-parents! did, where nothing runs in the scope."
  [scope]
  (loop [^IScope scope scope]
    (when scope
      (if-some [left (.leaveParent scope)]
        (end-child-of! left)
        (recur (.heard scope))))))

(defn- cancel-below!
  "Cancels the children of the scope, and theirs: in a loop, since scopes may nest as deep as tasks
  do."
  [^IScope scope why]
  (let [scopes (doto (ArrayDeque.) (.add scope))
        cancel (fn [child]
                 (if (instance? IScope child)
                   (do (.cancelled ^IScope child why)
                       (.close ^IScope child why)
                       (.add scopes child))
                   (.cancelFor ^Child child why)))]
    (while (not (.isEmpty scopes))
      (run! cancel (.children ^IScope (.poll scopes))))))

;; moment: its deadline, or its parent's where that is earlier; nil: none. shielded: it does not
;; hear of its parent's cancel.
(deftype Scope [^String name ^String prefix ^IScope parent opener ^:volatile-mutable moment shielded
                ^ArrayList children ^AtomicLong ended ^AtomicReference waiter
                ^:volatile-mutable reason
                ^:volatile-mutable cancel-reason
                ^:unsynchronized-mutable ^long added
                ^:unsynchronized-mutable in-parent
                ^:unsynchronized-mutable ^long place]
  IScope
  (scopeName [_] name)
  (moment [_] moment)
  (liftMoment [_] (set! moment nil))
  (parent [_] parent)
  (ownEnd [_] reason)
  (ownOpener [_] opener)
  (heard [_]
    (when-not shielded parent))
  (reason [this]
    (loop [^IScope scope this]
      (when scope
        (or (.ownEnd scope) (recur (.heard scope))))))
  (isEmpty [this]
    (locking this (= added (.get ended))))
  (running [this]
    (locking this (- added (.get ended))))
  ;; Locks are taken from child to parent, two at most. A scope is its parent's child while it has
  ;; children that run, so that an abandoned one is forgotten. It accepts a child only where it is:
  ;; then a cancel from further up finds that.
  (accept [this child]
    (point/reached :scope/adopt)
    (locking this
      (when reason (throw (error/closed name reason)))
      ;; What can fail for want of memory comes first.
      (.ensureCapacity children (inc (.size children)))
      (let [reachable (or in-parent shielded (nil? parent))]
        (when reachable
          (add! children child)
          (set! added (inc added)))
        (boolean reachable))))
  (enterParent [this]
    (locking this
      (or in-parent shielded (nil? parent)
          (set! in-parent (.accept parent this)))))
  (forget [this child]
    (locking this (remove! children child)))
  ;; A child that ends takes no lock: many end at once. It may see too low a number of children,
  ;; never too high a one. Returns the parent where the scope leaves it, and which has a child less.
  (countEnd [this]
    (point/reached :scope/over)
    (let [left (when (and (<= added (.incrementAndGet ended)) parent)
                 (.leaveParent this))]
      (signal! waiter)
      left))
  (leaveParent [this]
    (locking this
      (when (and in-parent (= added (.get ended)))
        (set! in-parent false)
        (.forget parent this)
        parent)))
  (close [this why]
    (locking this
      (when-not reason (set! reason why))))
  (closeEmpty [this why]
    (locking this
      (let [idle (= added (.get ended))]
        (when (and idle (nil? reason)) (set! reason why))
        idle)))
  (closeForAll [this why]
    (.close this why)
    (cancel-below! this why))
  (cancelled [this why]
    (locking this
      (let [over (and reason (= added (.get ended)))
            first-time (and (nil? cancel-reason) (not over))]
        (when first-time (set! cancel-reason why))
        first-time)))
  (children [this]
    (locking this (ArrayList. children)))

  Child
  (place [_] place)
  (setPlace [_ i] (set! place i) nil)
  (cancelFor [this why]
    (point/reached :scope/cancel)
    (let [first-time (.cancelled this why)]
      (.closeForAll this why)
      first-time))

  Owned
  (ownReason [_] cancel-reason)
  (cancelReason [this]
    (loop [^IScope scope this]
      (when scope
        (or (.ownReason ^Owned scope) (recur (.heard scope))))))
  (opener [this]
    (loop [^IScope scope this]
      (when scope
        (or (.ownOpener scope) (recur (.parent scope)))))))

(defn scope
  "Returns an open scope without children. It belongs to the parent (nil: to nobody): when that one
  is cancelled, so is this, unless :shield. :moment - its own deadline; :opener - the task whose
  thread opened it and waits for its end."
  (^Scope [name parent] (scope name parent nil))
  (^Scope [name ^Scope parent {:keys [moment opener shield]}]
   (let [inherited (when (and parent (not shield)) (.moment parent))]
     (Scope. name
             (.concat ^String name "/")
             parent
             opener
             (if (deadline/earlier? inherited moment) inherited moment)
             shield
             (ArrayList.)
             (AtomicLong.)
             (AtomicReference.)
             nil
             nil
             0
             false
             -1))))

(defn check-parent-open!
  "Throws :thrum/closed when what the scope belongs to has ended."
  [^Scope scope]
  (when-some [parent (.-parent scope)]
    (check-open! parent)))

(defn scope-name
  "Returns the scope's name."
  ^String [^Scope scope]
  (.scopeName scope))

(defn running
  "Returns how many children run."
  ^long [^Scope scope]
  (.running scope))

(defn cancel-reason
  "Returns why this scope itself was cancelled, or nil."
  [^Scope scope]
  (.ownReason scope))

(defn lift-deadline!
  "The scope has no deadline any more, for what begins in it from now on."
  [^Scope scope]
  (.liftMoment scope))

(defn moment
  "Returns the deadline of the scope, or nil."
  [^Scope scope]
  (.moment scope))

(defn within?
  "Tells whether the scope is the other one or belongs to it, also through others."
  [^Scope scope other]
  (loop [^IScope scope scope]
    (or (identical? scope other)
        (and (some? scope) (recur (.parent scope))))))

(defn reason
  "Returns why the scope, or one that it belongs to, has ended; nil while it is open."
  [^Scope scope]
  (.reason scope))

(defn adopt!
  "Makes what is not a task a child of the scope, until it leaves: the scope's end cancels it and
  waits for that. Throws :thrum/closed."
  [^Scope scope child]
  ;; Not all that a scope belongs to, when it is closed, closes that too. What is cancelled does.
  (check-open! scope)
  (when-not (.accept scope child)
    (try
      (loop []
        (enter-parents! scope)
        ;; A child that has ended since may have taken the scope out again.
        (when-not (.accept scope child) (recur)))
      (catch Throwable t
        (leave-parents! scope)
        (throw t)))))

(defn end-child!
  "Notes that a child has ended, which the scope holds until it is forgotten."
  [^Scope scope]
  (end-child-of! scope))

(defn leave!
  "Tells the scope that a child has ended and needs not be held any more."
  [^Scope scope child]
  (.forget scope child)
  (end-child! scope))

(defn- thread-name [^Scope scope ^Task task]
  (or (.taskName task)
      (.concat ^String (.-prefix scope) (Long/toString (.index task)))))

(defn start!
  "Starts a task on a fresh virtual thread, named after the task, or the scope and the task's index;
  the task's owner tells this scope when it has ended. Throws :thrum/closed, or what the thread's
  start threw; then the scope does not have the task."
  [^Scope scope ^Task task]
  (adopt! scope task)
  (try
    (task/start! task (jdk/virtual-thread (thread-name scope task) task))
    (catch Throwable t
      (leave! scope task)
      (throw t))))

;; A child that is not a task
(deftype Attachment [^Scope group cancel! ^:unsynchronized-mutable ^long place]
  Child
  (place [_] place)
  (setPlace [_ i] (set! place i) nil)
  (cancelFor [_ _] (cancel!)))

(defn attach!
  "Adds a child that (cancel!) cancels. Returns it, for detach!. Throws :thrum/closed."
  ^Attachment [group cancel!]
  (doto (Attachment. group cancel! -1)
    (->> (adopt! group))))

(defn detach!
  "Takes an attachment out."
  [^Attachment attachment]
  (leave! (.-group attachment) attachment))

(deftype Remover [^Scope group on-end]
  Owner
  (failed [_ _ _])
  (ended [_ task]
    (try
      (on-end task)
      (finally (leave! group task)))))

(defn start-alone!
  "Starts f as the only task of a group of that name, below the calling thread's. Its failure
  cancels nothing. Returns the task."
  [name on-end f]
  (let [group (scope name (context/current-scope))]
    (start! group (task/task (context/capture nil group) (Remover. group on-end) 0 f))))

(defn close!
  "From now on nothing can start in the scope; what runs goes on. The first reason stays."
  [^Scope scope reason]
  (.close scope reason))

(defn cancel!
  "Closes the scope and cancels its children, each once. Returns whether this was the first cancel,
  whose reason stays."
  [^Scope scope reason]
  (.cancelFor scope reason))

(defn await!
  "Waits until (ready?) is true; it is asked again whenever a child has ended. Only one thread at a
  time may wait. Throws CancellationException, InterruptedException."
  [^Scope scope ready?]
  (let [^AtomicReference waiter (.-waiter scope), self (Thread/currentThread)]
    (wait/until scope nil #(or (ready?)
                               (do (.set waiter self) (ready?))))))

(defn wake!
  "Has who waits for the scope ask again."
  [^Scope scope]
  (signal! (.-waiter scope)))

(defn empty-scope?
  "Tells whether nothing runs in the scope."
  [^Scope scope]
  (.isEmpty scope))

(defn- park-until-signal [^Scope scope]
  (.set ^AtomicReference (.-waiter scope) (Thread/currentThread))
  (when-not (empty-scope? scope)
    (LockSupport/park scope)))

(defn- join-anyway! [^Scope scope]
  (loop [interrupted? false]
    (point/reached :scope/join)
    (if (empty-scope? scope)
      (when interrupted? (.interrupt (Thread/currentThread)))
      (do
        (park-until-signal scope)
        (recur (or (Thread/interrupted) interrupted?))))))

(defn join!
  "Waits until nothing runs in the scope, however long that takes. An interrupt meanwhile is kept
  for the caller's next wait."
  [^Scope scope]
  (when-not (empty-scope? scope)
    (wait/undisturbed #(join-anyway! scope))))

(defn end-idle!
  "Closes the scope if nothing runs in it; returns whether it did."
  [^Scope scope reason]
  (.closeEmpty scope reason))

(defn end!
  "Closes the scope; what still runs in it is cancelled, and has ended when this returns."
  [^Scope scope reason]
  (when-not (.closeEmpty scope reason)
    (try
      (.closeForAll scope reason)
      (finally (join! scope)))))
