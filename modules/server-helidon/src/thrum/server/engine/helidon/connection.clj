(ns thrum.server.engine.helidon.connection
  "One client's socket, as Helidon accepted it: how long it may be silent, and the ways to end it."
  (:require
   [thrum.jdk :as jdk])
  (:import
   (io.helidon.common.buffers BufferData)
   (io.helidon.common.socket HelidonSocket)
   (java.io IOException UncheckedIOException)
   (java.net Socket SocketException)
   (java.util.concurrent TimeUnit)
   (javax.net.ssl SSLSocket)))

(set! *warn-on-reflection* true)

(definterface IConnection
  (^Object expect [^long until])    ; from now on the client is waited for, until then, of System/nanoTime
  (^Object calm [])                 ; it is not waited for any more
  (^Object look [^long now])        ; from time to time, on the keeper's thread
  (^Object cut [])
  (^boolean isCut []))

(def ^:private ^:const nobody-waits Long/MAX_VALUE)

(defn- close-quietly! [^Socket socket]
  (try
    (.close socket)
    (catch IOException _)))

(defn close!
  "Closes the socket, whoever reads from it or writes to it. One of TLS would wait for who writes, to say goodbye: it is reset."
  [^Socket socket]
  (if (instance? SSLSocket socket)
    (.start (jdk/clean-thread "helidon-close"
              (fn []
                (try
                  (.setSoLinger socket true 0)
                  (catch SocketException _))
                (close-quietly! socket))))
    (close-quietly! socket)))

;; raw: the socket that Helidon's is made of. until: when the client must have sent or taken something.
(deftype Connection [^Socket raw ^HelidonSocket socket options ^:volatile-mutable ^long until ^:volatile-mutable cut]
  IConnection
  (expect [_ t] (set! until t) nil)
  (calm [_] (set! until nobody-waits) nil)
  (look [this now]
    (when (and (not= until nobody-waits) (neg? (- until now)))
      (.cut this)))
  (cut [_]
    (when-not cut
      (set! cut true)
      (close! raw)))
  (isCut [_] (boolean cut)))

(defn connection
  "Returns the connection of a socket of Java's, which is also one of Helidon's."
  ^Connection [raw socket options]
  (Connection. raw socket options nobody-waits false))

(defn option
  "Returns an option of the connection's server."
  [^Connection c k]
  (get (.-options c) k))

(defn in-ms
  "Returns System/nanoTime in so many ms."
  ^long [ms]
  (+ (System/nanoTime) (.toNanos TimeUnit/MILLISECONDS (long ms))))

(defn io-exception
  "Returns what Helidon threw as an IOException."
  ^IOException [^Throwable t]
  (let [cause (.getCause t)]
    (if (instance? IOException cause) cause (IOException. (str "The connection failed: " (.getMessage t)) t))))

(defn- check! [^Connection c]
  (when (.isCut c) (throw (SocketException. "The connection has been cut"))))

(defn receive!
  "Returns bytes that the client has sent, nil at their end. Blocks; throws IOException when the connection is gone, or the client
  has sent nothing until then, of System/nanoTime."
  ^bytes [^Connection c until]
  (check! c)
  (.expect c (long until))
  (try
    (.get ^HelidonSocket (.-socket c))
    (catch UncheckedIOException e (throw (io-exception e)))
    (finally (.calm c))))

(def ^:private ^:const piece
  "How many bytes are written in one go: a slow client shows by then that it takes some."
  65536)

(defn- write-piece! [^Connection c ^BufferData data]
  (check! c)
  (.expect c (in-ms (option c :idle-timeout-ms)))
  (try
    (.write ^HelidonSocket (.-socket c) data)
    (finally (.calm c))))

(defn write!
  "Writes the buffer, and blocks until the kernel has taken it; throws as Helidon does, UncheckedIOException, also when the client
  takes nothing for :idle-timeout-ms."
  [^Connection c ^BufferData data]
  (try
    (if (<= (.available data) piece)
      (write-piece! c data)
      (let [some-of-it (byte-array piece)]
        (while (pos? (.available data))
          (write-piece! c (BufferData/create some-of-it 0 (.read data some-of-it))))))
    (catch IOException e (throw (UncheckedIOException. e)))))

;; The end

(def ^:private ^:const linger-ms
  "How long a client is heard after the last byte to it, at most."
  2000)

(def ^:private ^:const most-heard
  "How many bytes of it are thrown away, at most."
  4194304)

(defn linger!
  "Says that nothing more will come, and hears a client that still sends for a moment: a close with bytes unread would be a reset,
  and take away what the client has not read yet. Helidon closes the socket after that."
  [^Connection c]
  (try
    (when-not (.isCut c)
      (let [until (in-ms linger-ms)]
        (.expect c until)
        (.shutdownOutput ^Socket (.-raw c))
        (loop [left most-heard]
          (when-some [heard (receive! c until)]
            (when (< (alength heard) left)
              (recur (- left (alength heard))))))))
    (catch IOException _)))
