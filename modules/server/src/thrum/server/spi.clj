(ns thrum.server.spi
  "What an engine is: it listens, reads requests, and hands each one over as a Wire, on a fresh
  virtual thread of its own.

  An engine is a map: :name, a keyword; :capabilities, a subset of thrum.server.spi/capabilities;
  :rows, the option rows that :engine-options may hold; :gaps, the cases of the contract that it
  fails, and why; :may-pass, a set of those gaps that it has on some JDKs alone; :start,
  (start options serve), returns a Running; :clean-values?, true where it refuses control characters
  in the values of HTTP/1's headers itself: they are not checked again.

  Options are checked. An engine honours :host, :port, :ssl-port, :backlog, :max-connections,
  :header-timeout-ms, :idle-timeout-ms and those of its :rows in :engine-options; with :tls also
  what thrum.server.spi.tls/ssl-context takes, and :client-auth; with :h2 :h2? and :h2c?; with
  :websockets :ws-max-message-bytes and :ws-idle-timeout-ms. A bound of its own for a request's head
  follows :max-header-bytes, which the server checks too. Of what start throws, an exception of
  :type :thrum/invalid is passed on; any other exception becomes the cause of :thrum/start-failed.

  The engine calls (serve wire) once for each request, on a fresh virtual thread that nothing else
  uses, and that inherits nothing; serve returns when the exchange is over. What the engine refuses
  by itself it answers without message, product, version or echoed input, and reports by refused!."
  (:import
   (clojure.lang Var)
   (java.io InputStream OutputStream)
   (java.net InetSocketAddress)
   (java.security.cert X509Certificate)))

(set! *warn-on-reflection* true)

(def capabilities
  "What an engine may lack; everything else each engine has."
  #{:websockets :h2 :tls :client-certificates :disconnect :http-1.0 :blocking-send})

(def reuse-threads
  "The row of the engine option by which a thread serves several requests of a connection."
  {:check boolean?
   :accepts "true or false"
   :default "false"
   :doc (str "whether a connection's requests are served on one thread, where they come one after "
             "the other: quicker, and what a handler leaves on its thread, in ThreadLocals above "
             "all, is there for the next request")})

(defn on-reused-thread
  "Calls f, which serves a request on the calling thread, and returns its value. Behind it the
  thread has the bindings and the name that it had before."
  [f]
  (let [thread (Thread/currentThread), thread-name (.getName thread)
        bindings (Var/getThreadBindingFrame)]
    (try
      (f)
      (finally
        (Var/resetThreadBindingFrame bindings)
        (when-not (identical? thread-name (.getName thread)) (.setName thread thread-name))))))

(defprotocol Running
  "An engine that has been started."
  (port [running] "Returns the port of the plain listener, -1 where there is none.")
  (ssl-port [running] "Returns the port of the listener of TLS, -1 where there is none.")
  (close-listeners! [running] "Takes no new connection; those that are open stay.")
  (stop! [running]
    "Ends every connection. Blocks until the engine's own threads have ended. Called once, after
    close-listeners!, also where that threw.")
  (native [running] "Returns the engine's own server object."))

;; Protocols, not interfaces: the 17 calls of a request cost 30 ns more, of some 8 us (JDK 25).
(defprotocol Wire
  "One request as the engine received it, and the way back. One thread at a time writes, and one
  reads the body, maybe still when the answer ends; abort! comes from any thread at any time.

  Headers are an Object[] of name, value, name, value ... Those of a response hold neither
  Content-Length (but see send!) nor Transfer-Encoding; their Connection: close is honoured. What
  writes blocks until the bytes are handed to the network (but see begin!), and throws IOException
  when the client has gone."
  (^String method [wire] "Returns the method as sent, such as \"GET\".")
  (^String target [wire]
    "Returns the target as sent, on HTTP/2 :path; neither normalised nor decoded.")
  (^String protocol [wire] "Returns \"HTTP/1.0\", \"HTTP/1.1\" or \"HTTP/2.0\".")
  (^String scheme [wire] "Returns \"http\" or \"https\".")
  (^String authority [wire] "Returns HTTP/2's :authority, \"\" where it sends none; nil on HTTP/1.")
  (^objects headers [wire]
    "Returns the headers as sent, in the order of arrival, repeated ones too.")
  (^String remote [wire] "Returns the client's address as text, neither a name nor a port.")
  (^InetSocketAddress local [wire] "Returns the server's InetSocketAddress.")
  (^X509Certificate certificate [wire] "Returns the client's own X509Certificate, or nil.")
  (^InputStream body [wire]
    "Returns the request's body as an InputStream, nil where there is none. Reading blocks; the
    stream ends only where the body is whole, and throws IOException otherwise.")
  (send! [wire status headers body]
    "Sends all of a response; the Content-Length is that of body, a byte[]. nil: neither a body nor
    a length but one that headers state (HEAD, 204, 304).")
  (^OutputStream begin! [wire status headers length]
    "Sends the head of a response; length -1: not known. Returns the OutputStream of its body:
    writing blocks, flush sends what is buffered, close does nothing.")
  (end! [wire] "The body that was begun is complete.")
  (abort! [wire]
    "Sends nothing more: the client sees an answer that is cut off, never a complete one.
    Idempotent.")
  (watch! [wire gone]
    "Calls gone, a Runnable, on any thread, when the client goes, as far as that can be noticed.")
  (unwatch! [wire] "Watches no more; called before anything is sent.")
  (upgrade! [wire headers protocol listener]
    "Makes the request a websocket, of this subprotocol or nil, whose events listener, a Listener,
    gets. Returns when the handshake is sent."))

(defprotocol Listener
  "What an engine calls for the events of a websocket: on virtual threads, one call at a time, in
  order. Buffers are the listener's to keep."
  (on-open [listener socket] "The websocket, a Socket, is open.")
  (on-text [listener socket message] "A whole message, a String, has come.")
  (on-binary [listener socket message] "A whole message, a ByteBuffer, has come.")
  (on-ping [listener socket data]
    "A ping with a ByteBuffer has come; the engine leaves its pong to the listener.")
  (on-pong [listener socket data] "A pong with a ByteBuffer has come.")
  (on-error [listener socket throwable] "The websocket has failed; on-close follows.")
  (on-close [listener socket code reason] "The last call, once, if on-open was called."))

(defprotocol Socket
  "A websocket as the engine has it. What sends blocks until the frame is flushed, and throws
  IOException when that fails."
  (open? [socket] "True if messages can still be sent.")
  (send-text! [socket message] "Sends a CharSequence.")
  (send-binary! [socket message] "Sends a ByteBuffer.")
  (send-ping! [socket data] "Sends a ping with a ByteBuffer.")
  (send-pong! [socket data] "Sends a pong with a ByteBuffer.")
  (close! [socket code reason]
    "Sends a closing frame: code an int (RFC 6455, 7.4), reason a String. Throws IOException where
    the websocket is closed already. The listener's on-close follows.")
  (disconnect! [socket]
    "Cuts the connection without a closing frame, on any thread. The listener's on-close follows."))

(defn refused!
  "Reports a request that the engine has answered by itself, with this status, to the server's
  observer as an :end; options: as start got them; remote: as that of a Wire, or nil. Blocks as long
  as the observer does. What the observer throws is counted, not thrown."
  [{:keys [on-refused]} status remote]
  (when on-refused
    (on-refused {:request {:remote-addr remote}
                 :status status
                 :bytes 0})))

(defn address
  "Returns an address as remote of a Wire does."
  ^String [^InetSocketAddress address]
  (.getHostAddress (.getAddress address)))

(defn given
  "Returns those of ks that the user has asked for, and that are no defaults; options: as start got
  them."
  [options ks]
  (filterv (:given (meta options) #{}) ks))
