(ns thrum.server.engine.http-kit.keeper
  "One thread beside http-kit's: it wakes whoever waits until a socket takes or has bytes, and looks
  regularly for what is silent."
  (:import
   (java.io IOException InterruptedIOException)
   (java.nio.channels ClosedSelectorException SelectionKey Selector SocketChannel)
   (java.util.concurrent TimeUnit)
   (java.util.concurrent.locks LockSupport)))

(set! *warn-on-reflection* true)

(deftype Keeper [^Selector selector ^Thread thread])

(defn- wake! [^SelectionKey key]
  (LockSupport/unpark (.attachment key)))

(defn- wake-ready! [^Selector selector]
  (let [selected (.selectedKeys selector)]
    (doseq [^SelectionKey key selected]
      (when (.isValid key) (.interestOps key 0))
      (wake! key))
    (.clear selected)))

(defn- keep! [^Selector selector tick-ms look!]
  (try
    (while true
      (.select selector (long tick-ms))
      (try
        (wake-ready! selector)
        (catch java.nio.channels.CancelledKeyException _))
      (look!))
    (catch ClosedSelectorException _)))

(defn start
  "Returns a keeper; (look!) is called on its thread at least every tick-ms."
  ^Keeper [tick-ms look!]
  (let [selector (Selector/open)
        thread (-> (Thread/ofPlatform) (.daemon true) (.name "thrum-http-kit")
                   (.start #(keep! selector tick-ms look!)))]
    (Keeper. selector thread)))

(defn stop!
  "Ends the keeper's thread, and wakes all who wait."
  [^Keeper keeper]
  (let [^Selector selector (.-selector keeper)]
    (run! wake! (.keys selector))
    (.close selector)
    (.join ^Thread (.-thread keeper))))

(def ^:private slice-ns
  "How long anybody waits before looking again: a socket that was closed wakes nobody."
  (.toNanos TimeUnit/MILLISECONDS 200))

(defn await!
  "Parks until the socket is ready for the operation, or a moment has passed. Throws IOException
  when the thread was interrupted, or when until, of System/nanoTime, has passed."
  [^Keeper keeper ^SocketChannel socket op until]
  (let [left (- (long until) (System/nanoTime))
        ^Selector selector (.-selector keeper)]
    (when-not (pos? left) (throw (IOException. "The client neither takes nor sends anything")))
    (try
      (.register socket selector (int op) (Thread/currentThread))
      (catch ClosedSelectorException e (throw (IOException. "The server has stopped" e))))
    (.wakeup selector)
    (LockSupport/parkNanos keeper (min left (long slice-ns)))
    (when (.isInterrupted (Thread/currentThread)) (throw (InterruptedIOException. "Interrupted")))))

(defn nudge!
  "Wakes whoever waits for this socket."
  [^Keeper keeper ^SocketChannel socket]
  (some-> (.keyFor socket (.-selector keeper)) wake!))
