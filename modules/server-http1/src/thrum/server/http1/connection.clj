(ns thrum.server.http1.connection
  "One client's socket: how long the client may keep us waiting, and the ways to end it."
  (:require
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.net InetSocketAddress Socket SocketException)
   (java.nio ByteBuffer)
   (java.util.concurrent.atomic AtomicBoolean AtomicLong AtomicReference)
   (javax.net.ssl SSLSocket)))

(set! *warn-on-reflection* true)

(def ^:private ^:const never Long/MAX_VALUE)

;; raw: the socket that was accepted. socket: raw, or one of TLS on top of it. remote, local: the
;; addresses, which a closed socket has no more. client: the first as text. idle-ms, head-ms: how
;; long a silence and a head may last. most-head: how many bytes a head may have. receive-by,
;; send-by: when the client must have sent or taken something, of System/nanoTime. unending: whether
;; what is sent goes on to the end of the connection. again: the thread that looks again, or nil.
(deftype Connection [^Socket raw ^Socket socket remote client local options
                     ^long idle-ms ^long head-ms ^long most-head
                     ^AtomicLong receive-by ^AtomicLong send-by ^AtomicBoolean cut
                     ^AtomicBoolean unending ^AtomicReference again])

(defn option
  "Returns an option of the connection's server."
  [^Connection c k]
  (get (.-options c) k))

(defn- client-of
  "Returns the text of the client's address, nil where the socket is closed."
  [^Socket raw]
  (some-> (.getRemoteSocketAddress raw) engine/address))

(defn connection
  "Returns the connection of an accepted socket; socket: raw itself, or an SSLSocket on top of it,
  whose handshake has not begun."
  ^Connection [^Socket raw socket
               {:keys [idle-timeout-ms header-timeout-ms max-header-bytes] :as options}]
  (Connection. raw socket (.getRemoteSocketAddress raw) (client-of raw)
               (.getLocalSocketAddress raw) options
               idle-timeout-ms header-timeout-ms max-header-bytes
               (AtomicLong. never) (AtomicLong. never) (AtomicBoolean.) (AtomicBoolean.)
               (AtomicReference.)))

(defn remote
  "Returns the client's address."
  ^InetSocketAddress [^Connection c]
  (.-remote c))

(defn client
  "Returns the client's address as text."
  [^Connection c]
  (.-client c))

(defn local
  "Returns the address that the client has connected to."
  ^InetSocketAddress [^Connection c]
  (.-local c))

(defn ssl-socket
  "Returns the socket of TLS, nil where there is none."
  ^SSLSocket [^Connection c]
  (when (instance? SSLSocket (.-socket c)) (.-socket c)))

;; The end

(defn cut?
  "True if this side has cut the connection."
  [^Connection c]
  (.get ^AtomicBoolean (.-cut c)))

(defn closed?
  "True if the socket is closed, by either side."
  [^Connection c]
  (.isClosed ^Socket (.-raw c)))

(defn close!
  "Closes the socket while others may read from it or write to it."
  [^Connection c]
  (try
    (.close ^Socket (.-raw c))
    (catch IOException _)))

(defn- reset-on-close!
  "Has a close of the socket be a reset, or no more."
  [^Connection c reset?]
  (try
    (.setSoLinger ^Socket (.-raw c) reset? 0)
    ;; It is closed already.
    (catch SocketException _)))

(defn reset!!
  "Cuts the connection so that its client cannot take the cut for an end."
  [^Connection c]
  (.set ^AtomicBoolean (.-cut c) true)
  (reset-on-close! c true)
  (close! c))

(defn- finish!
  "Sends the end of what is sent. A close sends it later where a thread reads: when that thread has
  had a carrier."
  [^Connection c]
  (try
    (.shutdownOutput ^Socket (.-raw c))
    (catch IOException _)))

(defn unending!
  "What is sent goes on to the end of the connection: from now on, or no more. Meanwhile each close
  is a reset, also that by which the JDK answers an interrupt."
  [^Connection c unending?]
  (.set ^AtomicBoolean (.-unending c) unending?)
  (reset-on-close! c unending?))

(defn cut!
  "Cuts the connection, with a reset where its client could take the cut for an end. Only there: a
  reset takes away what was sent and has not arrived."
  [^Connection c]
  (if (.get ^AtomicBoolean (.-unending c))
    (reset!! c)
    (do (.set ^AtomicBoolean (.-cut c) true)
        (finish! c)
        (close! c))))

;; Waiting for the client

(defn expect!
  "The client must have sent something by then, of System/nanoTime, or look! cuts the connection."
  [^Connection c ^long until]
  (.set ^AtomicLong (.-receive-by c) until))

(defn- late? [^AtomicLong until ^long now]
  (let [until (.get until)]
    (and (not= never until) (neg? (unchecked-subtract until now)))))

(defn- unread?
  "True if the client has sent what was not received: it may be the server that is late."
  [^Connection c]
  (try
    (pos? (.available (.getInputStream ^Socket (.-raw c))))
    (catch IOException _ false)))

(def ^:private ^:const again-ms
  "How long a thread has to receive what is there, once there are carriers."
  1000)

(defn- look-again!
  "Cuts the connection a moment later, unless a thread has received the client's bytes by then. On
  a virtual thread: a moment in which there is no carrier does not count."
  [^Connection c]
  (let [^AtomicReference again (.-again c), ^Thread looking (.get again)]
    (when-not (and looking (.isAlive looking))
      (let [^AtomicLong by (.-receive-by c), until (.get by)
            looking (spi/clean-thread "http1-look"
                                      (fn []
                                        (Thread/sleep again-ms)
                                        (when (= until (.get by)) (cut! c))))]
        (.set again looking)
        (.start looking)))))

(defn look!
  "Cuts the connection where its client has kept us waiting for too long; not where a thread has had
  no carrier to receive on. Whether the client would take more cannot be asked."
  [^Connection c now]
  (cond
    (late? (.-send-by c) now) (cut! c)
    (late? (.-receive-by c) now) (if (unread? c) (look-again! c) (cut! c))))

(defn- waiting
  "Returns what (f) does, which blocks on the client; by: where to say until when, at the latest."
  [c ^AtomicLong by ^long until f]
  (when (cut? c) (throw (SocketException. "The connection has been cut")))
  ;; The watchdog need not see it at once.
  (.lazySet by until)
  (try
    (f)
    ;; Another thread may wait by now: a handler may leave one behind that reads the body.
    (finally (.compareAndSet by until never))))

(defn receiving
  "Returns what (f) does, which waits for what the client sends, until then at the latest, of
  System/nanoTime. Throws IOException where the connection is cut."
  [^Connection c until f]
  (waiting c (.-receive-by c) until f))

(defn receive-now!
  "Adds bytes that the client has sent to those in the buffer, whose room it needs. Blocks; returns
  whether there were any: false at their end."
  [^Connection c ^ByteBuffer buffer]
  (let [in (.getInputStream ^Socket (.-socket c))
        end (.limit buffer)
        n (.read in (.array buffer) end (- (.capacity buffer) end))]
    (when (pos? n) (.limit buffer (+ end n)))
    (pos? n)))

(defn receive!
  "As receive-now!, until then at the latest, or nil: until when expect! has said."
  [c buffer until]
  (if until
    (receiving c until #(receive-now! c buffer))
    (receive-now! c buffer)))

(defn limit-silence!
  "Has receive-now! throw SocketTimeoutException, and leave the connection open, where the client
  sends nothing for so many ms."
  [^Connection c ms]
  (.setSoTimeout ^Socket (.-raw c) (int (min (long ms) Integer/MAX_VALUE))))

(def ^:private ^:const piece
  "How many bytes are written in one go: a slow client shows by then that it takes some."
  65536)

(defn write!
  "Writes the bytes, and blocks until the kernel has taken them."
  [^Connection c ^bytes bytes]
  (let [out (.getOutputStream ^Socket (.-socket c))
        n (alength bytes)]
    (loop [from 0]
      (when (< from n)
        (let [size (min (long piece) (- n from))]
          (waiting c (.-send-by c) (spi/deadline-in (.-idle-ms c))
                   #(.write out bytes (int from) (int size)))
          (recur (+ from size)))))))

(defn shake-hands!
  "Does the handshake of TLS, where there is TLS. Throws IOException where it fails."
  [^Connection c]
  (when-some [ssl (ssl-socket c)]
    (receiving c (spi/deadline-in (.-head-ms c)) #(.startHandshake ssl))
    ;; For the next handshake: on a connection of TLS 1.2, which alone can have one, it fails.
    (.setEnabledProtocols ssl (into-array String ["TLSv1.3"]))))

;; The last bytes

(def ^:private ^:const linger-ms
  "How long the client's bytes are read after the last byte to it, at most."
  2000)

(def ^:private ^:const most-discarded
  "How many bytes of it are discarded, at most."
  4194304)

(defn linger!
  "Says that nothing more will come, and discards what the client still sends, for a moment: a close
  with bytes unread would be a reset, and take away what the client has not read yet."
  [^Connection c]
  (try
    (when-not (cut? c)
      (let [until (spi/deadline-in linger-ms)
            buffer (ByteBuffer/allocate 8192)]
        (expect! c until)
        (.shutdownOutput ^Socket (.-socket c))
        (loop [left (long most-discarded)]
          (when (and (pos? left) (receive! c (.limit buffer 0) until))
            (recur (- left (.limit buffer)))))))
    (catch IOException _)))
