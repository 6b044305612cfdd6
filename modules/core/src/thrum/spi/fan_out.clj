(ns thrum.spi.fan-out
  "A bounded fan-out that holds no thread: its consumer is called when a task has ended, and polls.
  One thread at a time may use a fan-out; only on-ended is called by others."
  (:require
   [thrum.impl.context :as context]
   [thrum.impl.fanout :as fanout]
   [thrum.impl.group :as group]
   [thrum.impl.map-family :as map-family])
  (:import
   (thrum.impl.fanout FanOut)
   (thrum.impl.place Place)
   (thrum.impl.task ITask)))

(set! *warn-on-reflection* true)

(defn fan-out
  "Returns a fan-out in the calling thread's bindings and scope that has started nothing yet. :order
  - :ordered or :as-completed; :name - of its threads, followed by a number; :limit, :window,
  :batch, :wrap - as in thrum.core/pmap; :clean-threads? - whether its threads inherit nothing, as
  thrum.spi/clean-thread's; :on-ended - called with every task that has ended, on its thread and as
  the last thing there."
  ^FanOut [options]
  (fanout/fan-out options nil))

(defn id
  "Returns the fan-out's name with its number."
  ^String [^FanOut fan-out]
  (group/group-name (.-group fan-out)))

(defn room?
  "True if one more task may be started."
  [^FanOut fan-out]
  (.room fan-out))

(defn launch!
  "Starts the thunk in a task, with :batch when there are as many as share one. To be called only
  where there is room: this is not checked. Throws as poll! does where the fan-out, by a failure for
  instance, or its scope has ended, and :thrum/invalid for a :wrap that returns no function."
  [^FanOut fan-out thunk]
  (fanout/failing fan-out
    (some->> (fanout/gather! fan-out thunk) (fanout/launch! fan-out))))

(defn exhaust!
  "States that nothing more will be started. Before that it starts the thunks that wait for others
  of their batch: to be called only where there is room, and throws, as launch!."
  [^FanOut fan-out]
  (fanout/failing fan-out
    (some->> (fanout/gathered fan-out) (fanout/launch! fan-out)))
  (.exhaust fan-out))

(defn poll!
  "Calls f with the next result, with :batch with those of the next batch, and returns true; returns
  false when none is ready. Does not wait, but for a failure: it cancels and joins what runs, then
  throws the failure; the results before it in its batch have been handed to f. Where the end of its
  scope has cancelled tasks, throws CancellationException if the calling thread's work is cancelled,
  :thrum/closed otherwise."
  [^FanOut fan-out f]
  (fanout/poll! fan-out f))

(defn idle?
  "True if all that was started has been polled, and nothing more will be started."
  [^FanOut fan-out]
  (.idle fan-out))

(defn end!
  "Cancels what runs, with the reason, and waits until it has ended, however long that takes. An
  interrupt meanwhile is kept for the caller's next wait. Nothing more can be started."
  [^FanOut fan-out reason]
  (fanout/end! fan-out reason))

(defn go-on!
  "Lets this thread be reused, in the bindings of the fan-out's caller and in no scope. task: the
  one that just ended on it, or nil on a fresh thread. No interrupt of the task reaches it any
  more."
  [^FanOut fan-out ^ITask task]
  (when task
    (.leaveThread task (.interruptFlag ^Place task) nil)
    (Thread/interrupted))
  (context/enter! (.-context fan-out) nil))

(defn in-time
  "Returns f with a deadline for each call of it, as the :item-timeout-ms of thrum.core/pmap; f
  itself where the options have none."
  [options f]
  (map-family/in-time options f))
