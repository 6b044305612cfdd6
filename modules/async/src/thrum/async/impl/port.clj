(ns thrum.async.impl.port
  "Takes and puts that block the calling thread. A cancel or an interrupt ends them and leaves
  nothing in the channel."
  {:no-doc true}
  (:require
   [clojure.core.async.impl.dispatch :as dispatch]
   [clojure.core.async.impl.protocols :as impl]
   [thrum.async.impl.handler :as handler]
   [thrum.core :as t]
   [thrum.spi :as spi])
  (:import
   (clojure.lang IDeref IFn IReduce Seqable)
   (java.util Collection)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

;; The callback of a channel. value: nil until the channel has called, then ::nil for nil.
(deftype Arrival [^Thread waiter ^:volatile-mutable value]
  IFn
  (invoke [_ v]
    (set! value (if (nil? v) ::nil v))
    (LockSupport/unpark waiter))
  IDeref
  (deref [_] value))

(defn- arrival []
  (Arrival. (Thread/currentThread) nil))

(defn- value [arrived]
  (when-not (identical? ::nil arrived) arrived))

(defn- await-callback
  "Waits for the callback of a committed transfer and returns its value; restores an interrupt."
  [arrival]
  (loop [interrupted? false]
    (if-some [arrived @arrival]
      (do
        (when interrupted? (.interrupt (Thread/currentThread)))
        (value arrived))
      (let [interrupted? (or (Thread/interrupted) interrupted?)]
        (when (nil? @arrival) (LockSupport/park arrival))
        (recur interrupted?)))))

(defn- take-back!
  "Revokes the transfer at these ports and calls (fail), which throws. If it is committed already,
  returns its value."
  [once arrival ports fail]
  (if (handler/revoke! once)
    (do (run! handler/sweep! ports)
        (fail))
    (await-callback arrival)))

(defn- await!
  "Returns the value of the transfer, or throws after revoking it."
  [once arrival ports]
  (loop []
    (if-some [arrived @arrival]
      (value arrived)
      (if (.isInterrupted (Thread/currentThread))
        ;; Revoke first; then find out whether a cancel sent the interrupt, or other code.
        (take-back! once arrival ports t/checkpoint)
        (do
          (LockSupport/park ports)
          (recur))))))

(defn- begun
  "Returns what (begin!) returns. Where that throws, revokes the transfer at these ports."
  [once ports begin!]
  (try
    (begin!)
    (catch Throwable t
      (handler/revoke! once)
      (run! handler/sweep! ports)
      (throw t))))

(defn- refused-wait
  "Where the thread may not wait, takes the transfer back; nil elsewhere."
  [once arrival ports]
  (try
    (dispatch/check-blocking-in-dispatch)
    nil
    (catch Throwable t
      (volatile! (take-back! once arrival ports #(throw t))))))

(defn- transfer
  "Returns the value in the box that (begin! once arrival) returns for a transfer at once, or else
  waits for the value."
  [ports begin!]
  (let [once (handler/once)
        arrival (arrival)]
    (if-some [box (or (begun once ports #(begin! once arrival))
                      (refused-wait once arrival ports))]
      @box
      (await! once arrival ports))))

(defn- check-end!
  "Throws where a port's end, a v of nil, comes to work that is cancelled, or that an ended scope is
  about to cancel: the same cancel may have closed the port, and what was taken before would look
  like all there is."
  [v]
  (when (nil? v) (spi/check-cancelled!)))

(defn take!!
  "Returns the next value of the port, nil when it is closed."
  [port]
  (t/checkpoint)
  (doto (if-some [box (handler/take-now! port)]
          @box
          (transfer [port] (fn [once arrival] (impl/take! port (handler/handler once arrival)))))
    check-end!))

(defn put!!
  "Puts v into the port. Returns true, or false when it is closed."
  [port v]
  (t/checkpoint)
  (if-some [box (handler/put-now! port v)]
    @box
    (transfer [port] (fn [once arrival] (impl/put! port v (handler/handler once arrival))))))

;; Several ports

(defn- port-of [operation]
  (if (vector? operation) (first operation) operation))

(defn- begin-operation [operation handler]
  (if (vector? operation)
    (impl/put! (first operation) (second operation) handler)
    (impl/take! operation handler)))

(defn- begin-one
  "Begins a take or a put. Returns a box of [value port] when it, or another meanwhile, is
  committed at once; else nil. What the port throws after another is committed goes to the uncaught
  exception handler: the other's value is not lost."
  [once arrival operation]
  (let [port (port-of operation)
        handler (handler/handler once #(arrival [% port]))]
    (try
      (when-some [box (begin-operation operation handler)]
        (volatile! (if (handler/at-once? handler)
                     [@box port]
                     (await-callback arrival))))
      (catch Throwable t
        (when (handler/at-once? handler) (throw t))
        (spi/uncaught! t)
        (volatile! (await-callback arrival))))))

(defn- begin-first [operations {:keys [default] :as options}]
  (fn [once arrival]
    (or (some #(begin-one once arrival %) operations)
        (when (contains? options :default)
          (if (handler/revoke! once)
            (volatile! [default :default])
            (volatile! (await-callback arrival)))))))

(defn- nil-put? [operation]
  (and (vector? operation) (nil? (nth operation 1 nil))))

(defn- check-operations!
  [operations]
  (when-not (or (nil? operations) (instance? Collection operations))
    (throw (spi/invalid (str "alts!! needs a collection of operations, not " (spi/text operations))
             {:value operations, :accepts "a collection of ports and [port value]"})))
  (when (empty? operations)
    (throw (spi/invalid "alts!! needs at least one port, or one [port value]"
             {:value operations})))
  (when (some nil-put? operations)
    (throw (spi/invalid "No channel can carry nil: a put of alts!! is [port value]"
             {:value nil, :accepts "a value that is not nil"}))))

(defn alts!!
  "Returns [value port] of the first operation that is committed; see thrum.async/alts!!."
  [operations {:keys [priority] :as options}]
  (check-operations! operations)
  (t/checkpoint)
  (doto (transfer (mapv port-of operations)
                  (begin-first (if priority operations (shuffle operations)) options))
    (-> first check-end!)))

;; All that a port delivers

(defn- reduce-port [port f init]
  (loop [acc init]
    (if (reduced? acc)
      @acc
      (if-some [v (take!! port)]
        (recur (f acc v))
        acc))))

(defn- seq-of [port]
  (lazy-seq
    (when-some [v (take!! port)]
      (cons v (seq-of port)))))

;; Not Sequential, though an eduction is: = and flatten would take the values, and wait for them.
(defn reducible
  "Returns the port's values as something that can be reduced, or be a seq, once; see
  thrum.async/chan->reducible."
  [port]
  (reify
    IReduce
    (reduce [_ f]
      (if-some [v (take!! port)]
        (reduce-port port f v)
        (f)))
    (reduce [_ f init] (reduce-port port f init))
    Seqable
    (seq [_] (seq (seq-of port)))))
