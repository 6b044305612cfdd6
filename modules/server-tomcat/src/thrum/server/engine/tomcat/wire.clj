(ns thrum.server.engine.tomcat.wire
  "One request of Tomcat's connector as a Wire. An abort closes the socket under the threads that
  are inside of Tomcat, and wakes them; of HTTP/2 it resets the stream, and interrupts no thread
  while the connector runs."
  (:require
   [thrum.server.engine.tomcat.body :as body]
   [thrum.server.engine.tomcat.connections :as connections]
   [thrum.server.engine.tomcat.request :as request]
   [thrum.server.engine.tomcat.response :as response]
   [thrum.server.engine.tomcat.stream :as stream]
   [thrum.server.engine.tomcat.turns :as turns]
   [thrum.server.engine.tomcat.websocket :as websocket]
   [thrum.server.spi :as engine]
   [thrum.server.spi.lock :refer [holding]]
   [thrum.spi :as spi])
  (:import
   (java.io IOException OutputStream)
   (java.util ArrayList List)
   (java.util.concurrent ThreadFactory)
   (java.util.concurrent.locks LockSupport ReentrantLock)
   (org.apache.coyote Request Response)
   (org.apache.tomcat.util.net NioEndpoint)))

(set! *warn-on-reflection* true)

(def ^:private ^:const last-status
  "The answer at a deadline. Another thread sends it while the handler may go on. Tomcat closes the
  connection when the handler has ended; until then nothing more is sent, and the answer says
  `Connection: close`."
  503)

(def ^:private ^ThreadFactory cutting-threads
  (spi/clean-threads "tomcat-reset"))

;; owner: the connection's thread. over: nil, :complete, :aborted or :upgraded. threads: those
;; inside. woken: those inside that wake! has interrupted.
(deftype TomcatWire [^Request request ^Response response endpoint options shared remote local
                     ^Thread owner lock ^:unsynchronized-mutable over ^List threads
                     ^:unsynchronized-mutable ^List woken
                     ^:unsynchronized-mutable ^OutputStream begun]
  turns/Turns
  (enter! [_]
    (holding lock
      (when over (throw (IOException. "The exchange is over")))
      (.add threads (Thread/currentThread))))
  (leave! [_]
    (holding lock
      (let [me (Thread/currentThread)]
        (.remove threads me)
        ;; It was for the wait that is over.
        (when (and woken (.contains woken me)) (Thread/interrupted))
        (when (and over (.isEmpty threads) (not (identical? me owner)))
          (LockSupport/unpark owner)))))
  (become! [_ state]
    (holding lock
      (when over (throw (IOException. "The exchange was aborted")))
      (set! over state)))
  (ended [_]
    (holding lock
      (when (.isEmpty threads) over)))
  (over? [_]
    (holding lock
      (some? over)))
  (wake! [_]
    (holding lock
      (set! woken (ArrayList. threads))
      (run! #(.interrupt ^Thread %) threads)))
  (cut-stream! [this]
    (let [cutting (.newThread cutting-threads
                              #(try
                                 (stream/cut! request)
                                 (finally
                                   ;; A connector that was stopped does not wake them.
                                   (when-not (.isRunning ^NioEndpoint endpoint)
                                     (turns/wake! this))
                                   (turns/leave! this))))]
      (.add threads cutting)
      (.start cutting)))
  engine/Wire
  (method [_] (.getMethod request))
  (target [_] (request/target-of request))
  (protocol [_] (request/text (.protocol request)))
  (scheme [_] (if (.equals (.scheme request) "https") "https" "http"))
  (authority [_] (when shared (request/authority-of request)))
  (headers [_] (request/headers-of request))
  (remote [_] remote)
  (local [_] local)
  (certificate [_] (request/certificate-of request))
  (body [this] (when (request/body? request shared) (body/input this request shared)))
  (send! [this status headers body]
    (if shared
      (turns/waiting [this]
        (response/send-all! response true false status headers body)
        (turns/become! this :complete))
      (turns/inside [this]
        (response/send-all! response false (request/unasked? request) status headers body)
        (when (and (= last-status status) (not (identical? owner (Thread/currentThread))))
          (connections/finish! request))
        (turns/become! this :complete))))
  (begin! [this status headers length]
    (turns/inside [this]
      (response/set-head! response
        shared
        (and (not shared) (request/unasked? request))
        status
        headers)
      (response/frame! request response length))
    (set! begun (body/output this response))
    begun)
  (end! [this]
    (.flush begun)
    (turns/waiting [this]
      (response/finish! response)
      (turns/become! this :complete)))
  (abort! [this]
    (holding lock
      (when-not over
        (set! over :aborted)
        (cond (not shared) (do
                             (connections/close! request
                               (response/delimited-by-end? request response))
                             (turns/wake! this))
              ;; Otherwise the connection's thread resets the stream.
              (not (.isEmpty threads)) (turns/cut-stream! this))
        (LockSupport/unpark owner))))
  (watch! [_ _])
  (unwatch! [_])
  (upgrade! [this headers protocol listener]
    (websocket/await-open!
      (turns/inside [this]
        (response/set-head! response shared false 101 headers)
        (let [conversation
              (websocket/accept! request response endpoint protocol listener options)]
          (turns/become! this :upgraded)
          conversation)))))

(defn wire
  "Returns the wire of a request of Tomcat's, nil where the client has gone already; endpoint: where
  its connection is; options: the server's, and :container, that of its websockets."
  ^TomcatWire [^Request request response endpoint options]
  (let [lock (ReentrantLock.)
        remote (request/remote-of request)
        local (request/local-of request)]
    (when (and remote local)
      (TomcatWire. request response endpoint options (request/shared? request) remote local
        (Thread/currentThread) lock nil (ArrayList. 2) nil nil))))
