(ns thrum.server.engine.tomcat.rests
  "What is left of requests' bodies. Tomcat reads it before the connection's next request, for as
  long as the client sends a byte now and then, also when the server stops: each has a limit of time
  here."
  (:require
   [thrum.server.engine.tomcat.connections :as connections]
   [thrum.server.engine.tomcat.request :as request])
  (:import
   (java.nio.channels SocketChannel)
   (java.util Map)
   (java.util.concurrent ConcurrentHashMap)
   (org.apache.coyote Request)
   (org.apache.tomcat.util.net NioEndpoint)))

(set! *warn-on-reflection* true)

(defprotocol ^:private Reading
  "A thread that reads a rest. It is woken while it does, and at no later time: with the lock, which
  the end of the rest waits for."
  (wake! [rest cut?] "Interrupts the thread, once; cut?: closes the connection before.")
  (over! [rest] "For the thread itself: it reads no more. Takes back the interrupt."))

;; began: of System/nanoTime. socket: nil where it is closed already.
(deftype Rest [^long began ^Thread thread ^SocketChannel socket
               ^:unsynchronized-mutable woken ^:unsynchronized-mutable over]
  Reading
  (wake! [this cut?]
    (locking this
      (when-not (or over woken)
        (set! woken true)
        (when (and cut? socket) (connections/cut! socket false))
        ;; Tomcat's poller does not see the cut, and would let the thread wait.
        (.interrupt thread))))
  (over! [this]
    (locking this
      (set! over true)
      (when woken (Thread/interrupted)))))

(defn rests
  "Returns an empty map of the rests that are read, by thread."
  ^Map []
  (ConcurrentHashMap.))

(defn end!
  "The calling thread reads no rest any more."
  [^Map rests]
  ;; Mostly there is none at all, and a fresh thread has no hash yet.
  (when-not (.isEmpty rests)
    (some-> (.remove rests (Thread/currentThread)) over!)))

(defn begin!
  "The calling thread, the connection's, reads the rest of the request's body, if there is one."
  [^Map rests ^Request request ^NioEndpoint endpoint]
  (when-not (or (request/shared? request) (request/body-read? request))
    (let [self (Thread/currentThread)
          rest (Rest. (System/nanoTime) self (connections/socket request) false false)]
      (.put rests self rest)
      ;; A stop may have looked before.
      (when-not (.isRunning endpoint) (wake! rest false)))))

(defn stop!
  "Interrupts the threads that read."
  [^Map rests]
  (run! #(wake! % false) (.values rests)))

(defn close-slow!
  "Closes the connections on which a rest has been read for more than so many ms."
  [^Map rests most-ms]
  (let [now (System/nanoTime)]
    (doseq [^Rest rest (.values rests)]
      (when (< (* 1000000 (long most-ms)) (- now (.-began rest)))
        (wake! rest true)))))
