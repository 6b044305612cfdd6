(ns thrum.server.engine.jetty.flow
  "Blocking on what Jetty does asynchronously. Its channels do not block, so that an interrupt of a thread that writes or reads ends
  its wait and leaves the connection, which other requests may be on, alone."
  (:import
   (java.io IOException InterruptedIOException)
   (java.util.concurrent CompletableFuture ExecutionException)
   (org.eclipse.jetty.util Callback$Completable)
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
    (catch InterruptedException e
      ;; With its cause it is told from a failure: a form that cancels takes it for what it asked for.
      (throw (.initCause (InterruptedIOException. "Interrupted while the client was waited for") e)))))

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
