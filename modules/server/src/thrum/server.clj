(ns thrum.server
  "Ring handlers on virtual threads: one run-server over proven engines, bounded, with deadlines and
  an orderly end.

  Every request runs on a virtual thread of its own, inside a scope of Thrum: what its handler forks
  ends with it."
  (:require
   [clojure.core.protocols :as protocols]
   [clojure.string :as str]
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

(deftype Server [life]
  AutoCloseable
  (close [_] (lifecycle/stop! life))
  IFn
  (invoke [_] (lifecycle/stop! life))
  (applyTo [_ args]
    (when (seq args)
      (throw (spi/invalid "A server is called without arguments; that stops it" {:value args})))
    (lifecycle/stop! life))
  protocols/Datafiable
  (datafy [_] (print-status life)))

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
  at each request. The options:

  {{options}}

  Throws :thrum/invalid for an unknown option, a wrong value, or what the engine lacks;
  :thrum/start-failed, with the cause, when the port is in use, a key store cannot be read, and the
  like."
  ([handler] (run-server handler {}))
  ([handler options]
   (core-options/function handler)
   (let [engine (engines/named (:engine options :jdk))]
     (Server. (lifecycle/start engine (options/checked engine options) handler)))))

(alter-meta! #'run-server
             update
             :doc str/replace
             "{{options}}" (str/join "\n" (map #(str "  " %) (options/documented))))

(defn stop!
  "Stops the server: ready? is false at once and responses carry Connection: close; after
  :drain-delay-ms the listener closes and kept connections get 503. Streams of events end then, or
  :drain-streams-ms later, and websockets are closed with 1001; what else is in flight has
  :shutdown-timeout-ms, then it is interrupted. Blocks until all that is done; from inside one of
  the server's own handlers it returns at once. Nothing when it has been stopped."
  [server]
  (lifecycle/stop! (life server)))

(defn join
  "Blocks until the server has stopped. Throws InterruptedException."
  [server]
  (lifecycle/join (life server)))

(defn port
  "Returns the port on which HTTP is served, the one that was found where 0 was asked for; nil
  without HTTP."
  [server]
  (lifecycle/port (life server)))

(defn ssl-port
  "Returns the port on which HTTPS is served, or nil."
  [server]
  (lifecycle/ssl-port (life server)))

(defn status
  "Returns what the server counts. :state is :running, :draining or :stopped. Under way now:
  :in-flight requests, :queued of them, :streams, :overdue (answered already, but their handler's
  thread has not ended). Since the start: :served, :failed, :shed, :timed-out, those whose clients
  were too slow among them, :disconnected, :observer-errors, :observer-dropped."
  [server]
  (lifecycle/status (life server)))

(defn ready?
  "Tells whether the server should be sent requests: what a readiness probe asks."
  [server]
  (= :running (:state (status server))))

(defn native
  "Returns the engine's own server object."
  [server]
  (lifecycle/native (life server)))

(defn capabilities
  "Returns what an engine, given by its keyword or as a running server, has of :websockets, :h2,
  :tls, :client-certificates, :disconnect, :http-1.0 and :blocking-send. Everything else each engine
  has."
  [engine-or-server]
  (:capabilities (if (keyword? engine-or-server)
                   (engines/named engine-or-server)
                   (lifecycle/engine (life engine-or-server)))))

(defn sse
  "Returns a response of server-sent events: (f events) is called on the request's thread and sends
  with send!; when it returns, the stream ends. The request leaves :max-concurrent for :max-streams,
  and has no deadline any more. Options: :heartbeat-ms (15000; nil: none) after which silence a
  comment is sent, :status, :headers."
  ([f] (sse {} f))
  ([options f]
   (core-options/function f)
   (events/response options f)))

(def ^:private log-rows
  {:format {:check access-log/formats, :accepts ":common, :combined or :json"}
   :queue {:check pos-int?, :accepts "a positive integer"}})

(defn access-log
  "Returns an :observer that writes one line a request, without query, cookies or credentials; what
  the client sent is escaped, and cut where it is long. to: a file, as path or java.io.File, which
  is appended to, or a java.io.Writer, which stays open. Options: :format, :common (the default),
  :combined, which is followed by the seconds and the request's id, or :json; :queue (10000), how
  many lines may wait to be written; those beyond are dropped and counted, in status as
  :observer-dropped. Throws IOException."
  ([to] (access-log to {}))
  ([to options]
   (core-options/check log-rows options (keys log-rows))
   (access-log/observer to (merge {:format :common, :queue 10000} options))))

(defn send!
  "Sends to the events of sse: a string, or a map of :event, :data, :id, :retry; or to a websocket:
  a CharSequence as text, bytes or a ByteBuffer as binary. Blocks until it is written. Throws
  IOException when the client has gone."
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
  "Sends a websocket's ping, with bytes or without."
  ([ws] (ping! ws nil))
  ([ws data] (websocket/ping! (socket ws) data)))

(defn pong!
  "Sends a websocket's pong, with bytes or without. A ping is answered by itself where the listener
  has no :on-ping."
  ([ws] (pong! ws nil))
  ([ws data] (websocket/pong! (socket ws) data)))

(defn close!
  "Closes a websocket, with a code and a reason (RFC 6455, 7.4; 1000 when not given)."
  ([ws] (close! ws 1000 ""))
  ([ws code reason] (websocket/close! (socket ws) code reason)))

(defn open?
  "Tells whether a websocket can still be sent to."
  [ws]
  (websocket/open? (socket ws)))
