(ns thrum.server.spi.flow
  "How an engine's thread waits for what is done on another. An interrupt ends the wait, and leaves
  the other alone."
  (:require
   [thrum.spi :as spi])
  (:import
   (java.io IOException InterruptedIOException)
   (java.util.concurrent CompletableFuture ExecutionException)))

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
      ;; The cause distinguishes it from a failure: a form that cancels expects this exception.
      (throw (.initCause (InterruptedIOException. "Interrupted while the client was waited for")
                         e)))))

(defn elsewhere
  "Calls f on a virtual thread of its own; returns a CompletableFuture of what it returns or
  throws."
  ^CompletableFuture [f]
  (let [future (CompletableFuture.)]
    (.start (spi/clean-thread "http-elsewhere"
                              (fn []
                                (try
                                  (.complete future (f))
                                  (catch Throwable t (.completeExceptionally future t))))))
    future))
