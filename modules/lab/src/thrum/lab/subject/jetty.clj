(ns thrum.lab.subject.jetty
  "Jetty's core, without Thrum: a handler as one writes it in Java, on the threads that are asked
  for."
  (:require
   [thrum.lab.subject.work :as work])
  (:import
   (java.nio ByteBuffer)
   (java.util.concurrent Executors)
   (org.eclipse.jetty.http HttpHeader)
   (org.eclipse.jetty.server Handler$Abstract Request Response Server ServerConnector)
   (org.eclipse.jetty.util Callback)
   (org.eclipse.jetty.util.thread QueuedThreadPool)))

(set! *warn-on-reflection* true)

(defn- handler []
  (proxy [Handler$Abstract] []
    (handle [^Request request ^Response response ^Callback callback]
      (work/do-it! (.getPath (.getHttpURI request)))
      (.put (.getHeaders response) HttpHeader/CONTENT_TYPE ^String work/content-type)
      (.put (.getHeaders response) HttpHeader/CONTENT_LENGTH (alength ^bytes work/greeting-bytes))
      (.write response true (ByteBuffer/wrap work/greeting-bytes) callback)
      true)))

(defn- threads ^QueuedThreadPool [pool]
  (if pool
    (doto (QueuedThreadPool. (int (+ 8 pool)))
      (.setReservedThreads 0))
    (doto (QueuedThreadPool.)
      (.setVirtualThreadsExecutor (Executors/newVirtualThreadPerTaskExecutor)))))

(defn- leave-for-handlers!
  "Makes the pool as large as handlers' threads and those that Jetty needs for itself."
  [^QueuedThreadPool threads ^ServerConnector connector pool]
  (.setMaxThreads
    threads
    (+ (long pool) (.getAcceptors connector) (.getSelectorCount (.getSelectorManager connector)))))

(defn start!
  "Starts the server on a free port and returns that. Handlers run on a pool of platform threads,
  or, :pool nil, on virtual threads."
  [{:keys [pool backlog]}]
  (let [threads (threads pool)
        server (Server. threads)
        connector (ServerConnector. server)]
    (when pool (leave-for-handlers! threads connector pool))
    (.addConnector server
                   (doto connector (.setHost "127.0.0.1") (.setAcceptQueueSize (int backlog))))
    (doto server (.setHandler ^Handler$Abstract (handler)) .start)
    (.getLocalPort connector)))
