(ns thrum.server.engine.helidon.timer
  "The end of a timer: Helidon starts a java.util.Timer for each server, to look for idle
  connections, and never ends it. thrum.server.http1 looks itself."
  (:import
   (java.io IOException)
   (java.net InetAddress InetSocketAddress)
   (java.nio.channels SocketChannel)
   (java.time Duration)
   (java.util.concurrent CountDownLatch TimeUnit)))

(set! *warn-on-reflection* true)

(def ^Duration period
  "How often Helidon looks for idle connections: not for long."
  (Duration/ofMillis 20))

(defn timer
  "Returns a latch that opens when a server's timer has ended."
  ^CountDownLatch []
  (CountDownLatch. 1))

(def ^:private quiet
  (reify Thread$UncaughtExceptionHandler (uncaughtException [_ _ _])))

(defn end!
  "Ends the calling thread, which must be the timer's, by what it throws."
  [^CountDownLatch timer]
  (.setUncaughtExceptionHandler (Thread/currentThread) quiet)
  (.countDown timer)
  (throw (IllegalStateException. "This timer is not needed")))

(defn ended?
  "True if the timer has ended."
  [^CountDownLatch timer]
  (zero? (.getCount timer)))

(defn await-end!
  "Waits until the timer has looked at a connection, and ended; not for long."
  [^CountDownLatch timer]
  (.await timer 5 TimeUnit/SECONDS))

(defn- reachable
  "Returns an address by which the server at this one can be reached from here."
  ^InetAddress [^InetAddress address]
  (if (.isAnyLocalAddress address) (InetAddress/getLoopbackAddress) address))

(defn visit!
  "Calls f when a connection to the server has begun, where one can: f waits for what it brings
  about. Where the backlog is full it stays a beginning, but the listener has what it needs."
  [address port f]
  (try
    (with-open [channel (SocketChannel/open)]
      (.configureBlocking channel false)
      (.connect channel (InetSocketAddress. (reachable address) (int port)))
      (f))
    (catch IOException _)))
