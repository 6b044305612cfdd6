(ns thrum.server.http1.requests
  "The requests of one connection, one after the other: each on a fresh thread, or all on one."
  (:require
   [thrum.server.http1.connection :as connection]
   [thrum.server.http1.head]
   [thrum.server.http1.input :as input]
   [thrum.server.http1.response :as response]
   [thrum.server.http1.tls :as tls]
   [thrum.server.http1.wire :as wire]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.util.concurrent CountDownLatch ThreadFactory)
   (thrum.server.http1.connection Connection)
   (thrum.server.http1.head Head)
   (thrum.server.http1.wire Ends)))

(set! *warn-on-reflection* true)

(def ^:private ^ThreadFactory threads
  (spi/clean-threads "http-request"))

(defn- refuse! [^Connection c status]
  (try
    (response/write-whole! c (response/refusal status) nil)
    (catch IOException _))
  (engine/refused! (.-options c) status (connection/client c))
  false)

(defn- serve-next!
  "Serves the next request; returns whether another may follow."
  [^Ends ends serve]
  (let [head (input/head! (.-input ends))]
    (cond
      (instance? Head head) (wire/serve! ends head serve)
      head (refuse! (.-connection ends) head))))

(defn- serve-on-fresh-threads!
  "The thread that has served a request starts the next one, and ends: so no thread has to be woken
  when a request has been answered."
  [^Ends ends serve]
  (let [^CountDownLatch over (.-over ends)
        turn (fn []
               (try
                 (if (serve-next! ends serve)
                   (serve-on-fresh-threads! ends serve)
                   (.countDown over))
                 (catch Throwable t
                   (.countDown over)
                   (spi/uncaught! t))))]
    (.start (.newThread threads turn))))

(defn- serve-on-one-thread!
  "Serves one request after the other on one fresh thread. What a handler leaves in ThreadLocals is
  there in the next."
  [^Ends ends serve]
  (let [turns (fn []
                (try
                  (while (engine/on-reused-thread #(serve-next! ends serve)))
                  (catch Throwable t (spi/uncaught! t))
                  (finally (.countDown ^CountDownLatch (.-over ends)))))]
    (.start (.newThread threads turns))))

(defn- server-of
  "Returns how the requests of a connection are served."
  [connection]
  (if (:reuse-threads? (connection/option connection :engine-options))
    serve-on-one-thread!
    serve-on-fresh-threads!))

(defn serve-all!
  "Serves one request after the other on this connection. Returns when the connection is to end; a
  handler may still run, whose client has been answered. upgrade: see thrum.server.http1/serve!."
  [connection serve upgrade]
  (let [over (CountDownLatch. 1)
        ssl (connection/ssl-socket connection)]
    ((server-of connection) (Ends. connection (input/input connection) over
                                   (if ssl "https" "http")
                                   (some-> ssl tls/certificate)
                                   upgrade)
                            serve)
    (.await over)))
