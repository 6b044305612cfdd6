(ns thrum.server.engine.tomcat.turns
  "Counts the threads inside of Tomcat's objects of a request. Tomcat uses those again for the next
  request: they belong to an exchange until it is over and its last thread has left them.

  On HTTP/1 Tomcat's waits for a client swallow interrupts. On HTTP/2 an interrupt of a thread
  inside Tomcat ends the connection, with all other streams. Calls that may wait, and on HTTP/2 all
  that write, are therefore made by a thread of their own; the exchange's thread waits for that
  one."
  (:require
   [thrum.server.spi :as engine]
   [thrum.server.spi.flow :as flow])
  (:import
   (java.io InterruptedIOException)))

(set! *warn-on-reflection* true)

(defprotocol Turns
  "The use that an exchange makes of Tomcat's objects."
  (enter! [turns]
    "Before Tomcat's objects are used on this thread. Throws IOException when the exchange is
    over.")
  (leave! [turns] "After they have been used.")
  (become! [turns state]
    "The exchange is over, as state says: :complete or :upgraded. Throws IOException when it was
    over before.")
  (over? [turns] "True if the exchange is over.")
  (wake! [turns] "Interrupts the threads that are inside.")
  (cut-stream! [turns] "Ends a stream of HTTP/2 under the threads that are inside.")
  (ended [turns]
    "Returns how the exchange ended, once nothing is inside any more; nil before. Beside the states
    of become! there is :aborted."))

(defmacro inside
  "Evaluates the forms while Tomcat's objects belong to this exchange; aborts it when they throw."
  [[wire] & forms]
  `(do
     (enter! ~wire)
     (try
       (try
         ~@forms
         (finally (leave! ~wire)))
       (catch Throwable t#
         (engine/abort! ~wire)
         (throw (flow/io-exception t#))))))

(defmacro waiting
  "Evaluates the forms like inside, on another thread: an interrupt of this one ends its wait, and
  the exchange."
  [[wire] & forms]
  `(try
     (flow/await! (flow/elsewhere (fn [] (inside [~wire] ~@forms))))
     (catch InterruptedIOException e#
       (engine/abort! ~wire)
       (throw e#))))
