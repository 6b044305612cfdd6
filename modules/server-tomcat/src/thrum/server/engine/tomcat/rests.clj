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

;; began: of System/nanoTime. socket: nil where it is closed already.
(deftype Rest [^long began ^SocketChannel socket])

(defn rests
  "Returns an empty map of the threads that read a rest."
  ^Map []
  (ConcurrentHashMap.))

(defn end!
  "The calling thread reads no rest any more."
  [^Map rests]
  ;; Mostly there is none at all, and a fresh thread has no hash yet.
  (when-not (.isEmpty rests)
    (.remove rests (Thread/currentThread))))

(defn begin!
  "The calling thread, the connection's, reads the rest of the request's body, if there is one."
  [^Map rests ^Request request ^NioEndpoint endpoint]
  (when-not (or (request/shared? request) (request/body-read? request))
    (let [self (Thread/currentThread)]
      (.put rests self (Rest. (System/nanoTime) (connections/socket request)))
      ;; A stop may have looked before.
      (when-not (.isRunning endpoint) (.interrupt self)))))

(defn stop!
  "Interrupts the threads that read."
  [^Map rests]
  (run! #(.interrupt ^Thread %) (.keySet rests)))

(defn close-slow!
  "Closes the connections on which a rest has been read for more than so many ms."
  [^Map rests most-ms]
  (let [now (System/nanoTime)]
    (doseq [[^Thread thread ^Rest rest] rests]
      (when (and (< (* 1000000 (long most-ms)) (- now (.-began rest)))
                 (.remove rests thread rest))
        (some-> (.-socket rest) (connections/cut! false))
        ;; Tomcat's poller does not see that, and would let it wait.
        (.interrupt thread)))))
