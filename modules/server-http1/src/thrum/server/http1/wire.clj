(ns thrum.server.http1.wire
  "One request as a Wire: its head and body from the input, its response to the connection."
  (:require
   [thrum.server.http1.body :as body]
   [thrum.server.http1.connection :as connection]
   [thrum.server.http1.head :as head]
   [thrum.server.http1.input :as input]
   [thrum.server.http1.response :as response]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.atomic AtomicReference)
   (thrum.server.http1.body Body)
   (thrum.server.http1.connection Connection)
   (thrum.server.http1.head Head)))

(set! *warn-on-reflection* true)

;; What is the same for every request of a connection. over: open until the connection is to end.
;; upgrade: see serve!, or nil.
(deftype Ends [connection input ^CountDownLatch over scheme certificate upgrade])

(defprotocol ^:private Exchange
  "A request's part in the life of its connection."
  (ask! [wire] "Sends 100 Continue where the client waits for it, unless the response has begun.")
  (head-bytes [wire status headers framing whole?]
    "Decides whether the connection goes on, and returns the bytes of the response's head. whole?:
    whether the response is at hand, so that its handler reads no more of the request's body.")
  (complete! [wire] "The response is whole.")
  (keep? [wire] "True if the connection may serve another request.")
  (over! [wire] "Aborts a response that is not whole, and skips the rest of the body."))

(def ^:private ^{:tag 'bytes} go-on (.getBytes "HTTP/1.1 100 Continue\r\n\r\n"))

(defn- connection-header
  "Returns what the response says of the connection: on HTTP/1.0 it is closed unless something is
  said."
  [keep? head headers]
  (cond
    (not keep?) (when-not (head/closes? headers) ["Connection" "close"])
    (head/http-1-0? head) ["Connection" "keep-alive"]))

(defn- may-come?
  "True if the client waits to be asked for its body, and was not asked."
  [head body]
  (and body (not (body/begun? body)) (head/waits? head)))

(defn- watch-input!
  "Calls what gone holds, once, when the client goes. Whether it is still to be called is decided
  then: another thread may have taken it out meanwhile."
  [input ^AtomicReference gone]
  (input/watch! input #(some-> ^Runnable (.getAndSet gone nil) .run)))

;; gone: what to call when the client goes, until then. keep: whether another request may follow;
;; nil until the response has a head. unending: whether its body goes on to the connection's end.
(deftype Http1Wire [^Ends ends ^Head head ^AtomicReference gone
                    ^:volatile-mutable ^Body body
                    ^:volatile-mutable begun
                    ^:volatile-mutable keep
                    ^:volatile-mutable unending
                    ^:volatile-mutable complete]
  Exchange
  (ask! [_]
    (when (and (nil? keep) (head/waits? head))
      (connection/write! (.-connection ends) go-on)))
  (head-bytes [_ status headers framing whole?]
    (set! keep (not (or unending
                        (and whole? body (body/too-long? body))
                        (head/closes? headers)
                        (head/ends? head)
                        (may-come? head body))))
    (response/head status headers [framing (connection-header keep head headers)]))
  (complete! [_]
    (set! complete true)
    (when unending (connection/unending! (.-connection ends) false))
    ;; A handler that was answered for and still runs does not keep the client waiting for the end.
    (when-not keep (.countDown ^CountDownLatch (.-over ends))))
  (keep? [_] (boolean keep))
  (over! [this]
    (Thread/interrupted)
    (when-not complete (engine/abort! this))
    (let [head-ms (.-head-ms ^Connection (.-connection ends))]
      (when (and keep body (not (body/skip-rest! body (spi/deadline-in head-ms))))
        (set! keep false))))

  engine/Wire
  (method [_] (.-method head))
  (target [_] (.-target head))
  (protocol [_] (.-protocol head))
  (scheme [_] (.-scheme ends))
  (authority [_] nil)
  (headers [_] (.-headers head))
  (remote [_] (connection/client (.-connection ends)))
  (local [_] (connection/local (.-connection ends)))
  (certificate [_] (.-certificate ends))
  (body [this]
    (when-some [length (head/body-length head)]
      (set! body (body/body (.-input ends) length
                            {:ask #(ask! this)
                             :done #(when (.get gone) (watch-input! (.-input ends) gone))
                             :most-trailers (.-most-head ^Connection (.-connection ends))}))
      (body/stream body)))

  (send! [this status headers bytes]
    (let [length (some-> ^bytes bytes alength)
          head (head-bytes this status headers (when length ["Content-Length" length]) true)]
      (response/write-whole! (.-connection ends) head bytes)
      (complete! this)))
  (begin! [this status headers length]
    (let [chunked? (and (neg? length) (not (head/http-1-0? head)))]
      (set! unending (and (neg? length) (not chunked?)))
      (when unending (connection/unending! (.-connection ends) true))
      (let [framing (cond
                      chunked? ["Transfer-Encoding" "chunked"]
                      (not unending) ["Content-Length" length])
            head (head-bytes this status headers framing false)]
        (set! begun (response/begun (.-connection ends) head chunked?))
        (response/stream begun))))
  (end! [this]
    (response/finish! begun)
    (complete! this))
  (abort! [_]
    (when-not complete
      (set! keep false)
      (connection/cut! (.-connection ends))
      (.countDown ^CountDownLatch (.-over ends))))
  (watch! [_ f]
    (.set gone f)
    (when (or (nil? body) (body/ended? body))
      (watch-input! (.-input ends) gone)))
  (unwatch! [_] (.set gone nil))
  (upgrade! [this headers protocol listener]
    (when-not (.-upgrade ends)
      (throw (UnsupportedOperationException. "This engine has no websockets")))
    (set! keep false)
    ((.-upgrade ends) {:connection (.-connection ends)
                       :input (.-input ends)
                       :key (head/value-of (.-headers head) "sec-websocket-key")
                       :headers headers
                       :protocol protocol
                       :listener listener
                       :end #(complete! this)})))

(defn serve!
  "Serves the request of this head; returns whether another may follow on the connection."
  [^Ends ends head serve]
  (let [wire (Http1Wire. ends head (AtomicReference.) nil nil nil false false)]
    (try
      (serve wire)
      (finally (over! wire)))
    (and (keep? wire) (not (connection/cut? (.-connection ends))))))
