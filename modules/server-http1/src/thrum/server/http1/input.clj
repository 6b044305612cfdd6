(ns thrum.server.http1.input
  "The raw bytes that a client has sent: heads of requests, and single bytes and arrays of the rest.
  A request's body is thrum.server.http1.body's."
  (:require
   [thrum.server.http1.connection :as connection]
   [thrum.server.http1.head :as head]
   [thrum.server.spi.flow :as flow]
   [thrum.spi :as spi])
  (:import
   (java.io EOFException IOException)
   (java.nio ByteBuffer)
   (thrum.server.http1.connection Connection)
   (thrum.server.http1.head Head)))

(set! *warn-on-reflection* true)

(defn- roomy
  "Returns the buffer's bytes in a buffer with room behind them."
  ^ByteBuffer [^ByteBuffer buffer]
  (cond
    (not (.hasRemaining buffer)) (.limit (.clear buffer) 0)
    (< (.limit buffer) (.capacity buffer)) buffer
    (pos? (.position buffer)) (.flip (.compact buffer))
    :else (.flip (.put (ByteBuffer/allocate (* 2 (.capacity buffer))) buffer))))

;; No protocol: it is called for every head and read of a body, see decision 32.
(definterface IInput
  (^java.nio.ByteBuffer buffer [])  ; what has been received and not been taken
  (^boolean fill [until])           ; see fill!
  (^boolean settle [until])         ; see settle!
  (^Object watch [gone])
  (^Object setBodyUntil [until])    ; see limit-body!
  (bodyUntil []))

;; ahead: a CompletableFuture of the fill that another thread does, or nil.
(deftype Input [^Connection connection ^:unsynchronized-mutable ^ByteBuffer buffer
                ^:unsynchronized-mutable ahead ^:unsynchronized-mutable body-until]
  IInput
  (buffer [_] buffer)
  (setBodyUntil [_ until] (set! body-until until))
  (bodyUntil [_] body-until)
  (fill [_ until]
    (set! buffer (roomy buffer))
    (connection/receive! connection buffer until))
  (settle [_ until]
    (if-some [filled ahead]
      (do (set! ahead nil)
          (boolean (connection/receiving connection until #(flow/await! filled))))
      true))
  (watch [_ gone]
    (when-not (or ahead (.hasRemaining buffer))
      (let [buffer (set! buffer (roomy buffer))]
        (set! ahead (flow/elsewhere
                      #(or (try
                             (connection/receive-now! connection buffer)
                             (catch IOException _ false))
                           (do (gone) false))))))))

(defn input
  "Returns the input of a connection."
  ^Input [connection]
  (Input. connection (.limit (ByteBuffer/allocate 8192) 0) nil nil))

(defn watch!
  "Calls gone, on another thread, when the client goes before it has sent anything more. Before the
  next settle! nothing may be read. Does nothing where bytes have come already."
  [^Input in gone]
  (.watch in gone))

(defn settle!
  "Ends what watch! began: waits for the bytes that it reads, until then at the latest, of
  System/nanoTime. Returns false where the client sends no more. Does nothing where nothing is
  watched."
  [^Input in until]
  (.settle in until))

;; Bytes

(defn limit-body!
  "Bytes are waited for until then, of System/nanoTime, and no longer; nil: for each as long as a
  client may be silent. Heads have their own limit."
  [^Input in until]
  (.setBodyUntil in until))

(defn received
  "Returns a buffer of the bytes that were received and not taken. What is taken from it is taken."
  ^ByteBuffer [^Input in]
  (.buffer in))

(defn fill!
  "Waits for bytes. until: a System/nanoTime value, or nil for no limit but the connection's.
  Returns whether there are any; false: the client sends no more. Throws IOException where the
  connection is cut, as it is at that time."
  [^Input in until]
  (.fill in until))

(defn- some-bytes
  "Returns the buffer, with at least a byte in it. Throws EOFException where there is none."
  ^ByteBuffer [^Input in]
  (let [buffer (.buffer in)]
    (if (.hasRemaining buffer)
      buffer
      (let [idle-ms (.-idle-ms ^Connection (.-connection in))]
        (when-not (fill! in (or (.bodyUntil in) (spi/deadline-in idle-ms)))
          (throw (EOFException. "The client has closed the connection")))
        (.buffer in)))))

(defn next-byte!
  "Takes the next byte. Throws IOException where there is none."
  ^long [in]
  (bit-and 0xff (.get (some-bytes in))))

(defn take!
  "Takes at most n bytes, and at least one; returns how many. Throws IOException where there are
  none."
  ^long [in ^bytes to ^long offset ^long n]
  (let [buffer (some-bytes in)
        n (min n (.remaining buffer))]
    (.get buffer to (int offset) (int n))
    n))

;; Heads

(def ^:private ^:const most-empty-lines
  "How many times empty lines may come before a request (RFC 9112, 2.2)."
  16)

(defn- skip-empty-lines! [^ByteBuffer buffer]
  (while (and (< 1 (.remaining buffer))
              (= 13 (.get buffer (.position buffer)))
              (= 10 (.get buffer (inc (.position buffer)))))
    (.position buffer (+ 2 (.position buffer)))))

(defn- begun?
  "True if there are bytes of a request: a CR alone may be the half of an empty line."
  [^ByteBuffer buffer]
  (and (.hasRemaining buffer)
       (not (and (= 13 (.get buffer (.position buffer))) (= 1 (.remaining buffer))))))

(defn- await-first!
  "Waits until a request begins; returns whether one does."
  [^Input in until]
  (loop [skipped 0]
    (skip-empty-lines! (.buffer in))
    (cond
      (begun? (.buffer in)) true
      (< most-empty-lines skipped) false
      (fill! in until) (recur (inc skipped))
      :else false)))

(defn- protocol-status [^Head head]
  (let [protocol (.-protocol head)]
    (cond
      (or (.equals "HTTP/1.1" protocol) (.equals "HTTP/1.0" protocol)) nil
      (re-matches #"HTTP/\d\.\d" protocol) 505
      :else 400)))

(defn- take-head!
  "Takes the head that ends there."
  [^ByteBuffer buffer ^long end]
  (let [head (head/head buffer)]
    (.position buffer (int end))
    (or (when head (protocol-status head))
        head
        400)))

(defn- receive-head!
  "Takes the next head, which has begun and may take so many ms."
  [^Input in most head-ms]
  (loop [until nil]
    (let [buffer (.buffer in)
          from (long (.position buffer))
          end (head/end buffer from (.limit buffer))
          size (- (if (neg? end) (long (.limit buffer)) end) from)]
      (cond
        (= head/garbled end) 400
        (< (long most) size) 431
        (not (neg? end)) (take-head! buffer end)
        ;; Most heads come whole: they need no look at the clock.
        :else (let [until (or until (spi/deadline-in head-ms))]
                (when (fill! in until) (recur until)))))))

(defn head!
  "Returns the next request's Head, or the status to refuse it with; nil when the client sends none,
  or not in time."
  [^Input in]
  (let [^Connection c (.-connection in)]
    (try
      (let [until (spi/deadline-in (.-idle-ms c))]
        (when (and (settle! in until) (await-first! in until))
          (receive-head! in (.-most-head c) (.-head-ms c))))
      (catch IOException _ nil))))
