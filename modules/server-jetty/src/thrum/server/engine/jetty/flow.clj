(ns thrum.server.engine.jetty.flow
  "Blocking on what Jetty does asynchronously: writes, reads, and what must not be touched by a thread that may be interrupted."
  (:import
   (java.io IOException InputStream InterruptedIOException)
   (java.util.concurrent CompletableFuture ExecutionException)
   (org.eclipse.jetty.io Content$Source)
   (org.eclipse.jetty.util Callback Callback$Completable)
   (org.eclipse.jetty.util.thread Invocable$InvocationType)))

(set! *warn-on-reflection* true)

(defn io-exception
  "Returns the throwable as an IOException, itself if it is one."
  ^IOException [^Throwable t]
  (if (instance? IOException t) t (IOException. (str "The connection failed: " (.getMessage t)) t)))

(defn await!
  "Returns the future's value. Throws IOException: its failure, or InterruptedIOException."
  [^CompletableFuture future]
  (try
    (.get future)
    (catch ExecutionException e (throw (io-exception (.getCause e))))
    (catch InterruptedException _ (throw (InterruptedIOException. "Interrupted while the client was waited for")))))

(defn completable
  "Returns a callback of Jetty's that is a future too. Completing it wakes a thread, and never blocks."
  ^Callback$Completable []
  (Callback$Completable. Invocable$InvocationType/NON_BLOCKING))

(defn elsewhere
  "Calls f on a virtual thread of its own; returns a CompletableFuture of what it returns or throws."
  ^CompletableFuture [f]
  (let [future (CompletableFuture.)]
    (Thread/startVirtualThread
      (fn []
        (try
          (.complete future (f))
          (catch Throwable t (.completeExceptionally future t)))))
    future))

(defn succeed!
  "Succeeds Jetty's callback of a request. elsewhere?: on another thread."
  [^Callback callback elsewhere?]
  (if elsewhere?
    (elsewhere #(.succeeded callback))
    (.succeeded callback)))

;; Bodies of requests

(defn- shielded
  "Returns a stream that reads on other threads: where many requests share a connection, an interrupt during a read, which may have
  to write a window update, would close it for all."
  ^InputStream [^InputStream in]
  (let [take! (fn [^bytes buffer ^long offset ^long n]
                (await! (elsewhere #(.read in buffer offset n))))]
    (proxy [InputStream] []
      (read
        ([] (let [one (byte-array 1)]
              (if (neg? (long (take! one 0 1))) -1 (bit-and 0xff (aget one 0)))))
        ([buffer] (take! buffer 0 (alength ^bytes buffer)))
        ([buffer offset n] (take! buffer offset n)))
      (available [] (.available in))
      (close [] (await! (elsewhere #(.close in)))))))

(defn input
  "Returns the content as a stream whose reads block, and throw IOException where the client cuts it off. shared?: whether other
  requests are on the same connection."
  ^InputStream [^Content$Source content shared?]
  (cond-> (org.eclipse.jetty.io.Content$Source/asInputStream content) shared? (shielded)))
