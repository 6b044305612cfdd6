(ns thrum.server.impl.sink
  "The output stream that a body is written to. Nothing is sent before the first flush or the first
  8 KiB, so that a body which fails at once can still become a 500; no byte beyond the
  Content-Length is sent, and fewer are a failure."
  {:no-doc true}
  (:require
   [thrum.server.spi.byte-stream :as byte-stream]
   [thrum.server.spi.lock :refer [holding]])
  (:import
   (java.io ByteArrayOutputStream IOException OutputStream)
   (java.util.concurrent.locks LockSupport ReentrantLock)))

(set! *warn-on-reflection* true)

(def ^:private ^:const most-held 8192)

(defprotocol Target
  "Where the bytes of a response go: to an exchange, which knows whether it may still answer."
  (^OutputStream begin! [target length]
    "Commits the response; length: nil where it is not known. Returns where its body is written.")
  (send! [target bytes] "Commits the response, which has this body and no other.")
  (end! [target] "The body that was begun is complete.")
  (gone! [target] "What was begun could not be written: the client has gone."))

(defprotocol BodySink
  "What a body is written through."
  (begin-out! [sink] "Begins the response with what has been taken.")
  (write! [sink bytes offset n] "Takes n bytes from offset.")
  (flush! [sink] "Sends what has been taken.")
  (finish! [sink] "The body is whole: sends the rest, and takes no more.")
  (written [sink] "Returns how many bytes have been taken.")
  (close! [sink] "Takes no more.")
  (closed? [sink] "True if close! has been called."))

(defn- too-long [length]
  (IOException. (str "The body is longer than its Content-Length, " length " bytes")))

(defn- too-short [length written]
  (IOException. (str "The body has " written " bytes, and its Content-Length is " length)))

(defmacro reporting
  "Runs the body, which writes to the engine; calls gone! where that fails."
  [target & body]
  `(try
     ~@body
     (catch IOException e#
       (gone! ~target)
       (throw e#))))

(defn- write-out! [^OutputStream out target ^bytes b offset n]
  (reporting target (.write out b (int offset) (int n))))

(defn- begin-with!
  "Begins the response with the bytes that are held. Returns its stream."
  ^OutputStream [target length ^ByteArrayOutputStream held]
  (let [out (begin! target length)]
    (write-out! out target (.toByteArray held) 0 (.size held))
    out))

;; length: what was promised, or nil. out: nil as long as bytes are held.
(deftype Sink [target length thread ^ReentrantLock lock
               ^:unsynchronized-mutable ^ByteArrayOutputStream held
               ^:unsynchronized-mutable ^OutputStream out
               ^:volatile-mutable ^long written
               ^:volatile-mutable closed]
  BodySink
  (begin-out! [this]
    (set! out (begin-with! target length held))
    (set! held nil))
  (write! [this b offset n]
    (holding lock
      (let [after (+ written (long n))]
        (when closed (throw (IOException. "The response's body is complete")))
        (when (and length (< (long length) after)) (throw (too-long length)))
        (when (and (nil? out) (< most-held after)) (begin-out! this))
        (if out
          (write-out! out target b offset n)
          (.write held ^bytes b (int offset) (int n)))
        (set! written after))))
  (flush! [this]
    (holding lock
      (when-not closed
        (when-not out (begin-out! this))
        (reporting target (.flush out)))))
  (finish! [_]
    (holding lock
      (set! closed true)
      (when (and length (not= (long length) written)) (throw (too-short length written)))
      (if out
        (end! target)
        (send! target (.toByteArray held)))))
  (written [_] written)
  (close! [_]
    (set! closed true)
    (LockSupport/unpark thread))
  (closed? [_] closed))

(defn sink
  "Returns a sink for the calling thread, which is woken when it is closed; length: how many bytes
  it must be, or nil."
  ^Sink [target length]
  (Sink. target length (Thread/currentThread) (ReentrantLock.) (ByteArrayOutputStream. 512)
    nil 0 false))

(defn stream
  "Returns the sink as a java.io.OutputStream. Closing it says that the body is whole."
  ^OutputStream [sink]
  (byte-stream/output #(write! sink %1 %2 %3)
                      #(flush! sink)
                      #(close! sink)))
