(ns thrum.server.engine.jetty.events
  "How many resets, pings, settings and the like a client may send per second on a connection of
  HTTP/2; beyond them Jetty closes it.

  Jetty counts the streams that the server resets too. Those that we reset are not the client's
  doing, and the connection's other streams must not suffer from them: they are left out, and so is
  what of a body is on its way to such a stream. And where
  Jetty resets one that breaks the protocol, as by DATA that is not as long as its Content-Length
  says, it lets a thread that reads the body wait for ever: that is how such a thread is woken."
  (:require
   [thrum.spi :as spi])
  (:import
   (java.lang.ref WeakReference)
   (java.time Duration)
   (java.util Collections Map Set WeakHashMap)
   (java.util.concurrent ConcurrentHashMap)
   (org.eclipse.jetty.http2 ErrorCode HTTP2Channel$Server HTTP2Connection HTTP2Stream RateControl RateControl$Factory WindowRateControl)
   (org.eclipse.jetty.http2.frames DataFrame ResetFrame)
   (org.eclipse.jetty.io EndPoint EofException)
   (org.eclipse.jetty.server Request)
   (org.eclipse.jetty.util Callback)))

(set! *warn-on-reflection* true)

(defn- stream
  "Returns Jetty's stream of this number, nil where there is none any more."
  ^HTTP2Stream [^EndPoint end-point n]
  (let [connection (some-> end-point .getConnection)]
    (when (instance? HTTP2Connection connection)
      (.getStream (.getSession ^HTTP2Connection connection) (int n)))))

(defn- channel
  "Returns Jetty's channel of the stream, nil where there is none any more."
  ^HTTP2Channel$Server [end-point ^ResetFrame reset]
  (some-> (stream end-point (.getStreamId reset)) .getAttachment))

(def ^:private flaws
  "The codes with which Jetty resets a stream that breaks the protocol."
  (into #{}
        (map #(.code ^ErrorCode %))
        [ErrorCode/PROTOCOL_ERROR ErrorCode/FLOW_CONTROL_ERROR ErrorCode/STREAM_CLOSED_ERROR]))

(defn- fail-broken!
  "Fails the exchange of a stream that breaks the protocol, as a reset of the client's does."
  [end-point ^ResetFrame reset]
  (when (contains? flaws (.getError reset))
    (when-some [channel (channel end-point reset)]
      (.start (spi/clean-thread
                "jetty-broken"
                #(some-> (.onFailure channel (EofException. "The stream is broken") Callback/NOOP)
                         .run))))))

(defn- body?
  "True if the event is DATA with content, or the end of it, which Jetty counts on streams only that
  have ended."
  [event]
  (and (instance? DataFrame event)
       (or (pos? (.remaining ^DataFrame event)) (.isEndStream ^DataFrame event))))

;; end-point: a reference, for it is a weak key below. ours: the ids of the streams that we are
;; about to reset.
(deftype Events [^RateControl counted ^WeakReference end-point ^Set ours]
  RateControl
  (onEvent [_ event]
    (let [reset? (instance? ResetFrame event)
          ours? (and reset? (.contains ours (str (.getStreamId ^ResetFrame event))))]
      (when (and reset? (not ours?)) (fail-broken! (.get end-point) event))
      (or ours? (body? event) (.onEvent counted event)))))

(def ^:private ^Map by-end-point
  (Collections/synchronizedMap (WeakHashMap.)))

(defn factory
  "Returns what makes the count of each connection."
  ^RateControl$Factory [most-per-second]
  (reify
    RateControl$Factory
    (newRateControl [_ end-point]
      (let [events (Events. (WindowRateControl. (int most-per-second) (Duration/ofSeconds 1))
                            (WeakReference. end-point)
                            (ConcurrentHashMap/newKeySet))]
        (.put by-end-point end-point events)
        events))))

(defn uncounted
  "Calls f, which may reset the request's stream."
  [^EndPoint end-point ^Request request f]
  (if-some [^Events events (.get by-end-point end-point)]
    (let [^Set ours (.-ours events), id (.getId request)]
      (.add ours id)
      (try (f) (finally (.remove ours id))))
    (f)))

(defn stop-body!
  "Has the client of a request that has been answered send no more of its body. Jetty would do so
  with CANCEL, for which clients give up the answer too."
  [end-point ^Request request]
  (let [n (Integer/parseInt (.getId request)), stream (stream end-point n)]
    ;; What has come is read first: for Jetty a body has not ended before.
    (when (and stream (not (.isRemotelyClosed stream)) (not (.consumeAvailable request)))
      (uncounted end-point
                 request
                 #(.reset stream (ResetFrame. n (.code ErrorCode/NO_ERROR)) Callback/NOOP)))))
