(ns thrum.server.impl.sink
  "The output stream that a body is written to. Nothing is sent before the first flush or the first
  8 KiB, so that a body which fails at once can still become a 500; no byte beyond the
  Content-Length is sent, and fewer are a failure."
  {:no-doc true}
  (:import
   (java.io ByteArrayOutputStream IOException OutputStream)
   (java.util.concurrent.locks ReentrantLock)))

(set! *warn-on-reflection* true)

(def ^:private ^:const most-held 8192)

;; Where the bytes go: the exchange, which knows whether it may still answer.
(definterface Target
  (^java.io.OutputStream begin [length])  ; commits the response; length: nil where it is not known
  (^Object send [^bytes body])            ; commits the response, which is this and nothing else
  (^Object end [])                        ; what was begun is complete
  (^Object gone []))                      ; what was begun could not be written: the client has gone

(definterface ISink
  (^Object write [^bytes b ^long offset ^long n])
  (^Object begin [])
  (^Object flush [])
  (^Object finish [])
  (^long written [])
  (^Object close [])
  (^boolean closed []))

(defn- too-long [length]
  (IOException. (str "The body is longer than its Content-Length, " length " bytes")))

(defn- too-short [length written]
  (IOException. (str "The body has " written " bytes, and its Content-Length is " length)))

(defmacro holding
  "Runs the body with the lock held. Not a monitor: before JDK 24 a thread that blocks inside one
  keeps a carrier thread, and a client decides how long a write blocks."
  [lock & body]
  `(let [^ReentrantLock lock# ~lock]
     (.lock lock#)
     (try
       ~@body
       (finally (.unlock lock#)))))

(defmacro telling
  "Runs the body, which writes to the engine; tells the target where that fails."
  [target & body]
  `(try
     ~@body
     (catch IOException e#
       (.gone ~target)
       (throw e#))))

(defn- write-out! [^OutputStream out ^Target target ^bytes b offset n]
  (telling target (.write out b (int offset) (int n))))

(defn- flush-out! [^OutputStream out ^Target target]
  (telling target (.flush out)))

;; length: what was promised, or nil.
(deftype Sink [^Target target length thread ^ReentrantLock lock
               ^:unsynchronized-mutable ^ByteArrayOutputStream held
               ^:unsynchronized-mutable ^OutputStream out
               ^:volatile-mutable ^long written
               ^:volatile-mutable closed]
  ISink
  (write [this b offset n]
    (holding lock
      (when closed (throw (IOException. "The response's body is complete")))
      (when (and length (< (long length) (+ written n))) (throw (too-long length)))
      (when (and (nil? out) (< most-held (+ written n))) (.begin this))
      (if out
        (write-out! out target b offset n)
        (.write held b offset n))
      (set! written (+ written n))))
  (begin [this]
    (set! out (.begin target length))
    (write-out! out target (.toByteArray held) 0 (.size held))
    (set! held nil))
  (flush [this]
    (holding lock
      (when-not closed
        (when-not out (.begin this))
        (flush-out! out target))))
  (finish [_]
    (holding lock
      (when (and length (not= (long length) written)) (throw (too-short length written)))
      (if out
        (.end target)
        (.send target (.toByteArray held)))))
  (written [_] written)
  (close [_]
    (set! closed true)
    (java.util.concurrent.locks.LockSupport/unpark thread))
  (closed [_] closed))

(defn sink
  "Returns a sink for the calling thread, which is woken when it is closed; length: how many bytes
  it must be, or nil."
  ^Sink [target length]
  (Sink. target length (Thread/currentThread) (ReentrantLock.) (ByteArrayOutputStream. 512) nil 0
    false))

(defn stream
  "Returns the sink as a java.io.OutputStream. Closing it says that the body is whole."
  ^OutputStream [^Sink sink]
  (proxy [OutputStream] []
    (write
      ([x]
       (if (bytes? x)
         (.write sink x 0 (alength ^bytes x))
         (.write sink (byte-array [(unchecked-byte x)]) 0 1)))
      ([b offset n] (.write sink b offset n)))
    (flush [] (.flush sink))
    (close [] (.close sink))))
