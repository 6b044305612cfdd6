(ns thrum.async.promised
  "The next value of a channel as a future. No thread waits for it: the channel settles it."
  (:require
   [clojure.core.async.impl.protocols :as impl]
   [thrum.async.handler :as handler]
   [thrum.impl.task :as task])
  (:import
   (clojure.lang IBlockingDeref IDeref IFn IMeta IPending)
   (java.util.concurrent Future)
   (thrum.impl.task Done Failed Task)))

(set! *warn-on-reflection* true)

;; What the channel calls back.
(deftype Arrival [^Task task]
  IFn
  (invoke [_ v]
    (.settle task (if (instance? Throwable v) (Failed. v) (Done. v))))
  IMeta
  (meta [_] handler/on-caller))

;; The task, but for cancel: that is up to the transfer, which comes about or is revoked.
(deftype Promised [once port ^Task task]
  Future
  (isDone [_] (.isDone task))
  (isCancelled [_] (.isCancelled task))
  (cancel [_ interrupt]
    (and (handler/revoke! once)
         (do (handler/sweep! port)
             (.cancel task interrupt))))
  (get [_] (.get task))
  (get [_ n unit] (.get task n unit))
  IDeref
  (deref [_] (.deref task))
  IBlockingDeref
  (deref [_ ms timeout-value] (.deref task ms timeout-value))
  IPending
  (isRealized [_] (.isRealized task)))

(defn next-value
  "Returns a future of the port's next value; see thrum.async/chan->task."
  [port]
  (let [task (task/latch (task/unique-name "chan->task"))
        once (handler/once)
        arrival (Arrival. task)]
    (when-some [box (impl/take! port (handler/handler once arrival))]
      (arrival @box))
    (Promised. once port task)))
