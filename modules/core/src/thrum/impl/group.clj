(ns thrum.impl.group
  "A group of tasks and other children: it ends only when all of them have ended. Children are held
  strongly, added before they start, cancelled once, and joined. A child that ends takes no lock and
  touches nothing that the next one's start writes."
  {:no-doc true}
  (:require
   [thrum.impl.cache-line :as cache-line]
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.running :as running]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (java.util ArrayDeque ArrayList)
   (java.util.concurrent Future)
   (java.util.concurrent.atomic AtomicLongArray AtomicReference)
   (thrum.impl.place Cancellable)
   (thrum.impl.running Running)
   (thrum.impl.task Child ITask Task)))

(set! *warn-on-reflection* true)

;; No protocols: with those of core a scope with a fork costs 1.2 x the CPU (decision 32).

;; The tasks of a fan-out, which the group does not hold one by one.
(definterface Members
  (^long added [])
  (^long running [])
  (tasks [])
  (^Object cancelAll [reason]))

(definterface IGroup
  (^String groupName [])
  (^String threadPrefix [])
  (deadline [])
  (^Object liftDeadline [])
  (parent [])
  (^Object setMembers [members])
  (members [])
  (^boolean isEmpty [])
  (childrenNow [])
  (madeChildren [])
  (^boolean accept [child])
  (^boolean isReachable [])
  (^boolean enterParent [])
  (afterEnd [])
  (leaveParent [])
  (^Object close [reason])
  (^boolean closeIfIdle [reason])
  (^Object closeAll [reason])
  (^boolean markCancelled [reason])
  (ownEndReason [])
  (ownOpener [])
  (cancellingParent [])
  (^boolean leaves [])
  (^long running [])
  (^long started [])
  (^java.util.List children []))

;; The indices of the numbers of Running that are a group's. Threads that start children write those
;; of the first cache line, children that end those of the other. added, ended: all children;
;; numbered, awaited, awaited-ended: the tasks of a scope or a joiner alone, see next-index!.
(def ^:private ^:const added-at (inc cache-line/index))
(def ^:private ^:const numbered-at (inc added-at))
(def ^:private ^:const awaited-at (inc numbered-at))
(def ^:private ^:const ended-at cache-line/other-index)
(def ^:private ^:const awaited-ended-at (inc ended-at))

;; What a group has from its first child, or its first wait, on: most scopes have neither. No field
;; changes. leaves: the group leaves its parent when the last child has ended. waiter: the thread
;; that waits for children. idle-waiter: the one that waits until nothing runs.
(deftype Children [^IGroup group leaves ^Running held ^AtomicLongArray numbers
                   ^AtomicReference waiter ^AtomicReference idle-waiter])

(defn- no-children ^Children [^IGroup group]
  (let [running (running/running)]
    (Children. group (.leaves group) running (.-numbers running)
               (AtomicReference.) (AtomicReference.))))

(defn- count-added ^long [^Children children]
  (if children (.get ^AtomicLongArray (.-numbers children) added-at) 0))

(defn- count-running
  "Returns how many children run, or more where some end or come meanwhile; nil: 0."
  ^long [^Children children]
  (if children
    ;; What has ended first: a child that comes in between then counts as running.
    (let [n (.get ^AtomicLongArray (.-numbers children) ended-at)]
      (- (.get ^AtomicLongArray (.-numbers children) added-at) n))
    0))

(defn- append! [^Children children child]
  (.add ^Running (.-held children) child)
  (let [^AtomicLongArray numbers (.-numbers children)]
    (.lazySet numbers added-at (inc (.get numbers added-at)))))

(defn check-open!
  "Throws :thrum/closed when the group, or one around it, has ended."
  [^IGroup group]
  (when-some [reason (.endReason ^Cancellable group)]
    (throw (error/closed (.groupName group) reason))))

(defn check-going-on!
  "Throws when the group (nil: none), or one around it, has ended: CancellationException where the
  calling thread's work is cancelled, :thrum/closed otherwise."
  [^Cancellable group]
  (when (and group (.endReason group))
    (wait/check-state!)
    (check-open! group)))

(defn- enter-parents!
  "Makes the group a child of its parent, and so on upwards, as far as that is not so yet."
  [group]
  (loop [^IGroup group group, below nil]
    (cond
      (not (.enterParent group)) (recur (.parent group) (cons group below))
      below (recur (first below) (next below)))))

(defn idle-awaited?
  "True if a thread waits in await-idle!."
  [^Children children]
  (some? (.get ^AtomicReference (.-idle-waiter children))))

(defn- count-end!
  "Counts the end of a child, on its thread. Returns the parent where the group leaves it, and which
  has a child less."
  [^Children children]
  (sync-point/reached :group/child-ended)
  (.incrementAndGet ^AtomicLongArray (.-numbers children) ended-at)
  (wait/signal! (.-waiter children))
  (when (or (.-leaves children) (idle-awaited? children))
    (.afterEnd ^IGroup (.-group children))))

(defn child-ended!
  "Counts the end of a child, which its group still holds."
  [children]
  (loop [children children]
    (when-some [^IGroup left (count-end! children)]
      (recur (.childrenNow left)))))

(defn leave!
  "Takes the group out of its parent, unless something runs in it. Returns true if it was in."
  [^IGroup group]
  (when-some [^IGroup left (.leaveParent group)]
    (child-ended! (.childrenNow left))
    true))

(defn member-ended!
  "To be called when one of the members has ended."
  [^IGroup group]
  (when (or (.leaves group) (some-> (.childrenNow group) idle-awaited?))
    (when-some [^IGroup left (.afterEnd group)]
      (child-ended! (.childrenNow left)))))

(defn- leave-parents!
  "Takes back what enter-parents! did, where nothing runs in the group."
  [group]
  (loop [^IGroup group group]
    (when-not (or (nil? group) (leave! group))
      (recur (.cancellingParent group)))))

(defn- cancel-below!
  "Cancels the children of the group, and theirs: in a loop, since groups may nest as deep as tasks
  do."
  [^IGroup group why]
  (let [groups (doto (ArrayDeque.) (.add group))
        cancel (fn [child]
                 (if (instance? IGroup child)
                   (do (.markCancelled ^IGroup child why)
                       (.close ^IGroup child why)
                       (.add groups child))
                   (.cancelFor ^Child child why)))]
    (while (not (.isEmpty groups))
      (let [^IGroup group (.poll groups)]
        (some-> ^Members (.members group) (.cancelAll why))
        (run! cancel (.children group))))))

(defn- none-run? [^Members members]
  (or (nil? members) (zero? (.running members))))

;; kind: its name, where it is unique? with a number behind it, which it gets when it is first asked
;; for its name: most scopes never are. deadline: its own or its parent's, the earlier one.
;; shielded: its parent's cancel does not reach it. stays: its opener ends it in any case, and
;; until then it is its parent's child. children: nil before the first. members: the tasks of a
;; fan-out, or nil.
(deftype Group [^String kind unique? ^IGroup parent opener
                ^:volatile-mutable deadline shielded stays
                ^:volatile-mutable ^Children children
                ^:volatile-mutable end-reason
                ^:volatile-mutable cancel-reason
                ^:volatile-mutable in-parent
                ^:unsynchronized-mutable members
                ^:unsynchronized-mutable ^long slot
                ^:unsynchronized-mutable ^String name
                ^:unsynchronized-mutable ^String prefix]
  IGroup
  ;; With the lock: two threads must not get two numbers.
  (groupName [this]
    (or name
        (locking this
          (or name
              (set! name (if unique? (task/unique-name kind) kind))))))
  (threadPrefix [this]
    (or prefix
        (set! prefix (.concat (.groupName this) "/"))))
  (deadline [_] deadline)
  (liftDeadline [_] (set! deadline nil))
  (parent [_] parent)
  (ownEndReason [_] end-reason)
  (ownOpener [_] opener)
  (cancellingParent [_]
    (when-not shielded parent))
  (leaves [_]
    (and (some? parent) (not stays)))
  (setMembers [_ m] (set! members m))
  (members [_] members)
  (childrenNow [_] children)
  (madeChildren [this]
    (or children
        (locking this
          (or children (set! children (no-children this))))))
  (running [_]
    (+ (count-running children)
       (if members (.running ^Members members) 0)))
  (started [_]
    (+ (count-added children)
       (if members (.added ^Members members) 0)))
  ;; With the lock: none is added meanwhile.
  (isEmpty [this]
    (locking this
      (and (zero? (count-running children))
           (none-run? members))))
  ;; Locks are taken from child to parent, two at most. A group is its parent's child only while
  ;; children of its own run, so that an abandoned one can be collected; one that stays, until it
  ;; ends. It accepts a child only while its parent holds it: then a cancel from further up reaches
  ;; the child.
  (accept [this child]
    (sync-point/reached :group/add)
    (locking this
      (when end-reason (throw (error/closed (.groupName this) end-reason)))
      (let [reachable (.isReachable this)]
        (when reachable (append! (.madeChildren this) child))
        reachable)))
  (isReachable [_]
    (boolean (or in-parent shielded (nil? parent))))
  (enterParent [this]
    (locking this
      (or (.isReachable this)
          (set! in-parent (.accept parent this)))))
  ;; A child that ends takes no lock: many end at once. Returns the parent where the group leaves
  ;; it, and which has a child less.
  (afterEnd [this]
    (let [^Children children children]
      (when (and (zero? (count-running children)) (none-run? members))
        (let [left (when (.leaves this) (.leaveParent this))]
          (when children (wait/signal! (.-idle-waiter children)))
          left))))
  ;; A member that starts sees that the group is out, or is seen to run here.
  (leaveParent [this]
    (when in-parent
      (locking this
        (when (and in-parent (.isEmpty this))
          (set! in-parent false)
          (if (.isEmpty this)
            (do (.forget ^Running (.-held ^Children (.childrenNow parent)) this) parent)
            (do (set! in-parent true) nil))))))
  (close [this why]
    (locking this
      (when-not end-reason (set! end-reason why))))
  (closeIfIdle [this why]
    (locking this
      (let [idle (.isEmpty this)]
        (when (and idle (nil? end-reason)) (set! end-reason why))
        idle)))
  (closeAll [this why]
    (.close this why)
    (cancel-below! this why))
  (markCancelled [this why]
    (locking this
      (let [over (and end-reason (.isEmpty this))
            first-time (and (nil? cancel-reason) (not over))]
        (when first-time (set! cancel-reason why))
        first-time)))
  (children [_]
    (if children (.children ^Running (.-held children)) (ArrayList.)))

  Child
  (slot [_] slot)
  (setSlot [_ i] (set! slot i) nil)
  (isGone [_] false)
  (cancelFor [this why]
    (sync-point/reached :group/cancel)
    (let [first-time (.markCancelled this why)]
      (sync-point/reached :group/marked)
      (.closeAll this why)
      first-time))

  Cancellable
  (ownCancelReason [_] cancel-reason)
  (cancelReason [this]
    (loop [^IGroup group this]
      (when group
        (or (.ownCancelReason ^Cancellable group) (recur (.cancellingParent group))))))
  (endReason [this]
    (loop [^IGroup group this]
      (when group
        (or (.ownEndReason group) (recur (.cancellingParent group))))))
  (opener [this]
    (loop [^IGroup group this]
      (when group
        (or (.ownOpener group) (recur (.parent group)))))))

(defn- new-group ^Group [kind unique? ^Group parent deadline opener shield stays]
  (let [inherited (when (and parent (not shield)) (.deadline parent))
        deadline (if (deadline/earlier? inherited deadline) inherited deadline)]
    (Group. kind unique? parent opener deadline shield stays
            nil nil nil false nil -1 nil nil)))

(defn group
  "Returns an open group of that name, without children. It belongs to the parent (nil: to none): a
  cancel of the parent cancels it."
  ^Group [name parent]
  (new-group name false parent nil nil nil false))

(defn unique-group
  "As group, with a name that no other has, kind-n."
  ^Group [kind parent]
  (new-group kind true parent nil nil nil false))

(defn opened-group
  "As unique-group, for a thread that ends the group in any case. deadline: its own; opener: the
  task of that thread, or nil; shield: true if a cancel of the parent does not reach it."
  ^Group [kind parent deadline opener shield]
  (new-group kind true parent deadline opener shield true))

(defn group-name
  "Returns the group's name."
  ^String [^Group group]
  (.groupName group))

(defn thread-prefix
  "Returns what the names of its tasks' threads begin with."
  ^String [^Group group]
  (.threadPrefix group))

(defn running
  "Returns how many children run."
  ^long [^Group group]
  (.running group))

(defn started
  "Returns how many children have been started."
  [^Group group]
  (.started group))

(defn parent
  "Returns the group that this one belongs to, or nil."
  [^Group group]
  (.parent group))

(defn children
  "Returns the children that run: tasks, groups and attachments."
  [^Group group]
  (into (vec (some-> ^Members (.members group) .tasks))
        (remove #(and (instance? ITask %) (.isDone ^Future %) (nil? (.thread ^ITask %))))
        (.children group)))

(defn holds?
  "True if the child has not ended."
  [^Group group child]
  (let [^Children children (.childrenNow group)]
    (and (some? children) (.holds ^Running (.-held children) child))))

(defn own-cancel-reason
  "Returns why this group itself was cancelled, or nil."
  [^Group group]
  (.ownCancelReason group))

(defn cancel-reason
  "Returns why this group, or one around it, was cancelled, or nil."
  [^Group group]
  (.cancelReason group))

(defn end-reason
  "Returns why the group, or one around it, has ended; nil while it is open."
  [^Group group]
  (.endReason group))

(defn state
  "Returns :cancelled, :ended or :open."
  [group]
  (cond
    (cancel-reason group) :cancelled
    (end-reason group) :ended
    :else :open))

(defn deadline
  "Returns the deadline of the group, or nil."
  [^Group group]
  (.deadline group))

(defn lift-deadline!
  "Takes the group's deadline away, for what begins in it from now on."
  [^Group group]
  (.liftDeadline group))

(defn within?
  "True if the group is the other one, or belongs to it, also through others."
  [^Group group other]
  (loop [^IGroup group group]
    (or (identical? group other)
        (and (some? group) (recur (.parent group))))))

;; Children come and go

(defn- enter-until!
  "Makes the group a child of its parents until (accepted?) is true; of none of them where that
  throws."
  [group accepted?]
  (try
    (loop []
      (enter-parents! group)
      ;; A child that has ended since may have taken the group out again.
      (when-not (accepted?) (recur)))
    (catch Throwable t
      (leave-parents! group)
      (throw t))))

(defn add-child!
  "Makes the child part of the group until it leaves: the end of the group cancels it and waits for
  it. Throws :thrum/closed."
  [^Group group child]
  ;; A group around this one may be closed without having closed this one; a cancel closes both.
  (check-open! group)
  (when-not (.accept group child)
    (enter-until! group #(.accept group child))))

(defn children-of
  "Returns what child-left! and child-ended! take: the group's children."
  ^Children [^Group group]
  (.madeChildren group))

(defn child-left!
  "Takes a child out that has ended, unless it is out."
  [^Children children child]
  (when (.forget ^Running (.-held children) child)
    (child-ended! children)))

(defn admit-member!
  "To be called when a member has been added, before it runs: makes sure that a cancel of the group
  finds it. Throws as check-going-on! does."
  [^Group group]
  (check-going-on! group)
  (when-not (.isReachable group)
    (enter-until! group #(.isReachable group))))

(defn- thread-name [^Group group ^Task task]
  (or (.taskName task)
      (.concat (.threadPrefix group) (Long/toString (.index task)))))

(defn start!
  "Starts a task of the group on a fresh virtual thread and returns the task. The thread is named
  after the task, or else the group and the task's index. The task's handler takes it out when it
  has ended. Throws :thrum/closed, or what the thread's start threw; then the group does not have
  the task."
  [^Group group ^Task task]
  (add-child! group task)
  (try
    (task/start! task (jdk/virtual-thread (thread-name group task) task))
    (catch Throwable t
      (child-left! (children-of group) task)
      (throw t))))

;; What a scope or a joiner counts of its own tasks; what runs inside of them may add children too

(defn next-index!
  "Returns the index of the next task, from 0."
  ^long [^Children children]
  (.getAndIncrement ^AtomicLongArray (.-numbers children) numbered-at))

(defn add-awaited!
  "Counts n more tasks that are waited for; -1 takes back one that could not start."
  ^long [^Children children ^long n]
  (.getAndAdd ^AtomicLongArray (.-numbers children) awaited-at n))

(defn awaited-ended!
  "Counts the end of a task that is waited for."
  ^long [^Children children]
  (.getAndIncrement ^AtomicLongArray (.-numbers children) awaited-ended-at))

(defn awaited-ended
  "Returns how many of them have ended."
  ^long [^Children children]
  (.get ^AtomicLongArray (.-numbers children) awaited-ended-at))

(defn none-awaited?
  "True if all of them have ended."
  [^Children children]
  ;; Those that have ended first: one that begins in between is then waited for.
  (let [ended (awaited-ended children)]
    (= ended (.get ^AtomicLongArray (.-numbers children) awaited-at))))

;; Its end

(defn close!
  "Lets nothing more start in the group; what runs goes on. The first reason stays."
  [^Group group reason]
  (.close group reason))

(defn cancel!
  "Closes the group and cancels its children, each once. Returns whether this was the first cancel,
  whose reason stays."
  [^Group group reason]
  (.cancelFor group reason))

(defn await!
  "Waits until (ready?) is true; it is called again whenever a child has ended. Only one thread at a
  time may wait. Returns false when the deadline (nil: none) comes first. Throws
  CancellationException, InterruptedException."
  ([group ready?] (await! group nil ready?))
  ([^Group group deadline ready?]
   (wait/await-signal! group (.-waiter (children-of group)) deadline ready?)))

(defn await-idle!
  "As await!, but (ready?) is called again when nothing runs any more, and after wake!."
  [^Group group ready?]
  (wait/look! ready?)
  (wait/await-signal! group (.-idle-waiter (children-of group)) nil ready?))

(defn wake!
  "Has the thread that waits in await-idle! call its (ready?) again."
  [^Group group]
  (when-some [^Children children (.childrenNow group)]
    (wait/signal! (.-idle-waiter children))))

(defn empty-group?
  "True if nothing runs in the group."
  [^Group group]
  (.isEmpty group))

(defn join!
  "Waits until nothing runs in the group, however long that takes. An interrupt meanwhile is kept
  for the caller's next wait."
  [^Group group]
  (when-not (empty-group? group)
    (wait/until-anyway group (.-idle-waiter (children-of group))
      (fn []
        (sync-point/reached :group/join)
        (empty-group? group)))))

(defn close-if-idle!
  "Closes the group if nothing runs in it. Returns whether nothing does."
  [^Group group reason]
  (let [idle (.closeIfIdle group reason)]
    (when idle (leave! group))
    idle))

(defn end!
  "Closes the group, cancels what still runs in it, and waits until that has ended."
  [^Group group reason]
  (when-not (close-if-idle! group reason)
    (try
      (.closeAll group reason)
      (finally
        (join! group)
        (leave! group)))))
