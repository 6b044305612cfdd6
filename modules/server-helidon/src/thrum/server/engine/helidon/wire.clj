(ns thrum.server.engine.helidon.wire
  "One request as a Wire: what came, from the input; its answer as bytes."
  (:require
   [thrum.server.engine.helidon.answer :as answer]
   [thrum.server.engine.helidon.body :as body]
   [thrum.server.engine.helidon.connection :as connection]
   [thrum.server.engine.helidon.head :as head]
   [thrum.server.spi :as engine])
  (:import
   (java.io IOException)
   (java.util.concurrent CountDownLatch)
   (thrum.server.engine.helidon.answer Begun)
   (thrum.server.engine.helidon.body Body)
   (thrum.server.engine.helidon.connection Connection)
   (thrum.server.engine.helidon.head Head)))

(set! *warn-on-reflection* true)

;; What is the same for every request of a connection. over: open until the connection is to end.
(deftype Ends [^Connection connection input ^CountDownLatch over scheme certificate])

(definterface IExchange
  (^boolean asks [])                 ; does the client wait to be asked for the body?
  (^Object ask [])                   ; asks for it, unless the response has begun: it would be taken for a part of that
  (head [status headers framing])    ; the head's bytes, once it is decided whether the connection goes on
  (^Object complete [])
  (^boolean keep [])                 ; may the connection serve another request?
  (^Object over [])) ; serve has returned

(def ^:private ^{:tag 'bytes} go-on (.getBytes "HTTP/1.1 100 Continue\r\n\r\n"))

(defn- connection-header
  "Returns what the response says of the connection: on HTTP/1.0 it is closed unless something is
  said."
  [keep? ^Head head headers]
  (cond
    (not keep?) (when-not (head/closes? headers) ["Connection" "close"])
    (head/http-1-0? head) ["Connection" "keep-alive"]))

;; unending: whether the response's body goes on to the connection's end.
(deftype HelidonWire [^Ends ends ^Head head ^:volatile-mutable ^Body body ^:volatile-mutable begun
                      ^:volatile-mutable headed ^:volatile-mutable keep ^:volatile-mutable unending
                      ^:volatile-mutable complete]
  IExchange
  (asks [_] (and (head/waits? (.-headers head)) (not (head/http-1-0? head))))
  (ask [this] (when (and (not headed) (.asks this)) (connection/write! (.-connection ends) go-on)))
  (head [this status headers framing]
    (set! headed true)
    (when (.isCut ^Connection (.-connection ends))
      (throw (IOException. "The connection has been cut")))
    (set! keep
          (not (or unending
                   (head/closes? headers)
                   (head/ends? head)
                   ;; The body that the client waits to be asked for may come or not.
                   (and body (not (.begun body)) (.asks this)))))
    (answer/head status headers framing (connection-header keep head headers)))
  (complete [_]
    (set! complete true)
    ;; A handler that is still at it, whatever it was told, does not keep the client waiting for the
    ;; end.
    (when-not keep (.countDown ^CountDownLatch (.-over ends))))
  (keep [_] (boolean keep))
  (over [this]
    (Thread/interrupted)
    (when-not complete (engine/abort! this))
    (when (and keep body (not (body/skip-rest! body))) (set! keep false)))
  engine/Wire
  (method [_] (.-method head))
  (target [_] (.-target head))
  (protocol [_] (.-protocol head))
  (scheme [_] (.-scheme ends))
  (authority [_] nil)
  (headers [_] (.-headers head))
  (remote [_] (connection/remote (.-connection ends)))
  (local [_] (connection/local (.-connection ends)))
  (certificate [_] (.-certificate ends))
  (body [this]
    (when-some [length (head/body-length (.-headers head))]
      (set! body
            (body/body (.-input ends)
                       length
                       {:ask #(.ask this)
                        :most-trailers (connection/option (.-connection ends) :max-header-bytes)}))
      (body/stream body)))
  (send! [this status headers bytes]
    (let [length (some-> ^bytes bytes
                         alength)]
      (answer/write-whole! (.-connection ends)
                           (.head this status headers (when length ["Content-Length" length]))
                           bytes)
      (.complete this)))
  (begin! [this status headers length]
    (let [chunked? (and (neg? length) (not (head/http-1-0? head)))]
      (set! unending (and (neg? length) (not chunked?)))
      (let [framing (cond chunked? ["Transfer-Encoding" "chunked"]
                          (not (neg? length)) ["Content-Length" length])]
        (set! begun (answer/begun (.-connection ends) (.head this status headers framing) chunked?))
        (answer/stream begun))))
  (end! [this] (.finish ^Begun begun) (.complete this))
  (abort! [_]
    (when-not complete
      (set! keep false)
      (let [^Connection connection (.-connection ends)]
        (if unending (.reset connection) (.cut connection)))
      (.countDown ^CountDownLatch (.-over ends))))
  (watch! [_ _gone] false)
  (unwatch! [_] nil)
  (upgrade! [_ _headers _protocol _listener]
    (throw (UnsupportedOperationException. "This engine has no websockets"))))

(defn serve!
  "Serves the request of this head; returns whether another may follow on the connection."
  [^Ends ends head serve]
  (let [wire (HelidonWire. ends head nil nil false false false false)]
    (try
      (serve wire)
      (finally (.over wire)))
    (and (.keep wire) (not (.isCut ^Connection (.-connection ends))))))
