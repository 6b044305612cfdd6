(ns thrum.scope
  "A scope owns tasks: it ends only when all of them have ended. Its children are held strongly, added before they
  start, cancelled once, and joined."
  (:require [thrum.error :as error]
            [thrum.task :as task])
  (:import (java.util ArrayList)
           (java.util.concurrent.atomic AtomicReference)
           (java.util.concurrent.locks LockSupport)
           (thrum.task Child)))

(set! *warn-on-reflection* true)

(definterface IScope
  (^String scopeName [])
  (reason [])
  (^boolean isEmpty [])
  (^Object adopt [child])
  (^Object release [child])
  (close [reason])
  (^java.util.concurrent.atomic.AtomicReference waiter []))

(defn- add! [^ArrayList children ^Child child]
  (.setSlot child (.size children))
  (.add children child))

(defn- remove!
  "Takes a child out in constant time: the last one moves into its slot."
  [^ArrayList children ^Child child]
  (let [slot (.slot child)
        ^Child last-child (.remove children (dec (.size children)))]
    (when-not (identical? child last-child)
      (.set children slot last-child)
      (.setSlot last-child slot))))

(defn- signal! [^AtomicReference waiter]
  (when-some [thread (.get waiter)]
    (when (.compareAndSet waiter thread nil)
      (LockSupport/unpark thread))))

(defn check-open!
  "Throws :thrum/closed when the scope, or one that it belongs to, has ended."
  [^IScope scope]
  (when-some [reason (.reason scope)]
    (throw (error/closed (.scopeName scope) reason))))

(deftype Scope [^String name ^IScope parent ^AtomicReference waiter ^ArrayList children
                ^:volatile-mutable reason
                ^:unsynchronized-mutable ^long slot]
  IScope
  (scopeName [_] name)
  (reason [_] (if (and (nil? reason) parent) (.reason parent) reason))
  (isEmpty [this]
    (locking this (.isEmpty children)))
  ;; Locks are taken from child to parent only. A scope is its parent's child while it has children itself,
  ;; so that an abandoned one is forgotten.
  (adopt [this child]
    (locking this
      (check-open! this)
      (when (and parent (.isEmpty children)) (.adopt parent this))
      (add! children child)))
  (release [this child]
    (locking this
      (remove! children child)
      (when (and parent (.isEmpty children)) (.release parent this)))
    (signal! waiter))
  (close [this why]
    (locking this
      (when-not reason (set! reason why))
      (.toArray children)))
  (waiter [_] waiter)

  Child
  (slot [_] slot)
  (setSlot [_ i] (set! slot i) nil)
  (cancelFor [this why]
    (run! #(.cancelFor ^Child % why) (.close this why))))

(defn scope
  "Returns an open scope without children. It belongs to the parent (nil: to nobody): when that one is cancelled, so is this."
  ^Scope [name parent]
  (Scope. name parent (AtomicReference.) (ArrayList.) nil -1))

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
  (.set (.waiter scope) (Thread/currentThread))
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
