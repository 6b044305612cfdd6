(ns thrum.server.engine.helidon.connection
  "One client's socket, as Helidon accepted it: how long it may be silent, and the ways to end it."
  (:import
   (java.io IOException InputStream OutputStream)
   (java.net InetSocketAddress Socket SocketException)
   (java.util Arrays)
   (java.util.concurrent TimeUnit)
   (javax.net.ssl SSLSocket)))

(set! *warn-on-reflection* true)

(definterface IConnection
  (^Object expect [^long until])    ; from now on the client is waited for, until then, of System/nanoTime
  (^Object calm [])                 ; it is not waited for any more
  (^Object look [^long now])        ; from time to time, on the keeper's thread
  (^Object secure [ssl])            ; it goes on over TLS
  (socket [])                       ; of TLS, where it is secure
  (^Object cut [])
  (^Object reset [])                ; cut, so that nobody takes it for an end
  (^boolean isCut []))

(def ^:private ^:const nobody-waits Long/MAX_VALUE)

(defn- close-quietly! [^Socket socket]
  (try
    (.close socket)
    (catch IOException _)))

(defn- close-with-reset! [^Socket socket]
  (try
    (.setSoLinger socket true 0)
    (catch SocketException _))
  (close-quietly! socket))

;; raw: the socket that was accepted. until: when the client must have sent or taken something.
;; remote, local: the addresses, which a closed socket does not tell.
(deftype Connection [^Socket raw remote local options buffer ^:volatile-mutable ^Socket socket
                     ^:volatile-mutable ^long until ^:volatile-mutable cut]
  IConnection
  (expect [_ t] (set! until t) nil)
  (calm [_] (set! until nobody-waits) nil)
  (look [this now]
    (when (and (not= until nobody-waits) (neg? (- until now)))
      (.cut this)))
  (secure [_ ssl] (set! socket ssl) nil)
  (socket [_] socket)
  (cut [this]
    ;; Closed itself, one of TLS would wait for who writes, to say goodbye; without a goodbye a
    ;; client may take the end for one.
    (if (identical? raw socket)
      (do (set! cut true)
          (close-quietly! raw))
      (.reset this)))
  (reset [_]
    (set! cut true)
    (close-with-reset! raw))
  (isCut [_] (boolean cut)))

(defn in-ms
  "Returns System/nanoTime in so many ms."
  ^long [ms]
  (+ (System/nanoTime) (.toNanos TimeUnit/MILLISECONDS (long ms))))

(defn connection
  "Returns the connection of an accepted socket."
  ^Connection [^Socket raw options]
  (Connection. raw
               (.getRemoteSocketAddress raw)
               (.getLocalSocketAddress raw)
               options
               (byte-array 8192)
               raw
               nobody-waits
               false))

(defn option
  "Returns an option of the connection's server."
  [^Connection c k]
  (get (.-options c) k))

(defn remote
  "Returns the client's address."
  ^InetSocketAddress [^Connection c]
  (.-remote c))

(defn local
  "Returns the address that the client has connected to."
  ^InetSocketAddress [^Connection c]
  (.-local c))

(defn ended?
  "Tells whether the socket is closed, by whomever."
  [^Connection c]
  (.isClosed ^Socket (.-raw c)))

(defn close!
  "Closes the socket, whoever reads from it or writes to it."
  [^Connection c]
  (close-quietly! (.-raw c)))

(defn- check! [^Connection c]
  (when (.isCut c) (throw (SocketException. "The connection has been cut"))))

(defmacro ^:private waiting
  "Runs the body, which blocks on the client, until then at the latest. Throws IOException where the
  connection is gone, or the client silent."
  [[c until] & body]
  `(do
     (check! ~c)
     (.expect ~c ~until)
     (try
       ~@body
       (finally (.calm ~c)))))

(defn secure!
  "Goes on over TLS: (securing raw) is the SSLSocket on top. Returns it, its handshake done."
  ^SSLSocket [^Connection c securing]
  (let [^SSLSocket ssl (securing (.-raw c))]
    (waiting [c (in-ms (option c :header-timeout-ms))]
      (.startHandshake ssl))
    (.secure c ssl)
    ssl))

(defn receive!
  "Returns bytes that the client has sent, nil at their end."
  ^bytes [^Connection c until]
  (let [^bytes buffer (.-buffer c)
        ^InputStream in (.getInputStream ^Socket (.socket c))
        n (int (waiting [c (long until)] (.read in buffer)))]
    (when-not (neg? n) (Arrays/copyOf buffer n))))

(def ^:private ^:const piece
  "How many bytes are written in one go: a slow client shows by then that it takes some."
  65536)

(defn write!
  "Writes the bytes, and blocks until the kernel has taken them."
  [^Connection c ^bytes bytes]
  (let [^OutputStream out (.getOutputStream ^Socket (.socket c))
        n (alength bytes)]
    (loop [from 0]
      (when (< from n)
        (let [size (min (long piece) (- n from))]
          (waiting [c (in-ms (option c :idle-timeout-ms))]
            (.write out bytes (int from) (int size)))
          (recur (+ from size)))))))

;; The end

(def ^:private ^:const linger-ms
  "How long a client is heard after the last byte to it, at most."
  2000)

(def ^:private ^:const most-heard
  "How many bytes of it are thrown away, at most."
  4194304)

(defn linger!
  "Says that nothing more will come, and hears a client that still sends for a moment: a close with
  bytes unread would be a reset, and take away what the client has not read yet."
  [^Connection c]
  (try
    (when-not (.isCut c)
      (let [until (in-ms linger-ms)]
        (.expect c until)
        (.shutdownOutput ^Socket (.socket c))
        (loop [left (long most-heard)]
          (when-some [heard (receive! c until)]
            (when (< (alength heard) left)
              (recur (- left (alength heard))))))))
    (catch IOException _)))
