(ns thrum.async.handler
  "What a channel calls when a take or a put comes about. One of ours can be revoked until then:
  whoever stops waiting leaves no place in the channel's queue behind, and no value is handed to
  nobody."
  (:require
   [clojure.core.async.impl.channels]
   [clojure.core.async.impl.protocols :as impl])
  (:import
   (clojure.core.async.impl.channels ManyToManyChannel)
   (clojure.lang IRef)
   (java.util.concurrent.atomic AtomicLong)
   (java.util.concurrent.locks Lock ReentrantLock)))

(set! *warn-on-reflection* true)

(definterface IOnce
  (^boolean open [])
  (^boolean close [by])
  (^boolean closedBy [by]))

;; A transfer that comes about at most once, on one channel or another. by: the handler that was
;; first to close it. Both are changed under the lock alone.
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
  "Returns a transfer that has not come about."
  ^Once []
  (Once. (ReentrantLock.) (.decrementAndGet ids) true nil))

(defn revoke!
  "From now on the transfer cannot come about. Returns whether that is so: false when it has been
  revoked before, or has come about and its callback has been called, or soon will be."
  [^Once once]
  (.close once nil))

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
    callback))

(def on-caller
  "The metadata of a callback that may run on the thread of whoever is at the channel's other end
  (core.async 1.7 and newer)."
  {:on-caller? true})

(defn handler
  "Returns what take! and put! of a port take: callback is called with the value, or with whether
  the put was accepted."
  ^Handler [once callback]
  (Handler. once callback))

(defn at-once?
  "Tells whether what the channel answered at once is the transfer: a closed one answers false to
  every put, also where the transfer has come about on another channel. From now on it cannot come
  about there."
  [^Handler handler]
  (let [once (.-once handler)]
    (or (.closedBy ^Once once handler)
        (revoke! once))))

(def ^:private nobody (with-meta (fn [_]) on-caller))

;; A transfer now or never: nothing waits, nothing can be revoked, no lock is needed.
(deftype Immediate []
  Lock
  (lock [_])
  (unlock [_])

  impl/Handler
  (active? [_] true)
  (blockable? [_] false)
  (lock-id [_] 0)
  (commit [_] nobody))

(def ^:private immediate (Immediate.))

(defn take-now!
  "Returns a box of the port's next value, or of nil when it is closed; nil when there is none yet.
  A port that is no channel of core.async's own may have a queue for whoever asks: it is not asked."
  [port]
  (when (instance? ManyToManyChannel port)
    (impl/take! port immediate)))

(defn put-now!
  "Puts v if the port accepts it now: returns a box of whether it did, or nil when it may do so
  later; see take-now!."
  [port v]
  (when (instance? ManyToManyChannel port)
    (impl/put! port v immediate)))

(def ^:private spent
  (doto (handler (once) nil)
    (-> .-once revoke!)))

(defn sweep!
  "Has the channel drop the handlers that were revoked: it does so whenever it is used. A closed one
  holds no takes."
  [port]
  (when (and (instance? ManyToManyChannel port) (not (impl/closed? port)))
    (impl/take! port spent)))

;; core.async tells nobody that a channel was closed. The flag of its own channels is an atom,
;; though, in every release since 2013.

(defn- closed-flag [port]
  (when (instance? ManyToManyChannel port)
    (let [flag (.-closed ^ManyToManyChannel port)]
      (when (instance? IRef flag) flag))))

(defn watch-close!
  "Calls f when the channel is closed, on the closing thread and under the channel's lock: f does
  little, takes no lock of another channel and does not throw. k is the watch's key. Of a port that
  is no channel of core.async's own nothing is heard."
  [port k f]
  (when-some [^IRef flag (closed-flag port)]
    (.addWatch flag k (fn [_ _ _ _] (f)))))

(defn unwatch-close!
  "Ends the watch of this key."
  [port k]
  (when-some [^IRef flag (closed-flag port)]
    (.removeWatch flag k)))
