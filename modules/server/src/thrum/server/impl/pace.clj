(ns thrum.server.impl.pace
  "The least rate at which a client sends a request's body, and takes a response.

  Each direction (request body, response) has a time budget. Waiting for the client spends it; each
  byte adds the time that a byte may take. A client that is still waited for when nothing is left is
  too slow. One thread looks at all from time to time: no byte has a timer."
  {:no-doc true}
  (:require
   [thrum.server.spi :as engine]
   [thrum.server.spi.byte-stream :as byte-stream])
  (:import
   (java.io InputStream OutputStream)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

;; One direction

(defprotocol ^:private Timed
  "A direction in which a client may be too slow; now: of System/nanoTime."
  (enter! [lane now] "The wait for the client begins.")
  (leave! [lane now n] "It ends; n bytes have passed.")
  (late-at? [lane now] "True if the wait has taken too long."))

;; In ns. most: how much may be saved up. left: of the allowance, when no thread waits. since: when
;; the wait began, or nil.
(deftype Lane [^double per-byte ^double most ^:unsynchronized-mutable ^double left
               ^:unsynchronized-mutable since]
  Timed
  (enter! [this now] (locking this (set! since now)))
  (leave! [this now n]
    (locking this
      (when since
        (let [waited (double (- (long now) (long since)))]
          (set! left (min most (- (+ left (* per-byte (long n))) waited))))
        (set! since nil))))
  (late-at? [this now]
    (locking this (boolean (and since (neg? (- left (double (- (long now) (long since))))))))))

(defn lane
  "Returns a lane for so many bytes per second, on which a client may be grace-ms late. saves?:
  whether what has passed more quickly is kept for later without bound."
  ^Lane [rate grace-ms saves?]
  (let [grace (double (.toNanos TimeUnit/MILLISECONDS (long grace-ms)))]
    (Lane. (/ 1e9 (double rate)) (if saves? Double/MAX_VALUE grace) grace nil)))

(defmacro ^:private on
  "Evaluates the forms, which wait for the client; n: how many bytes pass, of the value it when they
  have returned."
  [[lane it n] & forms]
  `(do
     (enter! ~lane (System/nanoTime))
     (let [passed# (volatile! 0)]
       (try
         (let [~it (do ~@forms)]
           (vreset! passed# ~n)
           ~it)
         (finally (leave! ~lane (System/nanoTime) @passed#))))))

;; Bodies

(defn- paced-input ^InputStream [^InputStream in ^Lane lane]
  (byte-stream/input (fn [^bytes b offset n]
                       (on [lane got (max 0 (long got))] (.read in b (int offset) (int n))))
                     #(.available in)))

(def ^:private ^:const piece
  "How many bytes are written in one go: a client that takes some shows it."
  16384)

(defn- write-pieces! [^OutputStream out ^Lane lane bytes offset n]
  (let [end (+ (long offset) (long n))]
    (loop [from (long offset)]
      (when (< from end)
        (let [n (min piece (- end from))]
          (on [lane _ n] (.write out ^bytes bytes (int from) (int n)))
          (recur (+ from n)))))))

(defn- paced-output ^OutputStream [^OutputStream out ^Lane lane]
  (byte-stream/output #(write-pieces! out lane %1 %2 %3)
                      #(on [lane _ 0] (.flush out))))

;; The wire

(deftype PacedWire [wire ^Lane in ^Lane out]
  engine/Wire
  (method [_] (engine/method wire))
  (target [_] (engine/target wire))
  (protocol [_] (engine/protocol wire))
  (scheme [_] (engine/scheme wire))
  (authority [_] (engine/authority wire))
  (headers [_] (engine/headers wire))
  (remote [_] (engine/remote wire))
  (local [_] (engine/local wire))
  (certificate [_] (engine/certificate wire))
  (body [_]
    (some-> (engine/body wire) (paced-input in)))
  (send! [this status headers body]
    (if (and body (< piece (alength ^bytes body)))
      (let [^OutputStream stream (engine/begin! this status headers (alength ^bytes body))]
        (.write stream ^bytes body)
        (engine/end! this))
      (on [out _ (if body (alength ^bytes body) 0)] (engine/send! wire status headers body))))
  (begin! [_ status headers length]
    (paced-output (on [out stream 0] (engine/begin! wire status headers length)) out))
  (end! [_]
    (on [out _ 0] (engine/end! wire)))
  (abort! [_] (engine/abort! wire))
  (watch! [_ gone] (engine/watch! wire gone))
  (unwatch! [_] (engine/unwatch! wire))
  (upgrade! [_ headers protocol listener] (engine/upgrade! wire headers protocol listener)))

(defn paced
  "Returns the wire with the least rate of these options."
  [wire {:keys [min-bytes-per-second rate-grace-ms]}]
  ;; What a socket's buffers have taken has not been taken by the client: it is let go on with that.
  (PacedWire. wire
              (lane min-bytes-per-second rate-grace-ms false)
              (lane min-bytes-per-second rate-grace-ms true)))

(defn late?
  "True if the client at this wire is waited for, and too slow."
  [wire]
  (when (instance? PacedWire wire)
    (let [^PacedWire wire wire, now (System/nanoTime)]
      (or (late-at? (.-in wire) now) (late-at? (.-out wire) now)))))
