(ns thrum.server.engine.http-kit.library
  "All that is known of http-kit: its classes, looked up when a server starts, so that nothing here
  needs them on the classpath.

  http-kit's public functions write error pages with messages, hold a whole response in memory, and
  cannot cut a connection. So we go one floor lower: its loop reads and decodes requests, and all
  bytes that go out are ours. A few fields are private."
  (:require
   [thrum.server.engine.http-kit.fields :as fields]
   [thrum.spi :as spi])
  (:import
   (clojure.lang DynamicClassLoader)
   (java.lang ReflectiveOperationException System$Logger System$Logger$Level)
   (java.lang.reflect Constructor Field InvocationHandler InvocationTargetException Method Proxy)
   (java.nio ByteBuffer)
   (java.nio.channels SelectionKey Selector ServerSocketChannel)))

(set! *warn-on-reflection* true)

(def ^:private coordinate "http-kit/http-kit {:mvn/version \"2.9.0\"}")

;; Looking up

(defn- class-named ^Class [n]
  (Class/forName (str "org.httpkit." n) true (clojure.lang.RT/baseLoader)))

(defn- field ^Field [class n]
  (doto (.getDeclaredField (class-named class) n) (.setAccessible true)))

(defn- method
  ^Method [class n & parameters]
  (doto (.getDeclaredMethod (class-named class) n (into-array Class parameters))
    (.setAccessible true)))

(defn- constructor ^Constructor [class & parameters]
  (.getConstructor (class-named class) (into-array Class parameters)))

(defn- handles
  "Returns what this engine uses of http-kit, by name. Throws ReflectiveOperationException where
  something is not there."
  []
  {:request->channel (field "server.HttpRequest" "channel")
   :request->headers (field "server.HttpRequest" "headers")
   :request->keep-alive (field "server.HttpRequest" "isKeepAlive")
   :request->websocket (field "server.HttpRequest" "isWebSocket")
   :request->method (field "server.HttpRequest" "method")
   :request->uri (field "server.HttpRequest" "uri")
   :request->query (field "server.HttpRequest" "queryString")
   :request->protocol (method "server.HttpRequest" "protocol")
   :channel->key (field "server.AsyncChannel" "key")
   :open-websocket (method "server.AsyncChannel" "sendHandshake" java.util.Map)
   :new-channel (constructor "server.AsyncChannel" SelectionKey (class-named "server.HttpServer"))
   :new-attachment (constructor "server.HttpAtta"
                                Integer/TYPE
                                Integer/TYPE
                                (class-named "server.ProxyProtocolOption")
                                Boolean/TYPE)
   :attachment->channel (field "server.ServerAtta" "channel")
   :attachment->decoder (field "server.HttpAtta" "decoder")
   :decoder->state (field "server.HttpDecoder" "state")
   :decoder->headers (field "server.HttpDecoder" "headers")
   :attachment->input (field "server.ServerAtta" "pendingInput")
   :decoder->reader (field "server.HttpDecoder" "lineReader")
   :reader->index (field "LineReader" "lineBufferIdx")
   :frame->data (field "server.Frame" "data")
   :respond (method "server.RespCallback" "run" (class (make-array ByteBuffer 0)))
   :status-line (method "HttpStatus" "getInitialLineBytes")
   :status (method "HttpStatus" "valueOf" Integer/TYPE)
   :server->selector (field "server.HttpServer" "selector")
   :close-key (method "server.HttpServer" "finishCloseDelimitedResponse" SelectionKey)
   ;; New in 2.9: without it a connection's next request would run beside the one before.
   :in-progress (field "server.ServerAtta" "requestInProgress")})

(defn- absent [^Throwable cause]
  (ex-info (str "The engine :http-kit needs http-kit on the classpath: add " coordinate)
           {:type :thrum/invalid, :option :engine, :value :http-kit, :needs coordinate}
           cause))

(defn- unknown
  [^Throwable cause]
  (ex-info
    (str
      "The engine :http-kit needs http-kit 2.9.0 or a release like it; the one on the classpath has no "
      (ex-message cause))
    {:type :thrum/invalid, :option :engine, :value :http-kit, :needs coordinate}
    cause))

(defn on-classpath?
  "Tells whether there is an http-kit, of whatever release."
  []
  (try
    (some? (class-named "server.HttpServer"))
    (catch ClassNotFoundException _ false)))

(defn library
  "Returns what is used of http-kit, by name. Throws :thrum/invalid where it is not on the
  classpath, or older than 2.9."
  []
  (try
    (class-named "server.HttpServer")
    (catch ClassNotFoundException e (throw (absent e))))
  (try
    (handles)
    (catch ReflectiveOperationException e (throw (unknown e)))))

;; Using

(defn value
  "Returns the value of the field of that name."
  [lib k object]
  (.get ^Field (lib k) object))

(defn call
  "Returns what the method of that name returns; throws what it throws."
  [lib k object & arguments]
  (try
    (.invoke ^Method (lib k) object (object-array arguments))
    (catch InvocationTargetException e (throw (.getCause e)))))

(defn- assign! [lib k object value]
  (.set ^Field (lib k) object value))

(defn- make [lib k & arguments]
  (.newInstance ^Constructor (lib k) (object-array arguments)))

(defn- implement
  "Returns an object of the interface; each call of a method becomes (f name arguments)."
  [^Class interface f]
  (Proxy/newProxyInstance (.getClassLoader interface) (into-array Class [interface])
                          (reify InvocationHandler
                            (invoke [this _ method arguments]
                              (case (.getName method)
                                "hashCode" (System/identityHashCode this)
                                "equals" false
                                "toString" (str interface)
                                (f (.getName method) (vec arguments)))))))

(defn- constant [class n]
  (.get (.getField (class-named class) n) nil))

(def ^:private ^System$Logger logger (System/getLogger "thrum.server"))

(defn- context-logger [^System$Logger$Level level]
  (implement (class-named "logger.ContextLogger")
             (fn [_ [event t]]
               (.log logger level (str "http-kit: " event) ^Throwable t))))

(defn- event-handler
  "Returns http-kit's handler. Its calls come from http-kit's loop, one after the other."
  [{:keys [on-request on-frame on-close]}]
  (implement
    (class-named "server.IHandler")
    (fn [n arguments]
      (case [n (count arguments)]
        ["handle" 2]
        (let [[a b] arguments]
          (if (instance? (class-named "server.HttpRequest") a) (on-request a b) (on-frame a b)))
        ["clientClose" 2] (on-close (first arguments) (second arguments) "")
        ["clientClose" 3] (apply on-close arguments)
        nil)
      nil)))

(defn- bound-channel
  "Returns what http-kit binds and never accepts from: our own listener has a backlog, and counts
  its connections."
  ^ServerSocketChannel []
  (ServerSocketChannel/open))

(def ^:private here (the-ns 'thrum.server.engine.http-kit.library))

(defn- server-class
  "Returns a class that extends http-kit's server. proxy would need http-kit when this file is
  compiled, and takes from its caller's bindings in which namespace it is, and where classes are
  defined."
  []
  (with-bindings {#'*ns* here
                  clojure.lang.Compiler/LOADER (DynamicClassLoader. (clojure.lang.RT/baseLoader))}
    (get-proxy-class (class-named "server.HttpServer"))))

(defn server
  "Returns an http-kit server that has not been started and listens nowhere: connections are given
  to it by adopt!. All it would write itself goes to (on-write key buffers) instead: pages for
  requests it refuses, 100 Continue, closing frames."
  [{:keys [max-line max-message on-write], :as hooks}]
  (let [unused (bound-channel)
        nowhere (java.net.InetSocketAddress. (java.net.InetAddress/getLoopbackAddress) 0)
        server (construct-proxy
                 (server-class)
                 (implement (class-named "server.HttpServer$AddressFinder") (fn [_ _] nowhere))
                 (implement (class-named "server.HttpServer$ServerChannelFactory") (fn [_ _] unused))
                 (event-handler hooks)
                 (int 0)
                 (int max-line)
                 (int max-message)
                 (constant "server.ProxyProtocolOption" "DISABLED")
                 nil
                 false
                 (context-logger System$Logger$Level/WARNING)
                 (context-logger System$Logger$Level/DEBUG)
                 (constant "logger.EventLogger" "NOP")
                 (constant "logger.EventNames" "DEFAULT"))]
    (init-proxy server
                {"tryWrite" (fn ([_ key buffers] (on-write key buffers))
                                ([_ key _ buffers] (on-write key buffers)))})
    (.close unused)
    server))

(defn selector
  "Returns the selector of an http-kit server."
  ^Selector [lib server]
  (value lib :server->selector server))

(defn- decoder
  "Returns the decoder of a connection's requests, nil where frames are decoded."
  [lib ^SelectionKey key]
  (let [attachment (.attachment key)]
    (when (instance? (.getDeclaringClass ^Field (lib :attachment->decoder)) attachment)
      (value lib :attachment->decoder attachment))))

(defn expect-head!
  "Prepares the connection for the head of the next request, after http-kit has done so."
  [lib key]
  (some->> (decoder lib key) (#(assign! lib :decoder->headers % (fields/fields)))))

(defn take-input!
  "Returns what http-kit has read beyond the head of the request that is under way, ready to be read
  from."
  ^ByteBuffer [lib ^SelectionKey key]
  (let [attachment (.attachment key)
        ^ByteBuffer input (value lib :attachment->input attachment)]
    (assign! lib :attachment->input attachment nil)
    (if input (.flip input) (ByteBuffer/allocate 0))))

(defn return-input!
  "Gives back what is the next request's."
  [lib ^SelectionKey key ^ByteBuffer input]
  (when (.hasRemaining input)
    (assign! lib :attachment->input (.attachment key) (.compact input))))

(defn adopt!
  "Gives a connection, in non-blocking mode, to the server; (known key) is called before anything is
  read from it."
  [lib server ^java.nio.channels.SocketChannel socket {:keys [max-line]} known]
  (let [selector (selector lib server)
        attachment (make lib :new-attachment (int 0) (int max-line) nil false)
        key (.register socket selector 0 attachment)]
    (assign! lib :attachment->channel attachment (make lib :new-channel key server))
    (expect-head! lib key)
    (known key)
    (.interestOps key SelectionKey/OP_READ)
    (.wakeup selector)))

(defn start!
  "Starts the server's loop."
  [lib server]
  ;; A channel that a selector knows is closed for good when the selector looks again: until then it
  ;; would still listen.
  (.selectNow (selector lib server))
  (clojure.lang.Reflector/invokeInstanceMethod server "start" (object-array 0)))

(defn stop!
  "Closes all connections and returns when the server's loop has ended."
  [server]
  (clojure.lang.Reflector/invokeInstanceMethod server "stop" (object-array [(int 1)]))
  (clojure.lang.Reflector/invokeInstanceMethod server "join" (object-array 0)))

(defn key-of
  "Returns the selection key of an http-kit channel."
  ^SelectionKey [lib channel]
  (value lib :channel->key channel))

(defn status-line
  "Returns the first line of a response, with its end."
  ^bytes [lib status]
  (call lib :status-line (call lib :status nil (int status))))

(defn progress
  "Returns :idle where nothing of a request has come, :head where a part of its head has. Looked at
  from outside the loop, so it may be a moment old."
  [lib key]
  (when-let [decoder (decoder lib key)]
    (let [index (value lib :reader->index (value lib :decoder->reader decoder))]
      (if (and (zero? (long index)) (= "READ_INITIAL" (str (value lib :decoder->state decoder))))
        :idle
        :head))))

(defn check-address!
  "Throws :thrum/invalid for a port that nobody can be asked to serve."
  [port]
  (when-not port
    (throw (spi/invalid "http-kit serves HTTP alone: give a :port"
             {:option :port, :value port}))))
