(ns thrum.server.engine.tomcat.messages
  "The messages of a websocket, by a session of Tomcat's: whole ones, and its pings.

  Tomcat answers each ping by itself and does not report it. A transformation, as Tomcat has for
  extensions, sees the pings and drops Tomcat's own pongs."
  (:require
   [thrum.server.spi :as engine]
   [thrum.server.spi.flow :as flow]
   [thrum.spi :as spi])
  (:import
   (jakarta.websocket CloseReason CloseReason$CloseCode MessageHandler$Partial MessageHandler$Whole PongMessage)
   (java.io ByteArrayOutputStream IOException InterruptedIOException)
   (java.nio ByteBuffer)
   (java.nio.charset StandardCharsets)
   (java.util.concurrent.atomic AtomicBoolean AtomicReference)
   (org.apache.tomcat.websocket Constants MessagePart Transformation TransformationResult WsSession)))

(set! *warn-on-reflection* true)

;; Sending

(defn- code ^CloseReason$CloseCode [n]
  (reify CloseReason$CloseCode (getCode [_] (int n))))

(defn- reason ^CloseReason [n text]
  (CloseReason. (code n) text))

(defn- interrupted
  "Returns what a send throws that a cancel has interrupted. Tomcat says that it took too long, and
  closes the websocket."
  [cause]
  (.initCause (InterruptedIOException. "Interrupted while the client was waited for") cause))

(defmacro ^:private flushed
  "Sends, and blocks until that is flushed; throws IOException when the websocket is closed. over:
  whether the websocket has ended, which Tomcat's session reports later."
  [over & forms]
  `(let [sent# (spi/interrupts-sent)]
     (try
       (when (.get ~over) (throw (IllegalStateException.)))
       ~@forms
       (catch IllegalStateException e#
         (throw (IOException. "The websocket is closed" e#)))
       ;; Tomcat wakes the sender before it says what became of the message, where two threads have
       ;; the write fail at once.
       (catch NullPointerException e#
         (throw (IOException. "The websocket is closed" e#)))
       (catch IOException e#
         (throw (if (= sent# (spi/interrupts-sent)) e# (interrupted e#)))))))

(defn- close-session!
  "Closes the session; its closing frame waits for a message that is being sent, at most most-ms:
  Tomcat gives it 50 ms. Where it cannot be sent the endpoint alone gets to know, which sets
  failure: that is thrown."
  [^WsSession session reason ^AtomicReference failure most-ms]
  (.put (.getUserProperties session)
        Constants/ABNORMAL_SESSION_CLOSE_SEND_TIMEOUT_PROPERTY
        (long most-ms))
  (.close session reason)
  (some-> (.get failure) flow/io-exception throw))

(deftype TomcatSocket [^WsSession session ^AtomicBoolean over ^AtomicReference closing failure
                       most-close-ms abort!]
  engine/Socket
  (open? [_] (and (not (.get over)) (.isOpen session)))
  (send-text! [_ message] (flushed over (.sendText (.getBasicRemote session) (str message))))
  (send-binary! [_ message] (flushed over (.sendBinary (.getBasicRemote session) message)))
  (send-ping! [_ data] (flushed over (.sendPing (.getBasicRemote session) data)))
  (send-pong! [_ data] (flushed over (.sendPong (.getBasicRemote session) data)))
  (close! [_ code text]
    (let [reason (reason code text)]
      (.compareAndSet closing nil reason)
      (flushed over (close-session! session reason failure most-close-ms))))
  (disconnect! [_] (abort!)))

;; Receiving

(defn- too-big! [^WsSession session]
  (let [reason (reason 1009 "Too big")]
    (.doClose session reason reason true)))

(defn- joined
  "Returns a handler of a message's pieces that calls (f message) with the whole; one of more than
  most bytes closes the session with 1009. The map's functions hold the pieces of a message."
  ^MessageHandler$Partial [session most {:keys [hold! size whole clear!]} f]
  (let [held (volatile! 0)]
    (reify MessageHandler$Partial
      (onMessage [_ piece last?]
        (vswap! held + (long (size piece)))
        (if (< (long most) (long @held))
          (too-big! session)
          (do (hold! piece)
              (when last?
                (let [message (whole)]
                  (clear!)
                  (vreset! held 0)
                  (f message)))))))))

(defn- texts []
  (let [all (volatile! (StringBuilder.))]
    {:hold! #(.append ^StringBuilder @all ^String %)
     :size #(alength (.getBytes ^String % StandardCharsets/UTF_8))
     :whole #(.toString ^StringBuilder @all)
     ;; A new one: one that was used would keep room for the longest message.
     :clear! #(vreset! all (StringBuilder.))}))

(defn- bytes-of ^bytes [^ByteBuffer buffer]
  (let [all (byte-array (.remaining buffer))]
    (.get (.duplicate buffer) all)
    all))

(defn- binaries []
  (let [all (volatile! (ByteArrayOutputStream.))]
    {:hold! #(.writeBytes ^ByteArrayOutputStream @all (bytes-of %))
     :size #(.remaining ^ByteBuffer %)
     :whole #(ByteBuffer/wrap (.toByteArray ^ByteArrayOutputStream @all))
     :clear! #(vreset! all (ByteArrayOutputStream.))}))

(defn- pong? [parts]
  (= Constants/OPCODE_PONG (.getOpCode ^MessagePart (first parts))))

(defn noticing-pings
  "Returns a transformation that calls (f data) for each ping among the frames, and drops the pong
  that Tomcat then sends for it on the same thread."
  ^Transformation [f]
  (let [next (volatile! nil), reader (volatile! nil)]
    (reify Transformation
      (setNext [_ t] (vreset! next t))
      (validateRsvBits [_ n] (.validateRsvBits ^Transformation @next n))
      (getExtensionResponse [_] nil)
      (getMoreData [_ opcode fin rsv dest]
        (let [result (.getMoreData ^Transformation @next opcode fin rsv dest)]
          (when (and (= Constants/OPCODE_PING opcode) (= TransformationResult/END_OF_FRAME result))
            (vreset! reader (Thread/currentThread))
            (f (ByteBuffer/wrap (bytes-of (.flip (.duplicate ^ByteBuffer dest))))))
          result))
      (validateRsv [_ rsv opcode] (.validateRsv ^Transformation @next rsv opcode))
      (sendMessagePart [_ parts]
        (if (and (identical? (Thread/currentThread) @reader) (pong? parts))
          []
          (.sendMessagePart ^Transformation @next parts)))
      (close [_] (.close ^Transformation @next)))))

(defn listen!
  "Has the listener called for the session's messages, of at most so many bytes."
  [^WsSession session socket listener most]
  (let [^MessageHandler$Partial text
        (joined session most (texts) #(engine/on-text listener socket %))
        ^MessageHandler$Partial binary
        (joined session most (binaries) #(engine/on-binary listener socket %))
        ^MessageHandler$Whole pong (reify
                                     MessageHandler$Whole
                                     (onMessage [_ message]
                                       (engine/on-pong listener
                                         socket
                                         (ByteBuffer/wrap (bytes-of (.getApplicationData
                                                                      ^PongMessage message))))))]
    (doto session
      (.addMessageHandler String text)
      (.addMessageHandler ByteBuffer binary)
      (.addMessageHandler PongMessage pong))))

(defn socket
  "Returns the session as a socket. over: true once the websocket has ended; closing: gets the
  CloseReason that the server's side closes with; failure: gets what the session fails with then;
  most-close-ms: how long its closing frame may wait; abort!: cuts the connection."
  [session over closing failure most-close-ms abort!]
  (TomcatSocket. session over closing failure most-close-ms abort!))
