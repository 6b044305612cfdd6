(ns thrum.server.spi.exchanges
  "Observers of every exchange in the process, of all servers: for monitoring. While there is none,
  an exchange costs one more look at a variable.

      (def stop! (observe! (reify Observer (began [_ x] ...) (ended [_ x] (count! (facts x))))))"
  (:require
   [thrum.spi :as spi])
  (:import
   (java.util Collections Map WeakHashMap)
   (java.util.concurrent.atomic AtomicReference)))

(set! *warn-on-reflection* true)

(defprotocol Exchange
  "A request and its response, which observers get: the same object at its begin and at its end."
  (facts [exchange]
    "Returns a map of what is known of the exchange now, on any thread:
    :engine - the name of its server's engine
    :thread - the thread that serves it
    :began - when it began, of System/nanoTime
    :nanos - how long ago that was, in ns
    :queued-nanos - how long it waited for its server's permit, in ns; nil where no handler was
      called
    :deadline - when its handler's time is up, of System/nanoTime; nil: never
    :stage - :open; :reading, its body; :committed, the response has begun; :streaming, events;
      :socket, a websocket; :done, its last byte has been sent; :left, it has ended; or why another
      thread has ended it: :thrum/timeout, :slow, :disconnected or :shutdown
    :scope - that of its handler, or nil
    :request - Ring's map; nil before it has been read; of a request that was refused less
    :status - of the response that was sent whole, nil before, and where none was
    :bytes - of its body
    :throwable - what handler or body threw, or nil")
  (sent-status [exchange] "Returns :status of the facts, at a hundredth of their cost."))

(defprotocol Observer
  "Is called on the exchange's thread, which waits. What it throws goes to that thread's uncaught
  exception handler."
  (began [observer exchange] "An exchange has begun; nothing of its request has been read.")
  (ended [observer exchange]
    "It has ended, also for its client; called for each exchange of which began was, once."))

;; By what serves, weakly, a function of it. A server keeps its exchanges anyway: to keep them here
;; too would cost each of them 150 ns.
(def ^:private ^Map serving (Collections/synchronizedMap (WeakHashMap.)))

(defn serves!
  "Has under-way ask (exchanges-of server), a function of the server to its exchanges that have not
  ended, until the server is collected."
  [server exchanges-of]
  (.put serving server exchanges-of)
  nil)

(defn under-way
  "Returns the exchanges in the process that have not ended, of all servers."
  []
  (into [] (mapcat (fn [[server exchanges-of]] (exchanges-of server)))
    (locking serving (into {} serving))))

;; nil, or a vector, which is walked faster than a set.
(def ^:private ^AtomicReference registered (AtomicReference.))

(defn- register! [f]
  (loop []
    (let [before (.get registered)]
      (when-not (.compareAndSet registered before (not-empty (f before)))
        (recur)))))

(defn- without [observer]
  (partial filterv #(not (identical? observer %))))

(defn observe!
  "Has the observer called for every exchange that begins from now on. Returns a function that takes
  it away; it still sees the end of those whose begin it has seen."
  [observer]
  (register! #(conj ((without observer) %) observer))
  (fn [] (register! (without observer))))

(defn observers
  "Returns the observers of an exchange that begins now, for began! and ended!; nil if none."
  []
  (.get registered))

(defn- call! [f observer exchange]
  (try
    (f observer exchange)
    (catch Throwable t (spi/uncaught! t))))

(defn began!
  "Calls began of the observers."
  [observers exchange]
  (run! #(call! began % exchange) observers))

(defn ended!
  "Calls ended of the observers."
  [observers exchange]
  (run! #(call! ended % exchange) observers))
