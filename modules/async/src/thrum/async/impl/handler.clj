(ns thrum.async.impl.handler
  "The handlers that a channel calls when a take or a put is committed. Ours can be revoked until
  then: a thread that stops waiting leaves nothing in the channel's queue, and no value is lost."
  {:no-doc true}
  (:require
   [clojure.core.async.impl.channels]
   [clojure.core.async.impl.protocols :as impl])
  (:import
   (clojure.core.async.impl.channels ManyToManyChannel)
   (clojure.lang IFn IMeta IRef)
   (java.util.concurrent.atomic AtomicLong)
   (java.util.concurrent.locks Lock ReentrantLock)))

(set! *warn-on-reflection* true)

;; No protocol: each take and put goes through one, see decision 32.
(definterface IOnce
  (^boolean open [])
  (^boolean close [by])
  (^boolean closedBy [by]))

;; A transfer that is committed at most once, on one channel or another. by: the handler that
;; committed it; nil if it was revoked. Both fields change under the lock only.
(deftype Once [^ReentrantLock lock ^long id ^:volatile-mutable open ^:volatile-mutable by]
  IOnce
  (open [_] open)
  (close [_ closer]
    (.lock lock)
    (try
      (let [first-time open]
        (when first-time (set! by closer))
        (set! open false)
        first-time)
      (finally (.unlock lock))))
  (closedBy [_ closer]
    (identical? by closer)))

;; Channels lock two handlers in the order of their ids. Those of core.async's alts count up from 1,
;; ours down from -1.
(def ^:private ^AtomicLong ids (AtomicLong.))

(defn once
  "Returns a transfer that is not committed."
  ^Once []
  (Once. (ReentrantLock.) (.decrementAndGet ids) true nil))

(defn revoke!
  "Revokes the transfer: it cannot be committed any more. Returns false if it has been revoked
  before, or is committed: then its callback has been called, or soon will be."
  [^Once once]
  (.close once nil))

(defn committed?
  "True if the transfer has been committed."
  [^Once once]
  (not (.closedBy once nil)))

;; What the channel calls is the handler itself. It may do so on the thread at the channel's other
;; end (core.async 1.7 and newer).
(deftype Handler [^Once once callback]
  Lock
  (lock [_] (.lock ^ReentrantLock (.-lock once)))
  (unlock [_] (.unlock ^ReentrantLock (.-lock once)))

  impl/Handler
  (active? [_] (.open once))
  (blockable? [_] (.open once))
  (lock-id [_] (.-id once))
  (commit [this]
    (.close once this)
    this)

  IFn
  (invoke [_ v] (callback v))

  IMeta
  (meta [_] {:on-caller? true}))

(defn handler
  "Returns what take! and put! of a port take: callback is called with the value, or with whether
  the put was accepted."
  ^Handler [once callback]
  (Handler. once callback))

(defn at-once?
  "True if this handler committed; otherwise revokes the transfer. A closed channel answers false to
  every put, so the answer alone does not decide this."
  [^Handler handler]
  (let [once (.-once handler)]
    (or (.closedBy ^Once once handler)
        (revoke! once))))

;; The handler of a transfer now or never: nothing waits, so nothing can be revoked, no lock is
;; needed, and no callback is called.
(deftype Immediate []
  Lock
  (lock [_])
  (unlock [_])

  impl/Handler
  (active? [_] true)
  (blockable? [_] false)
  (lock-id [_] 0)
  (commit [_] identity))

(def ^:private immediate (Immediate.))

(defn take-now!
  "Returns a box of the port's next value, or of nil when it is closed; nil when there is none yet.
  Returns nil for a port that is not core.async's own channel: it might queue the handler."
  [port]
  (when (instance? ManyToManyChannel port)
    (impl/take! port immediate)))

(defn put-now!
  "Puts v if the port decides at once: returns a box of whether it accepted v, or nil when it may
  do so later; see take-now!."
  [port v]
  (when (instance? ManyToManyChannel port)
    (impl/put! port v immediate)))

(def ^:private spent
  (doto (handler (once) nil)
    (-> .-once revoke!)))

(defn sweep!
  "Makes the channel drop revoked handlers, as it does whenever it is used. A closed channel holds
  no takes."
  [port]
  (when (and (instance? ManyToManyChannel port) (not (impl/closed? port)))
    (impl/take! port spent)))

;; core.async has no callback for the close of a channel. The flag of its own channels is an atom,
;; though, in every release since 2013; with another kind all that watches fails.

(defn- closed-flag ^IRef [port]
  (when (instance? ManyToManyChannel port)
    (.-closed ^ManyToManyChannel port)))

(defn watch-close!
  "Calls f when the channel is closed, or at once if it is closed already. f is called on the
  closing thread and under the channel's lock, and maybe twice: it does little, takes no lock of
  another channel and does not throw. k is the watch's key. Does nothing for a port that is not
  core.async's own channel."
  [port k f]
  (when-some [flag (closed-flag port)]
    (.addWatch flag k (fn [_ _ _ _] (f)))
    (when (impl/closed? port) (f))))

(defn unwatch-close!
  "Ends the watch of this key."
  [port k]
  (when-some [flag (closed-flag port)]
    (.removeWatch flag k)))
