(ns thrum.server
  "Ring handlers on virtual threads: one run-server over five engines, bounded, with deadlines and
  an orderly end.

  Every request runs on a virtual thread of its own, inside a scope of Thrum: what its handler forks
  ends with it. A function that takes a server, or a websocket, throws :thrum/invalid for anything
  else."
  (:require
   [clojure.core.protocols :as protocols]
   [thrum.server.impl.access-log :as access-log]
   [thrum.server.impl.engines :as engines]
   [thrum.server.impl.events :as events]
   [thrum.server.impl.lifecycle :as lifecycle]
   [thrum.server.impl.options :as options]
   [thrum.server.impl.websocket :as websocket]
   [thrum.spi :as spi]
   [thrum.spi.options :as core-options])
  (:import
   (clojure.lang IFn)
   (java.lang AutoCloseable)
   (thrum.server.impl.events Events)
   (thrum.server.impl.websocket WebSocket)))

(set! *warn-on-reflection* true)

(defn- print-status
  [life]
  (assoc (lifecycle/status life)
         :engine (:name (lifecycle/engine life))
         :port (or (lifecycle/port life) (lifecycle/ssl-port life))))

(defn- refuse [args]
  (throw (spi/invalid (str "A server is called without arguments; that stops it, and run-server's "
                           ":shutdown-timeout-ms says how long it waits for what is in flight")
           {:value args})))

;; With two arguments as http-kit's function is, which stops a server within a time.
(deftype Server [life]
  AutoCloseable
  (close [_] (lifecycle/stop! life))
  IFn
  (invoke [_] (lifecycle/stop! life))
  (invoke [_ a] (refuse [a]))
  (invoke [_ a b] (refuse [a b]))
  (applyTo [_ args]
    (when (seq args) (refuse args))
    (lifecycle/stop! life))
  protocols/Datafiable
  (datafy [_] (print-status life)))

(ns-unmap *ns* '->Server)

(defmethod print-method Server
  [^Server server ^java.io.Writer w]
  (.write w
          (str "#<server "
               (pr-str (select-keys (print-status (.-life server))
                                    [:engine :port :state :in-flight]))
               ">")))

(defn- life [server]
  (.-life ^Server (core-options/instance Server "a server, as run-server returns it" server)))

(defn run-server
  "Starts a server for a Ring handler and returns it: an AutoCloseable and a function without
  arguments, both of which stop it. The handler takes a request map of the Ring 1.5 specification
  and returns a response map, or, :async? true, takes request, respond and raise. A var is looked up
  at each request.

  Throws :thrum/invalid for an unknown option, a wrong value, or what the engine lacks;
  :thrum/start-failed, with the cause, when the port is in use, a key store cannot be read, and the
  like.

  Options:
    :engine - the server underneath: :jdk, :jetty, :tomcat, :http-kit or :helidon (a keyword;
      default :jdk)
    :host - the name or address to listen on (a string; default 127.0.0.1)
    :port - where HTTP is served; 0 picks a free port, nil serves none, beside an :ssl-port
      (an integer from 0 to 65535, or nil; default 3000)
    :backlog - how many connections the operating system may hold before they are accepted (an
      integer from 1 to 2147483647; default 4096)
    :async? - whether the handler takes (request respond raise) (true or false; default false)
    :max-concurrent - how many requests may be handled at once; none: no bound; :adaptive:
      from 20 to 10000, as latency allows, by thrum-adaptive's gradient2; a limiter, of several
      servers or of another function, has its own queue and wait (a positive integer, :adaptive,
      or a limiter, as thrum.core/limiter returns it)
    :max-queued - how many requests may wait for their turn (an integer, not negative; default
      0)
    :queue-timeout-ms - how many ms a request may wait for its turn (an integer, not negative;
      default 1000)
    :on-overload - the answer beyond the bounds: a status, or the response that a function
      returns (a status from 400 to 599, or a function of the request; default 503)
    :max-streams - how many server-sent event streams and websockets may be open; none: no
      bound (an integer from 1 to 2147483647)
    :max-connections - how many sockets may be open; none: what the limit of file descriptors
      allows (an integer from 1 to 2147483647)
    :request-timeout-ms - how many ms a request may take, its time in the queue counted; none:
      no bound (an integer from 1 to 2147483647)
    :max-body-bytes - how long a request's body may be; none: no bound; beyond it 413 is
      answered (an integer, not negative)
    :max-header-bytes - how long a request's line and headers may be; beyond it 431 is
      answered (an integer from 1 to 2147483647; default 16384)
    :header-timeout-ms - how many ms a client may take to send the headers, and what is left
      of a body after its answer; then 408, or the connection is closed (an integer from 1 to
      2147483647; default 10000)
    :idle-timeout-ms - how many ms a connection may be silent; then it is closed. Give it more
      than a proxy in front has, which for nginx is 60 s: a connection that the server closes
      first may cost a request (an integer from 1 to 2147483647; default 75000)
    :trusted-proxies - the peers whose headers say where a request comes from; none: headers
      say nothing (a collection of addresses, blocks such as \"10.0.0.0/8\", :loopback and
      :private)
    :forwarded-headers - what :trusted-proxies set: X-Forwarded-For, -Proto, -Host and -Port,
      or RFC 7239's Forwarded; the other kind is not read (:x-forwarded or :forwarded; default
      :x-forwarded)
    :request-id? - whether requests have a :thrum/request-id: a trusted proxy's X-Request-Id,
      or one that is made (true or false; default false)
    :health - where probes ask, as {:live \"/livez\", :ready \"/readyz\"}; answered by the
      server, outside :max-concurrent (a map of :live, :ready or both to paths, each of which
      begins with /)
    :min-bytes-per-second - how fast a client must send a body, and take a response, while it
      is waited for; none: no bound (an integer from 1 to 2147483647)
    :rate-grace-ms - how many ms a client may be behind :min-bytes-per-second; then its
      connection is cut (an integer from 1 to 2147483647; default 5000)
    :drain-delay-ms - how many ms stop! goes on serving, while ready? is false already (an
      integer, not negative; default 0)
    :drain-streams-ms - how many ms longer streams and websockets stay open, within
      :shutdown-timeout-ms (an integer, not negative; default 0)
    :shutdown-timeout-ms - how many ms stop! waits for what is in flight (an integer, not
      negative; default 10000)
    :stop-on-shutdown? - whether the end of the JVM stops the server, as stop! does (true or
      false; default true)
    :interrupt-on-disconnect? - whether a request is cancelled whose client goes away (true or
      false; default false)
    :error-handler - returns the response for what a handler threw; none: 500 without details,
      and the throwable goes to System.Logger (a function of request and throwable)
    :observer - functions of one map, called at these events of a request (a map of functions,
      of :disconnect, :dropped, :end, :shed, :start, :stop, :timeout)
    :ssl-port - where HTTPS is served (an integer from 0 to 65535)
    :ssl-context - in place of :keystore (a javax.net.ssl.SSLContext)
    :keystore - the server's key and certificate (a path, a java.io.File or a
      java.security.KeyStore)
    :key-password - the password of :keystore (a string)
    :truststore - the certificates that clients may be signed by (a path, a java.io.File or a
      java.security.KeyStore)
    :trust-password - the password of :truststore (a string)
    :client-auth - whether a client needs a certificate (:need, :want or :none)
    :h2? - whether HTTP/2 is offered on the :ssl-port (default: true where the engine has it)
      (true or false)
    :h2c? - whether HTTP/2 is served without TLS, by prior knowledge or upgrade (true or
      false; default false)
    :ws-origins - which pages may open a websocket; none: those whose Origin is the Host (a
      collection of origins, such as \"https://shop.example\", or :any)
    :ws-max-message-bytes - how long a websocket's message may be (default 1048576) (an
      integer from 1 to 2147483647)
    :ws-idle-timeout-ms - how many ms a websocket may be silent (default 300000) (an integer
      from 1 to 2147483647)
    :engine-options - what only one engine has; see doc/reference/options.md (a map; default
      {})"
  ([handler] (run-server handler {}))
  ([handler options]
   (when (or (not (ifn? handler)) (and (map? handler) (not (record? handler))))
     (throw (spi/invalid (str "run-server takes a Ring handler first, a function of a request map; "
                              "not " (spi/text handler))
              {:value handler, :accepts "a function"})))
   (let [engine (engines/named (or (:engine options) :jdk))]
     (Server. (lifecycle/start engine (options/checked engine options) handler)))))

(defn stop!
  "Stops the server: ready? is false at once and responses carry Connection: close; after
  :drain-delay-ms the listener closes and kept connections get 503. Streams of events end then, or
  :drain-streams-ms later, and websockets are closed with 1001; what else is in flight has
  :shutdown-timeout-ms, then it is interrupted. Blocks until all that is done, and returns nil; from
  inside one of the server's own handlers, a task of the request's scope, or the observer, it
  returns at once. On another thread that a request waits for (of a future, or the one that calls
  respond) it cannot know that: both wait until :shutdown-timeout-ms. A second call waits for the
  first.
  Throws InterruptedException where the wait is interrupted; the server stops all the same. Throws
  an OutOfMemoryError where no thread can be started; the server goes on then."
  [server]
  (lifecycle/stop! (life server)))

(defn join
  "Blocks until the server has stopped, and returns nil; at once where it has. Stops nothing itself.
  Throws InterruptedException."
  [server]
  (lifecycle/join (life server)))

(defn port
  "Returns the port on which HTTP is served, an integer, the one that was found where 0 was asked
  for; nil without HTTP."
  [server]
  (lifecycle/port (life server)))

(defn ssl-port
  "Returns the port on which HTTPS is served, or nil."
  [server]
  (lifecycle/ssl-port (life server)))

(defn status
  "Returns what the server counts as a map. :state is :running, :draining or :stopped; all else are
  integers. Under way now: :in-flight requests, :queued of them, :streams, :overdue (answered
  already, but their handler's thread has not ended). Since the start: :served, :failed, :shed,
  :timed-out, those whose clients were too slow among them, :disconnected, :observer-errors,
  :observer-dropped."
  [server]
  (lifecycle/status (life server)))

(defn ready?
  "True if the server should be sent requests, which a readiness probe asks: from its start until
  stop! is called."
  [server]
  (= :running (:state (status server))))

(defn native
  "Returns the engine's own server object: :jdk's HttpServer, Jetty's Server, a vector of Tomcat's
  Http11NioProtocols, Helidon's WebServer (that of :port where there is :ssl-port too), :http-kit's
  ServerSocketChannel."
  [server]
  (lifecycle/native (life server)))

(defn capabilities
  "Returns the set of what an engine, given by its keyword or as a server, has of :websockets, :h2,
  :tls, :client-certificates, :disconnect, :http-1.0 and :blocking-send. Everything else each engine
  has. Throws :thrum/invalid for a keyword that names no engine, or one that is not on the
  class path."
  [engine-or-server]
  (:capabilities (if (keyword? engine-or-server)
                   (engines/named engine-or-server)
                   (lifecycle/engine (life engine-or-server)))))

(defn sse
  "Returns a response map of server-sent events: (f events) is called on the request's thread and
  sends with send!; when it returns, the stream ends. The request leaves :max-concurrent for
  :max-streams, beyond which :on-overload answers, and has no deadline any more. Throws
  :thrum/invalid unless f is a function. Options: :heartbeat-ms (15000; nil: none), every how many
  ms a comment is sent; :status (200); :headers, beside those of the format."
  ([f] (sse {} f))
  ([options f]
   (core-options/function f)
   (events/response options f)))

(def ^:private log-rows
  {:format {:check access-log/formats
            :accepts ":common, :combined or :json"
            :default ":common"
            :doc (str "of a line; :combined adds the referer, the user agent, the seconds and the "
                      "request's id; :json writes an object with all that, and the class of what "
                      "was thrown")}
   :queue {:check pos-int?
           :accepts "a positive integer"
           :default "10000"
           :doc (str "how many lines may wait to be written; those beyond are dropped, and counted "
                     "in status as :observer-dropped")}})

(defn access-log
  "Returns an :observer that writes one line a request, without query, cookies or credentials; what
  the client sent is escaped, and cut where it is long. to: a file, as path or java.io.File, which
  is appended to, or a java.io.Writer, which stays open. Throws IOException.

  Options:
    :format - of a line; :combined adds the referer, the user agent, the seconds and the
      request's id; :json writes an object with all that, and the class of what was thrown
      (:common, :combined or :json; default :common)
    :queue - how many lines may wait to be written; those beyond are dropped, and counted in
      status as :observer-dropped (a positive integer; default 10000)"
  ([to] (access-log to {}))
  ([to options]
   (core-options/check log-rows options (keys log-rows))
   (access-log/observer to (merge {:format :common, :queue 10000} options))))

(defn send!
  "Sends to the events of sse: a string, or a map of :event, :data, :id, :retry; or to a websocket:
  a CharSequence as text, bytes or a ByteBuffer, whose position stays, as binary. Blocks until it is
  written, after what other threads send, and returns nil. Throws IOException when the client has
  gone or the stream has ended; InterruptedException, and sends no event, where the calling thread
  is interrupted before it is its turn; and :thrum/invalid for a message of another kind, a line
  break in :event, :id or :retry, or half of a surrogate pair in a websocket's text."
  [to message]
  (cond (instance? Events to) (events/send! to message)
        (instance? WebSocket to) (websocket/send! to message)
        :else (throw
                (spi/invalid (str "What is sent to is the events of sse, or a websocket, not "
                               (spi/text to))
                  {:value to}))))

(defn- socket [x]
  (core-options/instance WebSocket "a websocket" x))

(defn ping!
  "Sends a websocket's ping, with bytes or a ByteBuffer, at most 125, or nothing. Blocks until it is
  written, and returns nil. Throws IOException when the websocket is closed, and :thrum/invalid for
  other data."
  ([ws] (ping! ws nil))
  ([ws data] (websocket/ping! (socket ws) data)))

(defn pong!
  "Sends a websocket's pong, as ping! does. A ping is answered by itself where the listener has no
  :on-ping."
  ([ws] (pong! ws nil))
  ([ws data] (websocket/pong! (socket ws) data)))

(defn close!
  "Closes a websocket, with a code, one of RFC 6455, 7.4, or from 3000 to 4999, and a reason, a
  string of at most 123 bytes (1000 and none when not given). Blocks until the closing frame is
  written, behind a message that another thread sends, and returns nil; does nothing when it is
  closed already. Throws IOException when the closing frame cannot be sent, and :thrum/invalid for
  another code or reason. The listener's :on-close follows."
  ([ws] (close! ws 1000 ""))
  ([ws code reason] (websocket/close! (socket ws) code reason)))

(defn open?
  "True if a websocket can still be sent to: neither side has closed it, as far as is known. A
  client that has gone without a close may be noticed only later."
  [ws]
  (websocket/open? (socket ws)))
