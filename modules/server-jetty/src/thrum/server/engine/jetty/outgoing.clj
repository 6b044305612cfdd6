(ns thrum.server.engine.jetty.outgoing
  "What a response is written with: blocking, and as few writes as its size allows. Jetty's channels
  do not block, so that an interrupt of a thread that writes ends its wait and leaves the
  connection, which other requests may be on, alone."
  (:require
   [thrum.server.spi.flow :as flow])
  (:import
   (java.io BufferedOutputStream OutputStream)
   (java.nio ByteBuffer)
   (java.util.concurrent.atomic AtomicBoolean)
   (org.eclipse.jetty.server Response)
   (org.eclipse.jetty.util BufferUtil Callback$Completable)
   (org.eclipse.jetty.util.thread Invocable$InvocationType)))

(set! *warn-on-reflection* true)

(defn- completable
  "Returns a callback of Jetty's that is a future too. Completing it wakes a thread, and never
  blocks."
  ^Callback$Completable []
  (Callback$Completable. Invocable$InvocationType/NON_BLOCKING))

(defn write!
  "Writes, and blocks until the client took it; throws IOException."
  [^Response response last? ^ByteBuffer bytes]
  (let [done (completable)]
    (try
      (.write response last? bytes done)
      ;; Jetty's NullPointerException, where the exchange has been cut.
      (catch RuntimeException e (throw (flow/io-exception e))))
    (flow/await! done)))

(def ^:private ^:const buffered
  "How many bytes are held before they are written."
  16384)

;; ending: whether what is written now is the last piece. ended: whether that has been written.
(deftype Outgoing [write ^AtomicBoolean ending ^AtomicBoolean ended])

(defn- write-piece! [^Outgoing outgoing bytes]
  (let [last? (.get ^AtomicBoolean (.-ending outgoing))]
    ((.-write outgoing) last? bytes)
    (when last? (.set ^AtomicBoolean (.-ended outgoing) true))))

(defn- pieces
  "Returns a stream that writes each piece that it gets."
  ^OutputStream [^Outgoing outgoing]
  (proxy [OutputStream] []
    (write [bytes offset n] (write-piece! outgoing (ByteBuffer/wrap bytes offset n)))
    (flush []
      (when-not (.get ^AtomicBoolean (.-ended outgoing))
        (write-piece! outgoing BufferUtil/EMPTY_BUFFER)))))

(defn stream
  "Returns [stream finish!]: write, a function of last? and a ByteBuffer, is called with what the
  stream buffered; (finish!) sends what is left as the last piece."
  [write]
  (let [outgoing (Outgoing. write (AtomicBoolean.) (AtomicBoolean.))
        stream (BufferedOutputStream. (pieces outgoing) buffered)]
    [stream (fn [] (.set ^AtomicBoolean (.-ending outgoing) true) (.flush stream))]))
