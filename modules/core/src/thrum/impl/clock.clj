(ns thrum.impl.clock
  "The clock of all waits and deadlines. A test puts another one in its place."
  {:no-doc true}
  (:require
   [thrum.impl.timer :as timer])
  (:import
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(defprotocol Clock
  "Gives the time, parks threads, and calls functions later. Times are longs on a scale like that of
  System/nanoTime."
  (nanos [clock] "Returns the time now.")
  (park-nanos [clock blocker n]
    "Parks the calling thread for at most n ns; see LockSupport/parkNanos.")
  (call-at [clock nanos f]
    "Has f called at the time, on a thread of its own. Returns what cancel-call takes.")
  (cancel-call [clock call] "Takes back a call that has not begun."))

(deftype SystemClock []
  Clock
  (nanos [_] (System/nanoTime))
  (park-nanos [_ blocker n] (LockSupport/parkNanos blocker (long n)))
  (call-at [_ nanos f] (timer/schedule! nanos f))
  (cancel-call [_ call] (timer/cancel! call)))

(def clock
  "The clock in use."
  (SystemClock.))
