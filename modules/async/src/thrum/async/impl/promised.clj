(ns thrum.async.impl.promised
  "The next value of a channel as a future. No thread waits for it: the channel settles it."
  {:no-doc true}
  (:require
   [clojure.core.async.impl.protocols :as impl]
   [thrum.async.impl.handler :as handler]
   [thrum.spi :as spi])
  (:import
   (clojure.lang IBlockingDeref IDeref IPending)
   (java.util.concurrent Future)))

(set! *warn-on-reflection* true)

(defn- arrived! [latch v]
  (spi/settle! latch (if (instance? Throwable v) {:error v} {:value v})))

;; The latch, but for cancel: only a transfer that can still be revoked can be cancelled. A task
;; itself is cancelled before anything else learns of it: what had just been taken would be lost.
(deftype Promised [once port ^Future latch]
  Future
  (isDone [_] (.isDone latch))
  (isCancelled [_] (.isCancelled latch))
  (cancel [_ interrupt]
    (and (handler/revoke! once)
         (do (handler/sweep! port)
             (.cancel latch interrupt))))
  (get [_] (.get latch))
  (get [_ n unit] (.get latch n unit))
  IDeref
  (deref [_] (deref latch))
  IBlockingDeref
  (deref [_ ms timeout-value] (deref latch ms timeout-value))
  IPending
  (isRealized [_] (realized? latch)))

(spi/pretty-as-printed! Promised)

(defn next-value
  "Returns a future of the port's next value; see thrum.async/chan->future."
  [port]
  (let [latch (spi/latch (spi/unique-name "chan->future"))
        once (handler/once)]
    (when-some [box (impl/take! port (handler/handler once #(arrived! latch %)))]
      (arrived! latch @box))
    (Promised. once port latch)))
