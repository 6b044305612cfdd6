(ns thrum.server.engine.http-kit.connection
  "One client's socket: writes that block until the kernel has taken the bytes, and the ways to end
  it."
  (:require
   [thrum.server.engine.http-kit.keeper :as keeper]
   [thrum.server.engine.http-kit.library :as library]
   [thrum.spi :as spi])
  (:import
   (java.io EOFException IOException InterruptedIOException)
   (java.net StandardSocketOptions)
   (java.nio ByteBuffer)
   (java.nio.channels CancelledKeyException ClosedChannelException SelectionKey SocketChannel)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(definterface Tenant
  (^Object gone [code reason])      ; the connection has ended; on http-kit's loop
  (^Object frame [frame])           ; a websocket's frame; on http-kit's loop
  (^Object flawed [code])           ; the client sent what is no websocket's frame; on http-kit's loop
  (^Object look [^long now])) ; from time to time, on the keeper's thread

(definterface IConnection
  (tenant [])
  (^Object setTenant [tenant])      ; nil: waits for a request
  (^boolean isCut [])
  (^Object cut [])
  (progress [])
  (^Object setProgress [progress]))

;; tenant: whose the connection is now, a wire, a websocket, or :closing. progress: [stage since],
;; as the keeper saw it.
(deftype Connection [server ^SelectionKey key ^SocketChannel socket
                     ^:volatile-mutable tenant ^:volatile-mutable cut ^:volatile-mutable progress]
  IConnection
  (tenant [_] tenant)
  (setTenant [_ t]
    (set! progress nil)
    (set! tenant t))
  (isCut [_] (boolean cut))
  (cut [_] (set! cut true))
  (progress [_] progress)
  (setProgress [_ p] (set! progress p)))

;; What all connections of a server share.
(deftype Server [lib http-kit options keeper])

(defn connection
  "Returns the connection of a key of http-kit's selector."
  ^Connection [server ^SelectionKey key]
  (Connection. server key (.channel key) nil false nil))

(defn option
  "Returns an option of the connection's server."
  [^Connection c k]
  (get (.-options ^Server (.-server c)) k))

(defn- keeper-of [^Connection c]
  @(.-keeper ^Server (.-server c)))

(defn in-ms
  "Returns System/nanoTime in so many ms."
  ^long [ms]
  (+ (System/nanoTime) (.toNanos TimeUnit/MILLISECONDS (long ms))))

;; Reading, which http-kit does

(defn read-on!
  "Says whether http-kit should read from the connection. While it does, it closes a connection
  whose client has closed its side."
  [^Connection c on?]
  (try
    (.interestOps ^SelectionKey (.-key c) (if on? SelectionKey/OP_READ 0))
    (when on? (.wakeup (.selector ^SelectionKey (.-key c))))
    (catch CancelledKeyException _)))

;; Writing

(defn- check! [^Connection c]
  (when (.isCut c) (throw (ClosedChannelException.)))
  (when (.isInterrupted (Thread/currentThread)) (throw (InterruptedIOException. "Interrupted"))))

(defn- left? [^"[Ljava.nio.ByteBuffer;" buffers]
  (.hasRemaining ^ByteBuffer (aget buffers (dec (alength buffers)))))

(defn write!
  "Writes all the arrays of bytes. Blocks; throws IOException when the client has gone, or takes
  nothing for :idle-timeout-ms."
  [^Connection c arrays]
  (let [buffers (into-array ByteBuffer (map #(ByteBuffer/wrap ^bytes %) arrays))
        ^SocketChannel socket (.-socket c)
        idle-ms (option c :idle-timeout-ms)]
    (loop [until (in-ms idle-ms)]
      (check! c)
      (let [written (.write socket ^"[Ljava.nio.ByteBuffer;" buffers)]
        (when (left? buffers)
          (let [until (if (pos? written) (in-ms idle-ms) until)]
            (keeper/await! (keeper-of c) socket SelectionKey/OP_WRITE until)
            (recur (long until))))))))

(defn read!
  "Reads into the buffer, at least a byte. Blocks; throws IOException when the client has gone, or
  sends nothing for :idle-timeout-ms."
  [^Connection c ^ByteBuffer buffer]
  (let [^SocketChannel socket (.-socket c)
        until (in-ms (option c :idle-timeout-ms))]
    (loop []
      (check! c)
      (let [n (.read socket buffer)]
        (cond
          (neg? n) (throw (EOFException. "The client has closed the connection"))
          (zero? n) (do (keeper/await! (keeper-of c) socket SelectionKey/OP_READ until)
                        (recur)))))))

(defn write-now!
  "Writes what the kernel takes at once: little, and first."
  [^Connection c ^bytes bytes]
  (try
    (.write ^SocketChannel (.-socket c) (ByteBuffer/wrap bytes))
    (catch IOException _)))

;; The end. http-kit's loop closes, because a key that another thread cancels can stop the loop from
;; seeing other keys.

(defn close!
  "Closes the connection, soon."
  [^Connection c]
  (let [^Server server (.-server c)]
    (.cut c)
    (library/call (.-lib server) :close-key (.-http-kit server) (.-key c))
    (keeper/nudge! (keeper-of c) (.-socket c))
    nil))

(defn break!
  "Closes the connection so that its client is told of a failure."
  [^Connection c]
  (try
    (.setOption ^SocketChannel (.-socket c) StandardSocketOptions/SO_LINGER (Integer/valueOf 0))
    (catch IOException _))
  (close! c))

(def ^:private linger-ms
  "How long a client is heard after the last byte to it, at most."
  2000)

(def ^:private most-heard
  "How many bytes of it are thrown away, at most."
  (* 4 1024 1024))

(defn- drain! [^Connection c]
  (let [^SocketChannel socket (.-socket c)
        buffer (ByteBuffer/allocate 8192)
        until (in-ms linger-ms)]
    (loop [left (long most-heard)]
      (let [n (.read socket (.clear buffer))]
        (when (zero? n)
          (keeper/await! (keeper-of c) socket SelectionKey/OP_READ until))
        (when (and (<= 0 n) (pos? left) (< (System/nanoTime) until))
          (recur (- left n)))))))

(defn- linger! [^Connection c]
  (try
    (.shutdownOutput ^SocketChannel (.-socket c))
    (drain! c)
    (catch IOException _)
    (finally (close! c))))

(defn end!
  "Ends the connection after what has been written. A client that still sends is heard for a moment:
  a close with bytes unread would be a reset, and take away what the client has not read yet."
  [^Connection c]
  (.setTenant c :closing)
  (read-on! c false)
  (.start (spi/clean-thread "http-kit-close" #(linger! c))))

;; Silence

(defn- late?
  "Tells whether the connection has been at this stage for too long."
  [^Connection c stage since now]
  (let [most (option c (if (= :head stage) :header-timeout-ms :idle-timeout-ms))]
    (< (.toNanos TimeUnit/MILLISECONDS (long most)) (- (long now) (long since)))))

(defn- look-at-reading! [^Connection c now]
  (let [[before since] (.progress c)
        stage (library/progress (.-lib ^Server (.-server c)) (.-key c))]
    (cond
      (not= before stage) (.setProgress c [stage now])
      (late? c stage since now) (close! c))))

(defn look!
  "Closes the connection if its client has been silent for too long."
  [^Connection c now]
  (let [tenant (.tenant c)]
    (cond
      (nil? tenant) (look-at-reading! c now)
      (instance? Tenant tenant) (.look ^Tenant tenant (long now)))))
