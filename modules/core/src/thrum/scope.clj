(ns thrum.scope
  "A scope owns tasks: it ends only when all of them have ended. Its children are held strongly, added before they
  start, cancelled once, and joined."
  (:require [thrum.error :as error]
            [thrum.task :as task])
  (:import (java.util ArrayList)
           (java.util.concurrent.atomic AtomicInteger AtomicReference)
           (java.util.concurrent.locks LockSupport)
           (thrum.task Child)))

(set! *warn-on-reflection* true)

(definterface IScope
  (^String scopeName [])
  (reason [])
  (^boolean isEmpty [])
  (^Object adopt [child])
  (^Object release [child])
  (^Object leaveParent [])
  (^Object close [reason])
  (^java.util.List children []))

;; The children stand in a ring of slots. One that has ended clears its slot, without a lock; the slot is taken out of the
;; ring by those that come after: each adds one and looks at the next two, so that about half of the ring is in use.

(definterface ISlot
  (child [])
  (next [])
  (^Object setNext [slot])
  (^Object clear []))

(deftype Slot [^:volatile-mutable child ^:unsynchronized-mutable next]
  ISlot
  (child [_] child)
  (next [_] next)
  (setNext [_ slot] (set! next slot))
  (clear [_] (set! child nil)))

(defn- add-after! [^ISlot slot child]
  (let [added (Slot. child (.next slot))]
    (.setNext slot added)
    added))

(defn- swept
  "Takes the slot after this one out if it is empty; returns where to go on."
  [^ISlot slot anchor]
  (let [^ISlot after (.next slot)]
    (if (or (some? (.child after)) (identical? after anchor))
      after
      (do (.setNext slot (.next after)) slot))))

(defn- ring
  "Returns a ring of one slot, that stays."
  []
  (let [anchor (Slot. nil nil)]
    (.setNext anchor anchor)
    anchor))

(defn- present [^ISlot anchor]
  (let [found (ArrayList.)]
    (loop [^ISlot slot (.next anchor)]
      (when-not (identical? slot anchor)
        (some->> (.child slot) (.add found))
        (recur (.next slot))))
    found))

(defn- signal! [^AtomicReference waiter]
  (when-some [thread (.get waiter)]
    (when (.compareAndSet waiter thread nil)
      (LockSupport/unpark thread))))

(defn check-open!
  "Throws :thrum/closed when the scope, or one that it belongs to, has ended."
  [^IScope scope]
  (when-some [reason (.reason scope)]
    (throw (error/closed (.scopeName scope) reason))))

(deftype Scope [^String name ^IScope parent ^Slot anchor ^AtomicInteger running ^AtomicReference waiter
                ^:volatile-mutable reason
                ^:unsynchronized-mutable cursor
                ^:unsynchronized-mutable in-parent
                ^:volatile-mutable slot]
  IScope
  (scopeName [_] name)
  (reason [_]
    (if (and (nil? reason) parent) (.reason parent) reason))
  (isEmpty [_]
    (zero? (.get running)))
  ;; Locks are taken from child to parent. A scope is its parent's child while it has children itself, so that an
  ;; abandoned one is forgotten.
  (adopt [this child]
    (locking this
      (check-open! this)
      (when (and parent (not in-parent))
        (.adopt parent this)
        (set! in-parent true))
      (.incrementAndGet running)
      (let [slot (add-after! cursor child)]
        (.setSlot ^Child child slot)
        (set! cursor (-> slot (swept anchor) (swept anchor))))))
  (release [this child]
    (.clear ^Slot (.slot ^Child child))
    (when (and (zero? (.decrementAndGet running)) parent)
      (.leaveParent this))
    (signal! waiter))
  (leaveParent [this]
    (locking this
      (when (and in-parent (.isEmpty this))
        (set! in-parent false)
        (.release parent this))))
  (close [_ why]
    (when-not reason (set! reason why)))
  (children [this]
    (locking this (present anchor)))

  Child
  (slot [_] slot)
  (setSlot [_ s] (set! slot s))
  (cancelFor [this why]
    (.close this why)
    (run! #(.cancelFor ^Child % why) (.children this))))

(defn scope
  "Returns an open scope without children. It belongs to the parent (nil: to nobody): when that one is cancelled, so is this."
  ^Scope [name parent]
  (let [anchor (ring)]
    (Scope. name parent anchor (AtomicInteger.) (AtomicReference.) nil anchor false nil)))

(defn check-parent-open!
  "Throws :thrum/closed when what the scope belongs to has ended."
  [^Scope scope]
  (when-some [parent (.-parent scope)]
    (check-open! parent)))

(defn reason
  "Returns why the scope, or one that it belongs to, has ended; nil while it is open."
  [^Scope scope]
  (.reason scope))

(defn start!
  "Starts a task on its thread; the task's owner releases it from this scope. Throws :thrum/closed, or what the thread's
  start threw; then the scope does not have the task."
  [^Scope scope task thread]
  (.adopt scope task)
  (try
    (task/start! task thread)
    (catch Throwable t
      (.release scope task)
      (throw t))))

(defn close!
  "From now on nothing can start in the scope; what runs goes on. The first reason stays."
  [^Scope scope reason]
  (.close scope reason))

(defn cancel!
  "Closes the scope and cancels its children, each once."
  [^Scope scope reason]
  (.cancelFor scope reason))

(defn- park-until [^Scope scope ready?]
  (.set ^AtomicReference (.-waiter scope) (Thread/currentThread))
  (when-not (ready?)
    (LockSupport/park scope)))

(defn await!
  "Parks the calling thread until (ready?) is true; it is asked again whenever a child has ended. Only one thread at a time
  may wait. Throws InterruptedException."
  [^Scope scope ready?]
  (while (not (ready?))
    (when (Thread/interrupted)
      (throw (InterruptedException.)))
    (park-until scope ready?)))

(defn empty-scope?
  "Tells whether nothing runs in the scope."
  [^Scope scope]
  (.isEmpty scope))

(defn join!
  "Waits until nothing runs in the scope, however long that takes. An interrupt meanwhile is kept for the caller's next wait."
  [^Scope scope]
  (loop [interrupted? false]
    (if (empty-scope? scope)
      (when interrupted? (.interrupt (Thread/currentThread)))
      (do
        (park-until scope #(empty-scope? scope))
        (recur (or (Thread/interrupted) interrupted?))))))
