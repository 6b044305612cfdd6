(ns thrum.server.engine.jetty.events
  "How many resets, pings, settings and the like a client may send per second on a connection of
  HTTP/2; beyond them Jetty closes it.

  Jetty counts the streams that the server resets too. Those that we reset are not the client's
  doing, and the connection's other streams must not suffer from them: they are left out."
  (:import
   (java.time Duration)
   (java.util Collections Map Set WeakHashMap)
   (java.util.concurrent ConcurrentHashMap)
   (org.eclipse.jetty.http2 RateControl RateControl$Factory WindowRateControl)
   (org.eclipse.jetty.http2.frames ResetFrame)
   (org.eclipse.jetty.io EndPoint)
   (org.eclipse.jetty.server Request)))

(set! *warn-on-reflection* true)

;; ours: the ids of the streams that we are about to reset.
(deftype Events [^RateControl counted ^Set ours]
  RateControl
  (onEvent [_ event]
    (or (and (instance? ResetFrame event) (.contains ours (str (.getStreamId ^ResetFrame event))))
        (.onEvent counted event))))

(def ^:private ^Map by-end-point
  (Collections/synchronizedMap (WeakHashMap.)))

(defn factory
  "Returns what makes the count of each connection."
  ^RateControl$Factory [most-per-second]
  (reify
    RateControl$Factory
    (newRateControl [_ end-point]
      (let [events (Events. (WindowRateControl. (int most-per-second) (Duration/ofSeconds 1))
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
