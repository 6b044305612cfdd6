(ns thrum.server.engine.http-kit.websocket
  "A websocket (RFC 6455) on a connection of thrum.server.http1: http-kit decodes the client's
  frames; ours go out past it."
  (:require
   [thrum.server.http1.connection :as connection]
   [thrum.server.http1.input :as input]
   [thrum.server.http1.response :as response]
   [thrum.server.spi :as engine]
   [thrum.server.spi.http :as http]
   [thrum.server.spi.lock :refer [holding]]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.net SocketTimeoutException)
   (java.nio ByteBuffer CharBuffer)
   (java.nio.charset CodingErrorAction StandardCharsets)
   (java.util Arrays)
   (java.util.concurrent.locks ReentrantLock)))

(set! *warn-on-reflection* true)

;; Frames

(def ^:private opcodes {:text 1, :binary 2, :close 8, :ping 9, :pong 10})

(defn- frame
  "Returns a frame's bytes: never masked, never a fragment."
  ^bytes [kind ^bytes payload]
  (let [n (alength payload)
        frame (ByteBuffer/allocate (+ 10 n))]
    (.put frame (unchecked-byte (bit-or 0x80 (long (opcodes kind)))))
    (cond
      (< n 126) (.put frame (byte n))
      (< n 65536) (doto frame (.put (byte 126)) (.putShort (unchecked-short n)))
      :else (doto frame (.put (byte 127)) (.putLong n)))
    (.put frame payload)
    (Arrays/copyOf (.array frame) (.position frame))))

(defn- bytes-in ^bytes [^ByteBuffer data]
  (let [bytes (byte-array (.remaining data))]
    (.get (.duplicate data) bytes)
    bytes))

(defn- text-of [^bytes data]
  (String. data StandardCharsets/UTF_8))

(def ^:private ^:const no-code
  "What stands for a closing frame without a code (RFC 6455, 7.4.1)."
  1005)

(def ^:private ^:const most-in-control
  "How many bytes a control frame's payload may have (RFC 6455, 5.5)."
  125)

(defn- encode!
  "Adds the characters for which there is room, in UTF-8."
  [^ByteBuffer to ^String text]
  (-> (.newEncoder StandardCharsets/UTF_8)
      (.onMalformedInput CodingErrorAction/REPLACE)
      (.encode (CharBuffer/wrap text) to true)))

(defn- close-payload
  "Returns the payload of a closing frame; a reason that is too long is cut."
  ^bytes [code reason]
  (if (= no-code (long code))
    (byte-array 0)
    (bytes-in (doto (ByteBuffer/allocate most-in-control)
                (.putShort (unchecked-short (long code)))
                (encode! (str reason))
                .flip))))

(defn- close-said
  "Returns [code reason] of a closing frame's payload."
  [^bytes payload]
  (if (< (alength payload) 2)
    [no-code ""]
    [(bit-and 0xffff (.getShort (ByteBuffer/wrap payload)))
     (String. payload 2 (- (alength payload) 2) StandardCharsets/UTF_8)]))

;; The socket

(def ^:private ^:const goodbye-ms
  "How long a client may take to answer a closing frame."
  5000)

(defprotocol ^:private Frames
  "The frames of a websocket."
  (write! [socket kind payload] "Sends a frame. Throws IOException behind a closing one.")
  (end-receiving! [socket] "The client sends no more messages."))

(deftype WebSocket [connection writing
                    ^:volatile-mutable said-goodbye ^:volatile-mutable over]
  Frames
  (write! [_ kind payload]
    (holding writing
      (when said-goodbye (throw (IOException. "The websocket is closed")))
      (when (= :close kind)
        (set! said-goodbye true)
        (connection/expect! connection (spi/deadline-in goodbye-ms)))
      (connection/write! connection (frame kind payload))))
  (end-receiving! [_] (set! over true))
  engine/Socket
  (open? [_] (not (or said-goodbye over)))
  (send-text! [this message]
    (write! this :text (.getBytes (str message) StandardCharsets/UTF_8)))
  (send-binary! [this message] (write! this :binary (bytes-in message)))
  (send-ping! [this data] (write! this :ping (bytes-in data)))
  (send-pong! [this data] (write! this :pong (bytes-in data)))
  (close! [this code reason] (write! this :close (close-payload code reason)))
  (disconnect! [_] (connection/reset!! connection)))

;; The client's frames

(defn- next-event
  "Returns the next frame, [:lost] where the client has gone, or [:idle] where it is silent. Where
  the request was watched, the first wait cuts a silent client."
  [connection in decode]
  (try
    (if (input/settle! in (spi/deadline-in (connection/option connection :ws-idle-timeout-ms)))
      (loop []
        (cond
          (.hasRemaining (input/received in)) (or (decode (input/received in)) (recur))
          (input/fill! in nil) (recur)
          :else [:lost]))
      [:lost])
    (catch SocketTimeoutException _ [:idle])
    (catch IOException _ [:lost])))

(defn- finish!
  "Says goodbye where that was not said, has the connection ended, and reports it."
  [{:keys [listener end]} socket code reason]
  (end-receiving! socket)
  (try
    (engine/close! socket code reason)
    (catch IOException _))
  (end)
  (engine/on-close listener socket code reason))

(defn- fail! [{:keys [listener] :as parts} socket code]
  (engine/on-error listener
    socket
    (IOException. (str "The client broke the protocol of websockets: " code)))
  (finish! parts socket code ""))

(defn- lose! [{:keys [connection listener]} socket]
  (end-receiving! socket)
  (connection/cut! connection)
  (engine/on-close listener socket 1006 ""))

(defn- report!
  "Reports an event to the listener; returns whether there will be others."
  [{:keys [listener] :as parts} socket [kind data]]
  (case kind
    :text (engine/on-text listener socket (text-of data))
    :binary (engine/on-binary listener socket (ByteBuffer/wrap data))
    :ping (engine/on-ping listener socket (ByteBuffer/wrap data))
    :pong (engine/on-pong listener socket (ByteBuffer/wrap data))
    :close (let [[code reason] (close-said data)] (finish! parts socket code reason))
    :flaw (fail! parts socket data)
    :idle (finish! parts socket 1001 "Idle for too long")
    :lost (lose! parts socket))
  (contains? #{:text :binary :ping :pong} kind))

(defn open!
  "Sends the handshake, and makes the connection a websocket, whose listener is called on a virtual
  thread; decode: of library/decoder; parts: see thrum.server.http1/serve!."
  [decode {:keys [connection input key headers protocol listener] :as parts}]
  (let [socket (WebSocket. connection (ReentrantLock.) false false)
        attend (fn []
                 (engine/on-open listener socket)
                 (while (report! parts socket (next-event connection input decode))))]
    (connection/write! connection
                       (response/head 101 headers (http/websocket-headers key protocol)))
    (connection/limit-silence! connection (connection/option connection :ws-idle-timeout-ms))
    (.start (spi/clean-thread "http-kit-websocket" attend))))
