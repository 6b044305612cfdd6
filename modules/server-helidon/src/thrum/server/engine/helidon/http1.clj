(ns thrum.server.engine.helidon.http1
  "Helidon's own HTTP/1.1 connection, between our input and our output.

  Helidon's parser gets a head that cannot be misread, the same for every request: what the request says of itself is read before, and
  told past it. Helidon's thread of the connection waits for its end; Helidon's loop runs on a fresh thread for each request, which the
  handler runs on too. The answer is Helidon's."
  (:require
   [thrum.jdk :as jdk]
   [thrum.server.engine :as engine]
   [thrum.server.engine.helidon.connection :as connection]
   [thrum.server.engine.helidon.head]
   [thrum.server.engine.helidon.input :as input]
   [thrum.server.engine.helidon.output :as output]
   [thrum.server.engine.helidon.wire :as wire])
  (:import
   (io.helidon.common.buffers BufferData DataReader)
   (io.helidon.common.concurrency.limits Limit)
   (io.helidon.webserver CloseConnectionException ConnectionContext Router)
   (io.helidon.webserver.http HttpRouting HttpSecurity)
   (io.helidon.webserver.http1 Http1Config Http1ConnectionSelector)
   (io.helidon.webserver.spi ServerConnection)
   (java.nio.charset StandardCharsets)
   (java.util Optional)
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.atomic AtomicLong)
   (java.util.function Supplier)
   (thrum.server.engine.helidon.connection Connection)
   (thrum.server.engine.helidon.head Head)
   (thrum.server.engine.helidon.wire Ends)))

(set! *warn-on-reflection* true)

(defn- bytes-of ^bytes [^String s]
  (.getBytes s StandardCharsets/ISO_8859_1))

(def ^:private ^{:tag 'bytes} plain-head
  (bytes-of "GET / HTTP/1.1\r\n\r\n"))

(def ^:private ^Http1ConnectionSelector helidons
  "Makes Helidon's connections. Nothing is left for them to check."
  (let [config (doto (Http1Config/builder)
                 (.validateRequestHeaders false)
                 (.validatePrologue false)
                 (.validatePath false)
                 (.sendLog false)
                 (.receiveLog false))]
    (.build (doto (Http1ConnectionSelector/builder) (.config (.buildPrototype config))))))

;; Refusals

(def ^:private phrases
  {400 "Bad Request", 431 "Request Header Fields Too Large", 505 "HTTP Version Not Supported"})

(defn- refuse! [c status]
  (try
    (connection/write! c (BufferData/create
                           (bytes-of (str "HTTP/1.1 " status " " (phrases status) "\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"))))
    (catch java.io.UncheckedIOException _)))

;; One request after another

;; head: of the request that Helidon is told of next. server: Helidon's connection, which serves one request. kept: whether another may follow.
(definterface ITalk
  (^bytes more [])                  ; what Helidon reads: a head, or nil where the connection is over
  (^Object exchange [response])
  (^boolean turn [limit context]))  ; has Helidon serve a request; returns whether another may follow

(def ^:private ^AtomicLong numbers (AtomicLong.))

(deftype Talk [^Ends ends serve
               ^:unsynchronized-mutable ^Head head ^:unsynchronized-mutable ^ServerConnection server ^:unsynchronized-mutable kept]
  ITalk
  (more [_]
    (let [next (input/head! (.-input ends))]
      (if (instance? Head next)
        (do (set! head next)
            plain-head)
        (when next
          (refuse! (.-connection ends) next)
          (engine/refused! (.-options ^Connection (.-connection ends)) next (.-remote ends))
          nil))))
  (exchange [_ response]
    (let [wire (wire/wire ends head response)]
      (try
        (serve wire)
        (finally (.over wire)))
      (set! kept (.keep wire))
      ;; For Helidon this was the last one.
      (.close server false)
      ;; It would complete what was begun, or answer that nothing was.
      (when (.isCut ^Connection (.-connection ends))
        (throw (CloseConnectionException. "The connection has been cut")))))
  (turn [_ limit context]
    (set! kept false)
    (set! server (.connection helidons ^ConnectionContext context))
    (.handle server ^Limit limit)
    (boolean kept)))

(defn- take-turns!
  "Has one request after the other served, each on a fresh thread: that which has served one starts the next, and ends."
  [^Talk talk ^Limit limit context]
  (let [^CountDownLatch over (.-over ^Ends (.-ends talk))
        turn (fn []
               (try
                 (if (.turn talk limit context)
                   (take-turns! talk limit context)
                   (.countDown over))
                 ;; The client has gone, or is not to be heard any more.
                 (catch Throwable _ (.countDown over))))]
    (.start (jdk/clean-thread (str "http-" (.incrementAndGet numbers)) turn))))

(defn- routing ^HttpRouting [^Talk talk]
  (let [security (HttpSecurity/create)]
    (reify HttpRouting
      (route [_ _context _request response] (.exchange talk response))
      (security [_] security))))

(defn- router ^Router [^HttpRouting routing]
  (reify Router
    (routing [_ _type _default] routing)
    (routings [_] [routing])
    (beforeStart [_])
    (afterStop [_])))

(defn- context
  "Returns Helidon's context of the connection with another end to read from, another to write to, and our routing."
  ^ConnectionContext [^ConnectionContext helidons ^Talk talk output]
  (let [reader (DataReader. (reify Supplier (get [_] (.more talk))))
        router (router (routing talk))]
    (reify ConnectionContext
      (remotePeer [_] (.remotePeer helidons))
      (localPeer [_] (.localPeer helidons))
      (isSecure [_] (.isSecure helidons))
      (socketId [_] (.socketId helidons))
      (childSocketId [_] (.childSocketId helidons))
      (listenerContext [_] (.listenerContext helidons))
      (executor [_] (.executor helidons))
      (dataWriter [_] output)
      (dataReader [_] reader)
      (router [_] router)
      (proxyProtocolData [_] (Optional/empty))
      (serverSocket [_] (.serverSocket helidons)))))

(defn- certificate [^ConnectionContext context]
  (when-some [^objects all (.orElse (.tlsCertificates (.remotePeer context)) nil)]
    (aget all 0)))

(defn- ends-of [^ConnectionContext context connection output]
  (Ends. connection (input/input connection) output (CountDownLatch. 1) (if (.isSecure context) "https" "http")
         (.address (.remotePeer context)) (.address (.localPeer context)) (certificate context)))

(defn talk!
  "Serves one request after the other on this connection, in Helidon's context of it. Returns when the connection is to end; a handler may
  still run, whose client has been answered."
  [connection ^ConnectionContext helidons-context serve limit]
  (let [output (output/output connection)
        ^Ends ends (ends-of helidons-context connection output)
        talk (Talk. ends serve nil nil false)]
    (take-turns! talk limit (context helidons-context talk output))
    (.await ^CountDownLatch (.-over ends))))
