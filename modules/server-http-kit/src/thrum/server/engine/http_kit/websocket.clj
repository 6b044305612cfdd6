(ns thrum.server.engine.http-kit.websocket
  "A websocket (RFC 6455) over a socket of http-kit's: http-kit decodes frames, in order; ours go
  out past it."
  (:require
   [clojure.string :as str]
   [thrum.server.engine.http-kit.connection :as connection]
   [thrum.server.engine.http-kit.library :as library]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.nio ByteBuffer)
   (java.nio.channels SocketChannel)
   (java.nio.charset StandardCharsets)
   (java.util.concurrent LinkedBlockingQueue TimeUnit)
   (java.util.concurrent.locks ReentrantLock)
   (thrum.server.engine.http_kit.connection Connection Tenant)))

(set! *warn-on-reflection* true)

;; Frames

(def ^:private opcodes {:text 1, :binary 2, :close 8, :ping 9, :pong 10})

(defn- frame-head ^bytes [opcode ^long n]
  (let [head (ByteBuffer/allocate 10)]
    (.put head (unchecked-byte (bit-or 0x80 (long (opcodes opcode)))))
    (cond
      (< n 126) (.put head (byte n))
      (< n 65536) (doto head (.put (byte 126)) (.putShort (unchecked-short n)))
      :else (doto head (.put (byte 127)) (.putLong n)))
    (java.util.Arrays/copyOf (.array head) (.position head))))

(defn- bytes-in ^bytes [^ByteBuffer data]
  (let [bytes (byte-array (.remaining data))]
    (.get (.duplicate data) bytes)
    bytes))

(defn- close-payload
  "Returns the code and the reason as a closing frame has them; 1005 stands for no code at all."
  ^bytes [code ^String reason]
  (if (= 1005 (long code))
    (byte-array 0)
    (let [text (.getBytes (str reason) StandardCharsets/UTF_8)
          payload (ByteBuffer/allocate (+ 2 (min 123 (alength text))))]
      (.putShort payload (unchecked-short (long code)))
      (.put payload text 0 (min 123 (alength text)))
      (.array payload))))

(def ^:private most-waiting
  "How many frames may wait for the listener before the socket is not read any more."
  64)

(def ^:private goodbye-ms
  "How long a client may take to answer a closing frame."
  5000)

(defn- kind [frame]
  (case (.getSimpleName (class frame))
    "TextFrame" :text
    "BinaryFrame" :binary
    "PingFrame" :ping
    "PongFrame" :pong))

(defn- idle-ms [connection]
  (connection/option connection :ws-idle-timeout-ms))

(defn- after-ms ^long [ms ^long now]
  (+ now (.toNanos TimeUnit/MILLISECONDS (long ms))))

(definterface IWebSocket
  (^Object write [opcode ^bytes payload])
  (next [])
  (^Object pause [])                ; reads no further while too much waits
  (^Object resume [])
  (^Object end [code reason]))

;; said-goodbye: a closing frame has gone out. heard: the client's, or its end. due: when the
;; client's silence has been too long.
(deftype WebSocket [lib ^Connection connection ^LinkedBlockingQueue events ^ReentrantLock writing
                    ^:volatile-mutable said-goodbye ^:volatile-mutable heard
                    ^:volatile-mutable paused ^:volatile-mutable ^long due]
  IWebSocket
  (write [_ opcode payload]
    (.lock writing)
    (try
      (when said-goodbye (throw (IOException. "The websocket is closed")))
      (when (= :close opcode)
        (set! said-goodbye true)
        (set! due (after-ms goodbye-ms (System/nanoTime))))
      (connection/write! connection [(frame-head opcode (alength payload)) payload])
      (finally
        (.unlock writing))))
  (next [this]
    (let [event (.take events)]
      (.resume this)
      event))
  (pause [_]
    (locking events
      (when (< (long most-waiting) (.size events))
        (set! paused true)
        (connection/read-on! connection false))))
  (resume [_]
    (locking events
      (when (and paused (< (.size events) (quot (long most-waiting) 2)))
        (set! paused false)
        (connection/read-on! connection true))))
  (end [this code reason]
    (when-not said-goodbye
      (try
        (.write this :close (close-payload code reason))
        (catch IOException _)))
    (connection/end! connection))
  Tenant
  (frame [this frame]
    (set! due (after-ms (idle-ms connection) (System/nanoTime)))
    (.add events [(kind frame) (library/value lib :frame->data frame)])
    (.pause this))
  (gone [_ code reason]
    (when-not heard
      (set! heard true)
      ;; http-kit tells of a closing frame while the socket is open, of a client that went when it
      ;; is closed.
      (if (.isOpen ^SocketChannel (.-socket connection))
        (.add events [:goodbye code reason])
        (.add events [:lost 1006 ""]))))
  (flawed [_ code]
    (when-not heard
      (set! heard true)
      (connection/read-on! connection false)
      (.add events [:flaw code ""])))
  (look [_ now]
    (when (neg? (- due now))
      (if (or said-goodbye heard)
        (connection/close! connection)
        (do
          (set! due (after-ms goodbye-ms now))
          (set! heard true)
          (.add events [:idle 1001 "Idle for too long"])))))
  engine/Socket
  (open? [_] (not (or said-goodbye heard)))
  (send-text! [this message] (.write this :text (.getBytes (str message) StandardCharsets/UTF_8)))
  (send-binary! [this message] (.write this :binary (bytes-in message)))
  (send-ping! [this data] (.write this :ping (bytes-in data)))
  (send-pong! [this data] (.write this :pong (bytes-in data)))
  (close! [this code reason] (.write this :close (close-payload code reason)))
  (disconnect! [_] (connection/break! connection)))

;; Telling the listener

(defn- text-of [^bytes data]
  (String. data StandardCharsets/UTF_8))

(defn- finish!
  [listener ^WebSocket socket [event code reason]]
  (when (= :flaw event)
    (engine/on-error listener
      socket
      (IOException. (str "The client broke the protocol of websockets: " code))))
  (when-not (= :lost event) (.end socket code reason))
  (engine/on-close listener socket (int code) (str reason)))

(defn- tell!
  "Tells the listener of an event; returns whether there will be others."
  [listener socket [event data :as all]]
  (case event
    :text (engine/on-text listener socket (text-of data))
    :binary (engine/on-binary listener socket (ByteBuffer/wrap data))
    :ping (engine/on-ping listener socket (ByteBuffer/wrap data))
    :pong (engine/on-pong listener socket (ByteBuffer/wrap data))
    (finish! listener socket all))
  (contains? #{:text :binary :ping :pong} event))

(defn- attend! [listener ^WebSocket socket]
  (engine/on-open listener socket)
  (while (tell! listener socket (.next socket))))

(defn open!
  "Makes the connection a websocket, of which the listener is told on a virtual thread."
  [lib connection listener]
  (let [socket (WebSocket. lib connection (LinkedBlockingQueue.) (ReentrantLock.) false false false
                           (connection/in-ms (idle-ms connection)))]
    (.setTenant ^Connection connection socket)
    (.start (spi/clean-thread "http-kit-websocket" #(attend! listener socket)))))
