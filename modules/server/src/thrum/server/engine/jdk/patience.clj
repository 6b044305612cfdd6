(ns thrum.server.engine.jdk.patience
  "How long the JDK's server may block on a connection whose client neither sends nor takes bytes."
  {:no-doc true}
  (:refer-clojure :exclude [run!])
  (:require
   [thrum.server.spi.byte-stream :as byte-stream]
   [thrum.server.spi.lock :as lock]
   [thrum.server.spi.watchdog :as watchdog]
   [thrum.spi :as spi])
  (:import
   (java.io IOException InputStream OutputStream)
   (java.util List)
   (java.util.concurrent ConcurrentHashMap CopyOnWriteArrayList)))

(set! *warn-on-reflection* true)

(defprotocol Guard
  "Bounds how long one thread blocks on its connection."
  (enter! [guard ms] "What blocks from now on may take so long.")
  (leave! [guard] "It blocks no more.")
  (mine! [guard] "Returns the guard of the calling thread on the same connection.")
  (forget! [guard other] "Takes back what mine! has returned.")
  (fire! [guard due?] "Interrupts the threads that block; due?: those that do for too long."))

;; due: when what blocks now must have ended, or nil. An interrupt closes the JDK's channel. sent:
;; of thrum.spi/interrupts-sent, before what blocks. others: the guards of threads beside that of
;; the exchange, which read the request's body or send events; nil before the first.
(deftype Patience [^Thread thread ^:unsynchronized-mutable due ^:unsynchronized-mutable sent
                   ^:unsynchronized-mutable fired
                   ^:volatile-mutable ^List others]
  Guard
  (enter! [this ms]
    (locking this
      (when-not fired (set! sent (spi/interrupts-sent)))
      (set! due (spi/deadline-in ms))))
  (leave! [this]
    (locking this
      (set! due nil)
      (when fired
        (set! fired false)
        ;; Behind a cut comes a cancel, whose interrupt is the handler's.
        (spi/take-back-interrupt! sent))))
  (mine! [this]
    (if (identical? thread (Thread/currentThread))
      this
      (locking this
        (when-not others (set! others (CopyOnWriteArrayList.)))
        (let [guard (Patience. (Thread/currentThread) nil nil false nil)]
          (.add others guard)
          guard))))
  (forget! [this other]
    (when-not (identical? this other) (.remove others ^Object other)))
  (fire! [this due?]
    (doseq [other others] (fire! other due?))
    (locking this
      (when (and due (or (not due?) (spi/passed? (long due))))
        (set! due nil)
        (set! fired true)
        (.interrupt thread)))))

(defn- within
  "Returns the patience of the calling thread, which ends in so many ms."
  ^Patience [ms]
  (Patience. (Thread/currentThread) (spi/deadline-in ms) (spi/interrupts-sent) false nil))

;; One thread looks at all exchanges from time to time: an alarm for each would go into the one
;; ordered map of the process, and out again.
;; kept: by thread. The JDK runs what it gives an executor, and in there calls the handler, on the
;; same thread; it hands nothing of ours from one to the other.
(deftype Keeper [^ConcurrentHashMap kept ^Thread watchdog])

(defn keeper
  "Starts to keep a server's exchanges within these timeouts, in ms. Returns what run! and close!
  take."
  ^Keeper [timeouts-ms]
  (let [kept (ConcurrentHashMap.)]
    (Keeper. kept (watchdog/start "jdk-patience" (watchdog/period-ms timeouts-ms)
                                  (fn [] (clojure.core/run! #(fire! % true) (.values kept)))))))

(defn close!
  "Ends the keeper's thread."
  [^Keeper keeper]
  (watchdog/stop! (.-watchdog keeper)))

(defn here
  "Returns the patience that run! has given the calling thread."
  [^Keeper keeper]
  (.get ^ConcurrentHashMap (.-kept keeper) (Thread/currentThread)))

(defn run!
  "Runs task, within which the JDK reads a request's head, for at most head-ms, and calls its
  handler."
  [^Keeper keeper ^Runnable task head-ms]
  (let [patience (within head-ms)
        ^ConcurrentHashMap kept (.-kept keeper)]
    (.put kept (Thread/currentThread) patience)
    (try
      (.run task)
      (finally
        (leave! patience)
        (.remove kept (Thread/currentThread))))))

(defmacro in-time
  "Runs the body, which blocks on the connection, for at most so long, with guard bound to the
  calling thread's."
  [[guard patience ms] & body]
  `(let [~guard (mine! ~patience)]
     (enter! ~guard ~ms)
     (try
       ~@body
       (finally
         (leave! ~guard)
         (forget! ~patience ~guard)))))

(defn call-within
  "Calls f, which blocks on the connection, on the calling thread for at most ms. An interrupt that
  comes at its end does not outlive it."
  [ms f]
  (let [patience (within ms)
        alarm (spi/arm! (spi/deadline-in ms) #(fire! patience true))]
    (try
      (f)
      (finally
        (spi/disarm! alarm)
        (leave! patience)))))

(def ^:private ^:const piece
  "How many bytes a client must take in the time that a silence may last."
  65536)

(defn write!
  "Writes n bytes from offset to out, within in-time: each piece of them may take so long."
  [^OutputStream out guard ms ^bytes b offset n]
  (let [end (+ (long offset) (long n))]
    (loop [from (long offset)]
      (let [to (min end (+ from (long piece)))]
        (.write out b (int from) (int (- to from)))
        (when (< to end)
          (enter! guard ms)
          (recur to))))))

(defn- read-in-time
  "Reads as in does. A chunk's size of more than 31 bits is negative for the JDK, which finds its
  own index out of bounds then."
  [^InputStream in reading check! patience ms ^bytes b offset n]
  (in-time [_guard patience ms]
    (check!)
    (lock/alone reading
      (try
        (.read in b (int offset) (int n))
        (catch IndexOutOfBoundsException e (throw (IOException. "A chunk is too long" e)))))))

(defn input
  "Returns the stream, each read of which may take so long, and waits for its turn at the lock
  reading; (check!) precedes it."
  ^InputStream [^InputStream in reading check! patience ms]
  (byte-stream/input #(read-in-time in reading check! patience ms %1 %2 %3)
                     #(.available in)))

(defn output
  "Returns the stream, each piece written to which may take so long; (check!) precedes a write."
  ^OutputStream [^OutputStream out check! patience ms]
  (byte-stream/output (fn [b offset n]
                        (in-time [guard patience ms]
                          (check!)
                          (write! out guard ms b offset n)))
                      (fn []
                        (in-time [_guard patience ms]
                          (check!)
                          (.flush out)))))
