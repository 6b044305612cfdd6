(ns thrum.impl.group
  "A group of tasks and other children: it ends only when all of them have ended. Children are held
  strongly, added before they start, cancelled once, and joined."
  {:no-doc true}
  (:require
   [thrum.impl.deadline :as deadline]
   [thrum.impl.error :as error]
   [thrum.impl.jdk :as jdk]
   [thrum.impl.sync-point :as sync-point]
   [thrum.impl.task :as task]
   [thrum.impl.wait :as wait])
  (:import
   (java.util ArrayDeque ArrayList)
   (java.util.concurrent Future)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (java.util.concurrent.locks LockSupport)
   (thrum.impl.place Cancellable)
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
  (endReason [])
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
  (countEnd [])
  (afterEnd [])
  (leaveParent [])
  (^boolean remove [child])
  (^boolean holds [child])
  (^Object close [reason])
  (^boolean closeIfIdle [reason])
  (^Object closeAll [reason])
  (^boolean markCancelled [reason])
  (ownEndReason [])
  (ownOpener [])
  (cancellingParent [])
  (^long running [])
  (^long started [])
  (^java.util.List children []))

(defn- append! [^ArrayList children ^Child child]
  (.setSlot child (.size children))
  (.add children child))

;; What a group has from its first child, or its first wait, on: most scopes have neither. ended:
;; how many of the added children have ended. waiter: the thread that waits for children.
;; idle-waiter: the one that waits until nothing runs.
(deftype Children [^ArrayList held ^AtomicLong ended
                   ^AtomicReference waiter ^AtomicReference idle-waiter])

(defn- no-children ^Children []
  (Children. (ArrayList.) (AtomicLong.) (AtomicReference.) (AtomicReference.)))

(defn- take-out!
  "Takes a child out in constant time: the last child moves to its slot. Returns false for a child
  that is out."
  [^ArrayList children ^Child child]
  (let [slot (.slot child), held (<= 0 slot)]
    (when held
      (let [^Child last-child (.removeLast children)]
        (when-not (identical? child last-child)
          (.set children slot last-child)
          (.setSlot last-child slot))
        (.setSlot child -1)))
    held))

(defn check-open!
  "Throws :thrum/closed when the group, or one around it, has ended."
  [^IGroup group]
  (when-some [reason (.endReason group)]
    (throw (error/closed (.groupName group) reason))))

(defn check-going-on!
  "Throws when the group (nil: none), or one around it, has ended: CancellationException where the
  calling thread's work is cancelled, :thrum/closed otherwise."
  [^IGroup group]
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

(defn child-ended!
  "Counts the end of a child, which the group still holds. Where the group leaves its parent for
  that, the parent counts the end of the group."
  [group]
  (loop [^IGroup group group]
    (when group
      (recur (.countEnd group)))))

(defn member-ended!
  "To be called when one of the members has ended."
  [^IGroup group]
  (child-ended! (.afterEnd group)))

(defn- leave-parents!
  "Takes back what enter-parents! did, where nothing runs in the group."
  [group]
  (loop [^IGroup group group]
    (when group
      (if-some [left (.leaveParent group)]
        (child-ended! left)
        (recur (.cancellingParent group))))))

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
;; shielded: its parent's cancel does not reach it. children: nil before the first. members: the
;; tasks of a fan-out, or nil.
(deftype Group [^String kind unique? ^IGroup parent opener
                ^:volatile-mutable deadline shielded
                ^:volatile-mutable ^Children children
                ^:volatile-mutable end-reason
                ^:volatile-mutable cancel-reason
                ^:unsynchronized-mutable ^long added
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
  (endReason [this]
    (loop [^IGroup group this]
      (when group
        (or (.ownEndReason group) (recur (.cancellingParent group))))))
  (setMembers [_ m] (set! members m))
  (members [_] members)
  (childrenNow [_] children)
  (madeChildren [this]
    (or children
        (locking this
          (or children (set! children (no-children))))))
  (isEmpty [this]
    (locking this
      (and (or (zero? added) (= added (.get ^AtomicLong (.-ended children))))
           (boolean (none-run? members)))))
  (running [this]
    (locking this
      (+ (if (zero? added) 0 (- added (.get ^AtomicLong (.-ended children))))
         (if members (.running ^Members members) 0))))
  (started [this]
    (locking this
      (+ added (if members (.added ^Members members) 0))))
  ;; Locks are taken from child to parent, two at most. A group is its parent's child only while
  ;; children of its own run, so that an abandoned one can be collected. It accepts a child only
  ;; while its parent holds it: then a cancel from further up reaches the child.
  (accept [this child]
    (sync-point/reached :group/add)
    (locking this
      (when end-reason (throw (error/closed (.groupName this) end-reason)))
      ;; What can fail for want of memory comes first.
      (let [^ArrayList held (.-held ^Children (.madeChildren this))
            _ (.ensureCapacity held (inc (.size held)))
            reachable (.isReachable this)]
        (when reachable
          (append! held child)
          (set! added (inc added)))
        reachable)))
  (isReachable [_]
    (boolean (or in-parent shielded (nil? parent))))
  (enterParent [this]
    (locking this
      (or (.isReachable this)
          (set! in-parent (.accept parent this)))))
  (remove [this child]
    (locking this
      (and (some? children) (take-out! (.-held children) child))))
  (holds [this child]
    (locking this (<= 0 (.slot ^Child child))))
  ;; A child that ends takes no lock: many end at once. It may see too low a number of children,
  ;; never too high a one. Returns the parent where the group leaves it, and which has a child less.
  (countEnd [this]
    (sync-point/reached :group/child-ended)
    (.incrementAndGet ^AtomicLong (.-ended children))
    (.afterEnd this))
  (afterEnd [this]
    (let [children children]
      (when children (wait/signal! (.-waiter children)))
      (when (and (or parent (and children (.get ^AtomicReference (.-idle-waiter children))))
                 (or (nil? children) (<= added (.get ^AtomicLong (.-ended children))))
                 (none-run? members))
        (let [left (when parent (.leaveParent this))]
          (when children (wait/signal! (.-idle-waiter children)))
          left))))
  ;; A member that starts sees that the group is out, or is seen to run here.
  (leaveParent [this]
    (locking this
      (when (and in-parent (.isEmpty this))
        (set! in-parent false)
        (if (.isEmpty this)
          (do (.remove parent this) parent)
          (do (set! in-parent true) nil)))))
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
  (children [this]
    (locking this
      (if children (ArrayList. ^ArrayList (.-held children)) (ArrayList.))))

  Child
  (slot [_] slot)
  (setSlot [_ i] (set! slot i) nil)
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
  (opener [this]
    (loop [^IGroup group this]
      (when group
        (or (.ownOpener group) (recur (.parent group)))))))

(defn- new-group ^Group [kind unique? ^Group parent deadline opener shield]
  (let [inherited (when (and parent (not shield)) (.deadline parent))
        deadline (if (deadline/earlier? inherited deadline) inherited deadline)]
    (Group. kind unique? parent opener deadline shield
            nil nil nil 0 false nil -1 nil nil)))

(defn group
  "Returns an open group of that name, without children. It belongs to the parent (nil: to none): a
  cancel of the parent cancels it."
  ^Group [name parent]
  (new-group name false parent nil nil nil))

(defn unique-group
  "As group, with a name that no other has, kind-n. deadline: its own; opener: the task whose thread
  opened it and waits for its end; shield: true if a cancel of the parent does not reach it."
  ^Group [kind parent deadline opener shield]
  (new-group kind true parent deadline opener shield))

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
  (.holds group child))

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

(defn remove-child!
  "Takes a child out that has ended, unless it is out."
  [^Group group child]
  (when (.remove group child) (child-ended! group)))

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
      (remove-child! group task)
      (throw t))))

;; Its end

(defn- made-children ^Children [^Group group]
  (.madeChildren group))

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
   (wait/await-signal! group (.-waiter (made-children group)) deadline ready?)))

(defn await-idle!
  "As await!, but (ready?) is called again when nothing runs any more, and after wake!."
  [^Group group ready?]
  (wait/look! ready?)
  (wait/await-signal! group (.-idle-waiter (made-children group)) nil ready?))

(defn wake!
  "Has the thread that waits for the group call its (ready?) again."
  [^Group group]
  (when-some [^Children children (.childrenNow group)]
    (wait/signal! (.-waiter children))
    (wait/signal! (.-idle-waiter children))))

(defn empty-group?
  "True if nothing runs in the group."
  [^Group group]
  (.isEmpty group))

(defn- park-until-signal [^Group group]
  (.set ^AtomicReference (.-idle-waiter (made-children group)) (Thread/currentThread))
  (when-not (empty-group? group)
    (LockSupport/park group)))

(defn- join-anyway! [^Group group]
  (loop [interrupted? false]
    (sync-point/reached :group/join)
    (if (empty-group? group)
      (when interrupted? (.interrupt (Thread/currentThread)))
      (do (park-until-signal group)
          (recur (or (Thread/interrupted) interrupted?))))))

(defn join!
  "Waits until nothing runs in the group, however long that takes. An interrupt meanwhile is kept
  for the caller's next wait."
  [^Group group]
  (when-not (empty-group? group)
    (wait/undisturbed #(join-anyway! group))))

(defn close-if-idle!
  "Closes the group if nothing runs in it. Returns whether nothing does."
  [^Group group reason]
  (.closeIfIdle group reason))

(defn end!
  "Closes the group, cancels what still runs in it, and waits until that has ended."
  [^Group group reason]
  (when-not (.closeIfIdle group reason)
    (try
      (.closeAll group reason)
      (finally (join! group)))))
