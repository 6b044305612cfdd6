(ns thrum.server.engine.jetty.incoming
  "The body of a request of Jetty's, which no other thread reads once its answer ends: Jetty then
  reads what is left of it, and where another thread does so at the same time, what one connection
  has sent can become part of another's request."
  (:require
   [thrum.server.spi.lock :refer [holding]])
  (:import
   (java.io IOException)
   (java.nio ByteBuffer)
   (java.util.concurrent.locks ReentrantLock)
   (org.eclipse.jetty.io Content$Chunk Content$Source)
   (org.eclipse.jetty.server Request)))

(set! *warn-on-reflection* true)

(defn- copied
  "Returns the chunk, with bytes of its own: Jetty's go back to its pool here, since what reads a
  body may leave a chunk half read."
  ^Content$Chunk [^Content$Chunk chunk]
  (if (.hasRemaining chunk)
    (let [bytes (byte-array (.remaining chunk))]
      (.get chunk bytes 0 (alength bytes))
      (.release chunk)
      (Content$Chunk/from (ByteBuffer/wrap bytes) (.isLast chunk)))
    chunk))

(defprotocol Incoming
  "What a request's body is read from."
  (end! [incoming] "Returns when no other thread reads; from now on none does."))

;; No read of Jetty's blocks: the lock is held for as long as one takes what is there.
(deftype Body [^Request request lock ^:unsynchronized-mutable over]
  Incoming
  (end! [_] (holding lock (set! over true)))
  Content$Source
  (getLength [_] (.getLength request))
  (read [_]
    (holding lock
      (if over
        (Content$Chunk/from (IOException. "The request is over"))
        (some-> (.read request) copied))))
  (demand [_ ready]
    (when-not (holding lock
                (when-not over
                  (.demand request ready)
                  true))
      (.run ready)))
  (^void fail [_ ^Throwable t]
    (holding lock
      (when-not over (.fail request t)))))

(defn body
  "Returns what the request's body is read from."
  ^Body [request]
  (Body. request (ReentrantLock.) false))
