(ns thrum.server.spi
  "What an engine is: it listens, reads requests, and hands each one over as a Wire, on a fresh
  virtual thread of its own.

  An engine is a map: :name, a keyword; :capabilities, of thrum.server.impl.options/capabilities;
  :rows, the option rows that :engine-options may hold; :gaps, the cases of the contract that it
  fails, and why; :start, a function of the checked options and of serve, which returns a Running.
  The engine calls (serve wire) once for each request, on a fresh virtual thread that nobody else
  uses, and that inherits nothing (thrum.spi/clean-thread); serve returns when the exchange is
  over. Whatever the engine refuses by itself, it answers without message, product, version or
  echoed input, and tells by refused!."
  (:require
   [thrum.spi :as spi])
  (:import
   (java.io InputStream OutputStream)
   (java.net InetSocketAddress)
   (java.security.cert X509Certificate)))

(set! *warn-on-reflection* true)

;; What run-server's value asks of an engine that has been started.
(definterface Running
  (^int port [])                    ; of the plain listener, -1 where there is none
  (^int sslPort [])                 ; -1 where there is none
  (^Object closeListeners [])       ; no new connection from now on; those that are open stay
  (^Object close [])                ; ends every connection; returns when the engine's own threads have ended
  (native [])) ; the engine's own server object

;; One request as the engine received it, and the way back. Methods that write are called by one
;; thread at a time; abort comes from any thread at any time.
(definterface Wire
  (^String method [])               ; as sent: "GET"
  (^String target [])               ; as sent, on HTTP/2 :path; never normalised or decoded
  (^String protocol [])             ; "HTTP/1.0", "HTTP/1.1" or "HTTP/2.0"
  (^String scheme [])               ; "http" or "https"
  (^String authority [])            ; HTTP/2's :authority, "" where it sends none; nil on HTTP/1
  (^Object headers [])              ; an Object[]: name, value, name, value ..., as sent, in the order of arrival, repeated ones too
  (^java.net.InetSocketAddress remote [])
  (^java.net.InetSocketAddress local [])
  (^java.security.cert.X509Certificate certificate []) ; the client's own, or nil
  (^java.io.InputStream body [])    ; blocks; end of stream only where the body is whole, IOException otherwise; nil: there is none
  ;; The response. headers: an Object[], name, value, ... as for the request; body: a byte[];
  ;; neither Content-Length (but see send) nor Transfer-Encoding is among them; Connection: close is
  ;; honoured. Each blocks until the engine's client could take the bytes, throws IOException when
  ;; it has gone.
  (^Object send [^int status ^Object headers ^Object body])
  ; all of it: the Content-Length is that of body; nil: no body and no length but one that headers state
  ; (HEAD, 204, 304)
  (^java.io.OutputStream begin [^int status ^Object headers ^long length])
  ; the head; length -1: not known. Writing blocks, flush sends what is buffered; close does nothing
  (^Object end [])                  ; the body that was begun is complete
  (^Object abort [])                ; nothing more is sent: the client sees an answer that is cut off, never a complete one. Idempotent
  (^boolean watch [^Runnable gone]) ; calls gone, on any thread, when the client goes; false: cannot be told, or not now
  (^Object unwatch [])              ; not any more: before anything is sent
  (^Object upgrade [^Object headers ^String protocol listener]))
; to a websocket, its subprotocol or nil; returns when the handshake is sent; listener: a Listener

;; What an engine tells of a websocket, each call on a virtual thread, one at a time, in order.
(definterface Listener
  (^Object opened [socket])         ; a Socket
  (^Object text [socket ^String message])
  (^Object binary [socket ^java.nio.ByteBuffer message])
  (^Object ping [socket ^java.nio.ByteBuffer data])   ; the engine does not answer it
  (^Object pong [socket ^java.nio.ByteBuffer data])
  (^Object failed [socket ^Throwable throwable])
  (^Object closed [socket ^int code ^String reason])) ; once, last, if opened was called

;; A websocket as the engine has it. Each blocks until the frame is flushed, throws IOException when
;; that fails.
(definterface Socket
  (^boolean isOpen [])
  (^Object text [^CharSequence message])
  (^Object binary [^java.nio.ByteBuffer message])
  (^Object ping [^java.nio.ByteBuffer data])
  (^Object pong [^java.nio.ByteBuffer data])
  (^Object close [^int code ^String reason])
  (^Object abort []))

(defn refused!
  "Tells who watches of a request that the engine has answered by itself, with this status; options:
  as start got them; remote: the client's address, or nil."
  [{:keys [on-refused]} status ^InetSocketAddress remote]
  (when on-refused
    (on-refused {:request {:remote-addr (some-> remote
                                                .getAddress
                                                .getHostAddress)}
                 :status status
                 :bytes 0})))

(def ^:private homes
  "Where each engine is defined, and what to add for it."
  {:jdk ['thrum.server.engine.jdk "nothing: it is part of Thrum's server"]
   :jetty ['thrum.server.engine.jetty "io.github.thrum-clj/thrum-server-jetty"]
   :tomcat ['thrum.server.engine.tomcat "io.github.thrum-clj/thrum-server-tomcat"]
   :http-kit ['thrum.server.engine.http-kit
              "io.github.thrum-clj/thrum-server-http-kit, and http-kit/http-kit 2.9.0 or newer"]
   :helidon ['thrum.server.engine.helidon "io.github.thrum-clj/thrum-server-helidon"]})

(def names
  "The engines that there are."
  (vec (keys homes)))

(defn- missing [engine what cause]
  (ex-info (str "The engine " engine " is not on the classpath: add " what)
           {:type :thrum/invalid, :option :engine, :value engine, :accepts names}
           cause))

(defn named
  "Returns the engine of that name, loading its namespace. Throws :thrum/invalid when there is none,
  or it is not on the classpath."
  [engine]
  (let [[home what] (homes engine)]
    (when-not home
      (throw (spi/invalid (str "There is no engine " (spi/text engine) "; known are " names)
               {:option :engine, :value engine, :accepts names})))
    (try
      @(requiring-resolve (symbol (name home) "engine"))
      (catch java.io.FileNotFoundException e (throw (missing engine what e)))
      (catch ClassNotFoundException e (throw (missing engine what e))))))
