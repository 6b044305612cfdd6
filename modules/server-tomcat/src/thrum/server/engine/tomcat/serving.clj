(ns thrum.server.engine.tomcat.serving
  "Which thread serves a request, and what its connection's does meanwhile.

  Tomcat reads a connection on a fresh virtual thread whenever something has arrived, and the
  exchange runs there. It gets a thread of its own in three cases:

  - the connection's thread has handled a request already, unless :reuse-threads? is true
  - the request asks for an upgrade, such as to a websocket
  - the request is a stream of HTTP/2

  The connection's thread waits until the exchange is over, and Tomcat's objects of the request are
  free for the next one. If the next one is for another thread, it lets others run before Tomcat
  looks for that: a client that asks again at once has done so by then. Otherwise half of all
  requests go through Tomcat's poller, with four system calls more and another thread: a third of a
  request's CPU time."
  (:require
   [thrum.server.engine.tomcat.request :as request]
   [thrum.server.engine.tomcat.response :as response]
   [thrum.server.engine.tomcat.rests :as rests]
   [thrum.server.engine.tomcat.stream :as stream]
   [thrum.server.engine.tomcat.turns :as turns]
   [thrum.server.engine.tomcat.wire :as wire]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent ThreadFactory)
   (java.util.concurrent.locks LockSupport)
   (org.apache.coyote ActionCode Request Response)
   (thrum.server.engine.tomcat.wire TomcatWire)))

(set! *warn-on-reflection* true)

(defn- serve! [wire serve]
  (try
    (serve wire)
    (catch Throwable t
      (engine/abort! wire)
      (throw t))))

(defn- reuses? [options]
  (boolean (:reuse-threads? (:engine-options options))))

(def ^:private ^ThreadFactory request-threads
  (spi/clean-threads "http-request"))

(def ^:private ^:const note
  "Where a request of Tomcat's, which is used again and again, keeps the thread that it was last
  handled on."
  31)

(defn- apart?
  "True if the exchange needs a thread of its own: the connection's has handled a request
  already, or must go on before the exchange is over, for it becomes a websocket, or its stream is
  reset."
  [^Request request options]
  (or (request/shared? request)
      (and (identical? (Thread/currentThread) (.getNote request note)) (not (reuses? options)))
      (some? (.getHeader request "upgrade"))))

(defn- await-end!
  "Waits until the exchange is over and no thread is inside of its objects; returns how it ended. An
  interrupt does not end this wait."
  [wire]
  (loop []
    (or (turns/ended wire)
        (do (LockSupport/park wire)
            (Thread/interrupted)
            (recur)))))

(defn- let-others-run!
  "Lets other threads run where Tomcat will look for the connection's next request, for another
  thread: not where it closes the connection, which a client may wait for, nor on HTTP/2."
  [^TomcatWire wire ^Response response]
  (let [connection (.getValue (.getMimeHeaders response) "Connection")]
    (when-not (or (.-shared wire)
                  (reuses? (.-options wire))
                  (and connection (.equalsIgnoreCase connection "close")))
      (Thread/yield))))

(defn- rest-unwanted?
  "True if the connection is closed at once, and not after the rest of the request's body: that is
  broken, or its client waits to be asked for it."
  [^TomcatWire wire]
  (let [request (.-request wire)]
    (and (not (.-shared wire))
         (or (request/body-broken? request)
             (and (request/unasked? request) (not (request/arrived? request)))))))

(defn- conclude!
  "Waits, on the connection's thread, until the exchange is over and its objects are free; passes to
  Tomcat how it ended. After serve has returned another thread may still be about to answer: that of
  a deadline."
  [^TomcatWire wire ^Response response]
  (let [aborted? (= :aborted (await-end! wire)), shared? (.-shared wire)]
    (when (and shared? (or aborted? (stream/body-open? (.-request wire))))
      (stream/absolve! (.-request wire)))
    (if aborted?
      (do
        (when shared? (.setTrailerFields response response/reset))
        (.action response ActionCode/CLOSE_NOW nil))
      (do
        (when (rest-unwanted? wire)
          (.action response ActionCode/DISABLE_SWALLOW_INPUT nil))
        (let-others-run! wire response)))))

(defn handle!
  "Has the request served on a fresh virtual thread, and waits until it is: on this one, the
  connection's, where that is fresh, or is reused."
  [^Request request response endpoint {:keys [rests] :as options} serve]
  (if-some [wire (wire/wire request response endpoint options)]
    (try
      (if (apart? request options)
        (.start (.newThread request-threads #(serve! wire serve)))
        (do (.setNote request note (Thread/currentThread))
            (engine/on-reused-thread #(serve! wire serve))))
      (catch Throwable t
        (engine/abort! wire)
        (throw t))
      (finally
        ;; An interrupt of this thread was meant for the exchange.
        (Thread/interrupted)
        (conclude! wire response)
        (rests/begin! rests request endpoint)))
    (.action ^Response response ActionCode/CLOSE_NOW nil)))
