(ns thrum.server.engine.jetty.incoming
  "The body of a request of Jetty's, which no other thread reads once its answer ends: Jetty then
  reads what is left of it, and where another thread does so at the same time, what one connection
  has sent can become part of another's request."
  (:import
   (java.io IOException)
   (org.eclipse.jetty.io Content$Chunk Content$Source)
   (org.eclipse.jetty.server Request)))

(set! *warn-on-reflection* true)

(defprotocol Incoming
  "What a request's body is read from."
  (end! [incoming] "Returns when no other thread reads; from now on none does."))

;; No read of Jetty's blocks: the lock is held for as long as one takes what is there.
(deftype Body [^Request request ^:unsynchronized-mutable over]
  Incoming
  (end! [this] (locking this (set! over true)))
  Content$Source
  (getLength [_] (.getLength request))
  (read [this]
    (locking this
      (if over
        (Content$Chunk/from (IOException. "The request is over"))
        (.read request))))
  (demand [this ready]
    (when-not (locking this
                (when-not over
                  (.demand request ready)
                  true))
      (.run ready)))
  (^void fail [this ^Throwable t]
    (locking this
      (when-not over (.fail request t)))))

(defn body
  "Returns what the request's body is read from."
  ^Body [request]
  (Body. request false))
