(ns thrum.server.engine.jetty.watch
  "Notices that a client goes while its request is handled.

  On HTTP/1.1 the connection is read while no other thread reads it. An end of stream means that the
  client has gone; bytes belong to its next request and are given back. On HTTP/2 Jetty reports the
  stream's reset."
  (:require
   [thrum.server.spi.lock :refer [holding]]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.util.concurrent CancellationException)
   (java.util.concurrent.atomic AtomicBoolean)
   (java.util.concurrent.locks ReentrantLock)
   (java.util.function Consumer)
   (org.eclipse.jetty.io AbstractEndPoint)
   (org.eclipse.jetty.server Request)
   (org.eclipse.jetty.server.internal HttpConnection)
   (org.eclipse.jetty.util BufferUtil Callback)
   (org.eclipse.jetty.util.thread Invocable$InvocationType)))

(set! *warn-on-reflection* true)

(defprotocol Watch
  "Calls a function when the client goes."
  (arm! [watch] "Begins. Returns whether the watch has begun.")
  (fire! [watch] "There are bytes to read.")
  (lose! [watch] "There will be no more bytes to read.")
  (end! [watch] "Ends the watch: the function is not called any more, and writing may begin."))

(defn- notify! [^Runnable gone]
  (.start (spi/clean-thread "jetty-gone" gone)))

;; HTTP/1.1

(declare callback)

(def ^:private ^:const read-ahead
  "How many bytes of a next request are read at most before it is its turn."
  1024)

(defn- read-ahead!
  "Reads what there is and gives it back to the connection. Returns how many bytes it was, -1 for
  the end."
  [^HttpConnection connection ^AbstractEndPoint end-point]
  (try
    (let [buffer (BufferUtil/allocate read-ahead)
          n (.fill end-point buffer)]
      (when (pos? n) (.onUpgradeTo connection buffer))
      n)
    (catch IOException _ -1)))

;; One lock for the end of the watch and for a read: when end returns no thread reads any more.
(deftype Http1Watch [^HttpConnection connection ^AbstractEndPoint end-point ^Runnable gone
                     lock ^:unsynchronized-mutable armed]
  Watch
  (arm! [this]
    (holding lock
      (set! armed true)
      (set! armed (.tryFillInterested end-point (callback this)))
      armed))
  (fire! [this]
    (holding lock
      (when armed
        (set! armed false)
        (let [n (long (read-ahead! connection end-point))]
          (cond (neg? n) (notify! gone)
                ;; TLS may have had records without content.
                (zero? n) (arm! this))))))
  (lose! [this] (holding lock (when armed (set! armed false) (notify! gone))))
  (end! [this]
    (holding lock
      (when armed
        (set! armed false)
        (.onFail (.getFillInterest end-point) (CancellationException. "The watch is over"))))))

(defn- callback ^Callback [watch]
  (reify Callback
    (succeeded [_] (fire! watch))
    (failed [_ _] (lose! watch))
    (getInvocationType [_] Invocable$InvocationType/NON_BLOCKING)))

(defn- received?
  "True if the client has sent all of the request, and all of it has been read."
  [^HttpConnection connection]
  (let [parser (.getParser connection)]
    (or (.isComplete parser) (not (.hasContent parser)))))

(defn- room?
  "True if what is read ahead finds room behind what is known of the next requests already."
  [^HttpConnection connection]
  (or (.isRequestBufferEmpty connection)
      (let [known (.onUpgradeFrom connection)
            n (.remaining known)]
        (.onUpgradeTo connection known)
        (<= (+ n read-ahead) (.getInputBufferSize connection)))))

(defn- watch-connection [^HttpConnection connection gone]
  (when (and (received? connection) (room? connection))
    (let [watch (Http1Watch. connection (.getEndPoint connection) gone (ReentrantLock.)
                             false)]
      (when (arm! watch) watch))))

;; HTTP/2

(deftype Http2Watch [^Runnable gone ^AtomicBoolean armed]
  Watch
  (arm! [_] true)
  (fire! [_] nil)
  (lose! [_] (when (.getAndSet armed false) (notify! gone)))
  (end! [_] (.set armed false)))

(defn- watch-stream [^Request request gone]
  (let [watch (Http2Watch. gone (AtomicBoolean. true))]
    (.addFailureListener request (reify Consumer (accept [_ _] (lose! watch))))
    watch))

;; Either

(defn- begun
  "Returns a watch that calls gone when the client goes, nil where that cannot be noticed now."
  [^Request request gone]
  (let [connection (.getConnection (.getConnectionMetaData request))]
    (if (instance? HttpConnection connection)
      (watch-connection connection gone)
      (watch-stream request gone))))

(defprotocol Lookout
  "Watches the client of one request, from the end of its body on."
  (begin! [lookout f]
    "Calls f, on a virtual thread, when the client goes, as far as that can be noticed: not before
    the request's body has been read.")
  (body-read! [lookout] "The request's body has been read to its end.")
  (cease! [lookout] "Watches no more, nor later: writing may begin."))

;; gone: what begin! got, until cease!. watch: what watches, or nil.
(deftype RequestLookout [request lock ^:unsynchronized-mutable gone ^:unsynchronized-mutable watch]
  Lookout
  (begin! [this f]
    (holding lock
      (set! gone f)
      (set! watch (begun request f))))
  (body-read! [this]
    (holding lock
      (when (and gone (nil? watch)) (set! watch (begun request gone)))))
  (cease! [this]
    (holding lock
      (set! gone nil)
      (some-> watch end!))))

(defn lookout
  "Returns the lookout of a request, which does not watch yet."
  [request]
  (RequestLookout. request (ReentrantLock.) nil nil))
