(ns thrum.server.impl.exchange
  "One request and its response, as every room of the server knows it: its stage, and what has
  become of it so far."
  {:no-doc true}
  (:require
   [thrum.server.impl.stage :as stage]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi.exchanges :as exchanges]
   [thrum.spi :as spi])
  (:import
   (clojure.lang Atom Volatile)
   (java.util.concurrent.atomic AtomicReference)
   (java.util.concurrent.locks LockSupport)
   (thrum.server.impl.traffic Traffic)))

(set! *warn-on-reflection* true)

;; stage: see thrum.server.impl.stage. known: the map that observers get. scope: the request's,
;; while its handler runs. stream: the events or the websocket that the response is. permit: of the
;; limiter that the exchange holds one of. flaw: the client's, see below. settled: whether the
;; client has been answered, as far as it will be. deadline: of its handler, or nil. observers: of
;; thrum.server.spi.exchanges, nil where there are none.
(deftype Exchange [^Traffic traffic wire ^Thread thread ^ClassLoader loader ^long arrived
                   ^AtomicReference stage ^Atom known
                   ^Volatile scope ^Volatile stream ^Volatile permit
                   ^Volatile flaw ^Volatile settled deadline observers]
  exchanges/Exchange
  (facts [_]
    (assoc @known
           :engine (:engine (traffic/options traffic))
           :thread thread
           :began arrived
           :nanos (- (System/nanoTime) arrived)
           :deadline (when-not @stream deadline)
           :stage (.get stage)
           :scope @scope)))

(defn exchange
  "Returns the exchange of this wire, on the calling thread."
  ^Exchange [traffic wire]
  (let [thread (Thread/currentThread), timeout-ms (:request-timeout-ms (traffic/options traffic))]
    (Exchange. traffic wire thread (.getContextClassLoader thread) (System/nanoTime)
               (AtomicReference. :open) (atom {:request nil, :status nil, :bytes 0})
               (volatile! nil) (volatile! nil) (volatile! nil) (volatile! nil) (volatile! false)
               (some-> timeout-ms spi/deadline-in) (exchanges/observers))))

(defn step!
  "Moves the exchange by an event. Returns the effects, which are the caller's to see to."
  [^Exchange x event]
  (let [^AtomicReference cell (.-stage x)]
    (loop []
      (let [before (.get cell), [after effects] (stage/step before event)]
        (if (or (identical? before after) (.compareAndSet cell before after))
          effects
          (recur))))))

(defn allowed?
  "Moves the exchange by an event. Returns whether it did not come too late."
  [x event]
  (empty? (step! x event)))

(defn over
  "Returns what is thrown on a thread that is too late to answer."
  []
  (spi/cancelled "This request" :over))

(defn stage
  "Returns the stage of the exchange."
  [^Exchange x]
  (.get ^AtomicReference (.-stage x)))

(defn ended?
  "True if another thread has ended the exchange: the answer is that thread's matter."
  [x]
  (stage/ended? (stage x)))

;; What is known of it

(defn here?
  "True if the calling thread is that of the exchange."
  [^Exchange x]
  (identical? (.-thread x) (Thread/currentThread)))

(defn option
  "Returns an option of the server."
  [^Exchange x k]
  (get (traffic/options (.-traffic x)) k))

(defn received!
  "The request has been read."
  [^Exchange x request]
  (swap! (.-known x) assoc :request request))

(defn failed!
  "This was thrown."
  [^Exchange x throwable]
  (swap! (.-known x) assoc :throwable throwable))

(defn request
  "Returns the request, nil before it has been read."
  [^Exchange x]
  (:request @(.-known x)))

(defn flaw
  "Returns what the client has done wrong: :overlong or :broken, its body; :gone. nil: nothing."
  [^Exchange x]
  @(.-flaw x))

(defn scope
  "Returns the scope that the handler runs in, nil outside of it."
  [^Exchange x]
  @(.-scope x))

(defn observe!
  "Calls the server's observer for this event."
  [^Exchange x event]
  (traffic/observe! (.-traffic x) event
    #(assoc @(.-known x) :nanos (- (System/nanoTime) (.-arrived x)))))

(defn start-thread!
  "Calls f on a virtual thread of its own, which inherits nothing: what the handler has set on its
  thread is not the observer's."
  [^Exchange x name f]
  (.start (doto (spi/clean-thread name f)
            (.setContextClassLoader (.-loader x)))))

;; Answered

(defn settle!
  "The client has been answered, as far as it will be."
  [^Exchange x]
  (vreset! (.-settled x) true)
  (LockSupport/unpark (.-thread x)))

(defn settled?
  "True if the client has been answered, as far as it will be."
  [^Exchange x]
  @(.-settled x))

(defn finish!
  "The last byte of a response has been sent; bytes: how many its body had. Another thread that has
  ended the exchange settles it."
  [^Exchange x status bytes]
  (swap! (.-known x) assoc :status status :bytes bytes)
  (when (allowed? x :finish)
    (vreset! (.-settled x) true)))

(defn upgraded!
  "The request has become a websocket."
  [^Exchange x]
  (swap! (.-known x) assoc :status 101)
  (step! x :upgrade))

(defn await-settled!
  "Waits for the thread that answers in this one's place."
  [^Exchange x]
  (while (not (settled? x))
    (LockSupport/park x)
    ;; With the flag set park returns at once; the interrupt is meant for this thread only.
    (Thread/interrupted)))
