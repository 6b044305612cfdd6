(ns thrum.server.impl.exchange
  "One request and its response, as every room of the server knows it: its stage, and what has
  become of it so far."
  {:no-doc true}
  (:require
   [thrum.server.impl.stage :as stage]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine]
   [thrum.server.spi.exchanges :as exchanges]
   [thrum.server.spi.lock :refer [holding]]
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent.atomic AtomicReference)
   (java.util.concurrent.locks LockSupport ReentrantLock)
   (thrum.server.impl.traffic Settings Traffic)))

(set! *warn-on-reflection* true)

;; An interface over fields, not a protocol over an atom and five volatiles: seven objects less for
;; each request, whose cost ./cljw -M:request-cost measures.
(definterface IExchange
  (request [])                      ; Ring's map, nil before it has been read
  (status [])                       ; of the response that was sent, or nil
  (^long bytes [])                  ; of its body
  (throwable [])                    ; what handler or body threw, or nil
  (scope [])                        ; the request's, nil before its handler runs
  (stream [])                       ; the events or the websocket that the response is, or nil
  (permit [])                       ; of the limiter that the exchange holds one of, or nil
  (flaw [])                         ; what the client has done wrong, see below
  (^boolean settled [])             ; has the client been answered, as far as it will be?
  (^Object setRequest [x])
  (^Object setSent [x ^long n])
  (^Object setThrowable [x])
  (^Object setScope [x])
  (^Object setStream [x])
  (^Object setPermit [x])
  (^Object setQueued [nanos])       ; how long it waited for it, in ns; not without observers
  (^Object setFlaw [x])
  (^Object settle []))

;; stage: see thrum.server.impl.stage. deadline: of the handler, or nil. observers: of
;; thrum.server.spi.exchanges, nil where there are none. watching: the lock of watch! and unwatch!,
;; nil where no disconnect interrupts.
(deftype Exchange [^Traffic traffic wire ^Thread thread ^ClassLoader loader ^long arrived
                   ^AtomicReference stage deadline observers ^ReentrantLock watching
                   ^:volatile-mutable request
                   ^:volatile-mutable status
                   ^:volatile-mutable ^long bytes
                   ^:volatile-mutable throwable
                   ^:volatile-mutable scope
                   ^:volatile-mutable stream
                   ^:volatile-mutable permit
                   ^:volatile-mutable queued
                   ^:volatile-mutable flaw
                   ^:volatile-mutable settled]
  IExchange
  (request [_] request)
  (status [_] status)
  (bytes [_] bytes)
  (throwable [_] throwable)
  (scope [_] scope)
  (stream [_] stream)
  (permit [_] permit)
  (flaw [_] flaw)
  (settled [_] (boolean settled))
  (setRequest [_ x] (set! request x))
  (setSent [_ x n] (set! bytes n) (set! status x))
  (setThrowable [_ x] (set! throwable x))
  (setScope [_ x] (set! scope x))
  (setStream [_ x] (set! stream x))
  (setPermit [_ x] (set! permit x))
  (setQueued [_ nanos] (set! queued nanos))
  (setFlaw [_ x] (set! flaw x))
  (settle [_] (set! settled true))

  Object
  ;; The JVM's own costs 24 ns.
  (hashCode [_] (Long/hashCode arrived))

  exchanges/Exchange
  (facts [_]
    {:engine (:engine (traffic/options traffic))
     :thread thread
     :began arrived
     :nanos (- (System/nanoTime) arrived)
     :queued-nanos queued
     :deadline (when-not stream deadline)
     :stage (.get stage)
     :scope scope
     :request request
     :status status
     :bytes bytes
     :throwable throwable})
  (sent-status [_] status))

(defn exchange
  "Returns the exchange of this wire, on the calling thread."
  ^Exchange [^Traffic traffic wire]
  (let [thread (Thread/currentThread)
        settings (traffic/settings traffic)
        timeout-ms (.-timeout-ms settings)]
    (Exchange. traffic wire thread (.getContextClassLoader thread) (System/nanoTime)
               (AtomicReference. :open)
               (when timeout-ms (spi/deadline-in timeout-ms))
               (exchanges/observers)
               (when (.-interrupt? settings) (ReentrantLock.))
               nil nil 0 nil nil nil nil nil nil false)))

(defn step!
  "Moves the exchange by an event. Returns the effects, which are the caller's to see to."
  [^Exchange x event]
  (let [^AtomicReference cell (.-stage x)]
    (loop []
      (let [before (.get cell), step (stage/step before event), after (nth step 0)]
        (if (or (identical? before after) (.compareAndSet cell before after))
          (nth step 1)
          (recur))))))

(defn allowed?
  "Moves the exchange by an event. Returns whether it did not come too late."
  [x event]
  (zero? (count (step! x event))))

(defn over
  "Returns what is thrown on a thread that is too late to answer."
  []
  (spi/cancelled "This request" :over))

(defn proceed!
  "Moves the exchange by an event. Throws CancellationException where it came too late."
  [x event]
  (when-not (allowed? x event)
    (throw (over))))

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

(defn inside?
  "True if the calling thread is that of the exchange, or runs a task of its scope: the exchange
  does not end before it."
  [^Exchange x]
  (or (here? x)
      (when-some [scope (.scope x)] (spi/works-for? scope))))

(defn option
  "Returns an option of the server."
  [^Exchange x k]
  (get (traffic/options (.-traffic x)) k))

(defn settings
  "Returns the options of the server that each request looks at."
  ^Settings [^Exchange x]
  (traffic/settings (.-traffic x)))

(defn received!
  "The request has been read."
  [^Exchange x request]
  (.setRequest x request))

(defn failed!
  "This was thrown."
  [^Exchange x throwable]
  (.setThrowable x throwable))

(defn request
  "Returns the request, nil before it has been read."
  [^Exchange x]
  (.request x))

(defn flaw
  "Returns what the client has done wrong: :overlong or :broken, its body; :gone. nil: nothing."
  [^Exchange x]
  (.flaw x))

(defn scope
  "Returns the scope that the handler runs in, nil outside of it."
  [^Exchange x]
  (.scope x))

(defn- facts
  "Returns what the server's observer gets."
  [^Exchange x]
  (cond-> {:request (.request x)
           :status (.status x)
           :bytes (.bytes x)
           :nanos (- (System/nanoTime) (.-arrived x))}
    (.throwable x) (assoc :throwable (.throwable x))))

(defn observe!
  "Calls the server's observer for this event."
  [^Exchange x event]
  (let [^Traffic traffic (.-traffic x)]
    (when (.-observer (traffic/settings traffic))
      (traffic/observe! traffic event #(facts x)))))

(defn watch!
  "Has (gone) called when the client goes, where a disconnect interrupts. Throws
  CancellationException where another thread has ended the exchange. A lock, shared with unwatch!:
  an engine that began to watch behind the answer would read what belongs to the next request. Not a
  monitor: engines take locks of their own in there."
  [^Exchange x gone]
  (holding (.-watching x)
    (proceed! x :handle)
    (engine/watch! (.-wire x) gone)))

(defn unwatch!
  "Watches no more, nor begins to: for a thread that has ended the exchange."
  [^Exchange x]
  (if-some [watching (.-watching x)]
    (holding watching
      (engine/unwatch! (.-wire x)))
    (engine/unwatch! (.-wire x))))

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
  (when-not (.settled x) (.settle x))
  (when-not (here? x) (LockSupport/unpark (.-thread x))))

(defn settled?
  "True if the client has been answered, as far as it will be."
  [^Exchange x]
  (.settled x))

(defn finish!
  "The last byte of a response has been sent; bytes: how many its body had. Another thread that has
  ended the exchange settles it."
  [^Exchange x status bytes]
  (.setSent x status (long bytes))
  (when (allowed? x :finish)
    (.settle x)))

(defn upgraded!
  "The request has become a websocket."
  [^Exchange x]
  (.setSent x 101 0)
  (step! x :upgrade))

(defn await-settled!
  "Waits for the thread that answers in this one's place."
  [^Exchange x]
  (while (not (settled? x))
    (LockSupport/park x)
    ;; With the flag set park returns at once; the interrupt is meant for this thread only.
    (Thread/interrupted)))
