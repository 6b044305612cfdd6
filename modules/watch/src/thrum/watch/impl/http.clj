(ns thrum.watch.impl.http
  "The server: the JDK's, on platform threads of its own, so that it answers while no virtual
  thread can run."
  {:no-doc true}
  (:require
   [clojure.data.json :as json]
   [clojure.java.io :as io]
   [clojure.string :as str]
   [thrum.spi :as spi]
   [thrum.watch.impl.access :as access])
  (:import
   (com.sun.net.httpserver HttpExchange HttpHandler HttpServer)
   (java.io IOException)
   (java.net BindException InetAddress InetSocketAddress URLDecoder)
   (java.nio.charset StandardCharsets)
   (java.util HashMap)
   (java.util.concurrent ArrayBlockingQueue BlockingQueue CompletableFuture ConcurrentHashMap Executor ExecutorService Executors LinkedBlockingQueue ScheduledExecutorService Semaphore ThreadFactory ThreadPoolExecutor TimeUnit)
   (java.util.concurrent.atomic AtomicInteger)))

(set! *warn-on-reflection* true)

;; Responses: maps of :status, :type, :body (a string) and :headers

;; Lines of stacks recur by the thousand: each is escaped once in a response.
(deftype ^:private Stack [lines escaped]
  json/JSONWriter
  (-write [_ out _]
    (.append ^Appendable out \[)
    (reduce (fn [separator line]
              (doto ^Appendable out (.append ^String separator) (.append ^String (escaped line)))
              ",")
            ""
            lines)
    (.append ^Appendable out \])))

(defn- remembering-map
  "Returns f, which remembers what it has returned. For one thread."
  [f]
  (let [known (HashMap.)]
    (fn [x] (or (.get known x) (let [y (f x)] (.put known x y) y)))))

(defn- writable
  "Returns a function of a key and its value to what is written. JSON has no number that is not
  finite."
  []
  (let [escaped (remembering-map #(json/write-str % :escape-slash false))]
    (fn [k v]
      (cond
        (and (= :stack k) (vector? v)) (Stack. v escaped)
        (and (float? v) (not (Double/isFinite (double v)))) (str v)
        :else v))))

(defn- write-class
  "Writes the class of what JSON has no form for."
  [x ^Appendable out _]
  (.append out (str \" (.getName (class x)) \")))

(defn as-json
  "Returns the response with data as JSON; keywords without their colon. Of what has no form there:
  its class."
  [status data]
  {:status status, :type "application/json; charset=utf-8"
   :body (json/write-str data
                         :key-fn #(if (keyword? %) (name %) (str %))
                         :value-fn (writable)
                         :default-write-fn write-class
                         :escape-slash false)})

(defn- sentence [status text]
  (as-json status {:error text}))

(def ^:private safety
  {"Cache-Control" "no-store"
   "X-Content-Type-Options" "nosniff"
   "X-Frame-Options" "DENY"
   "Referrer-Policy" "no-referrer"
   "Content-Security-Policy"
   (str "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'")})

(defn- header [^HttpExchange exchange]
  #(.getFirst (.getRequestHeaders exchange) %))

(defn- send-headers! [^HttpExchange exchange {:keys [type headers status]} length]
  (let [to-send (.getResponseHeaders exchange)]
    (doseq [[k v] (merge safety {"Content-Type" type} headers) :when v]
      (.set to-send k v))
    (.sendResponseHeaders exchange (int status) (long length))))

(defn- send! [^HttpExchange exchange {:keys [^String body] :as response}]
  (let [bytes (.getBytes body StandardCharsets/UTF_8)
        body? (not (or (= "HEAD" (.getRequestMethod exchange)) (zero? (alength bytes))))]
    (send-headers! exchange response (if body? (alength bytes) -1))
    (when body?
      ;; The JDK's close swallows a failure of its own flush, and forgets the connection then.
      (doto (.getResponseBody exchange) (.write bytes) .flush))
    (.close exchange)))

;; Slow clients: the JDK's server reads a request on a thread of the pool, for as long as it takes.
;; An interrupt closes the connection. Where all threads are taken, a request waits: one that has
;; been read for the grace gives way to it.

(def ^:private ^:const reading-ms 2000)
(def ^:private ^:const grace-ms 200)
(def ^:private ^:const answering-ms 30000)
(def ^:private ^:const most-threads 256)

(defn- allow!
  "Gives this thread so many ms from now on."
  [^ConcurrentHashMap deadlines ms]
  (.put deadlines (Thread/currentThread) (+ (System/nanoTime) (* 1000000 (long ms)))))

(defn- in-time!
  "Calls f, which is interrupted after so many ms, or when allow! says."
  [^ConcurrentHashMap deadlines ms f]
  (allow! deadlines ms)
  (try
    (f)
    (finally
      (.remove deadlines (Thread/currentThread))
      (Thread/interrupted))))

(defn- interrupt-late!
  "Interrupts the threads whose time is over, or will be in so many ms."
  [^ConcurrentHashMap deadlines ms]
  ;; A thread that leaves takes its entry out first, and waits there while it is interrupted.
  (let [over (+ (System/nanoTime) (* 1000000 (long ms)))
        when-late (fn [^Thread thread deadline]
                    (if (neg? (- over (long deadline))) deadline (.interrupt thread)))]
    (run! #(.computeIfPresent deadlines % when-late) (.keySet deadlines))))

(defn- make-room!
  "Interrupts the threads whose time is over; while requests wait for a thread, at the grace."
  [^ThreadPoolExecutor pool deadlines]
  (interrupt-late! deadlines
                   (if (.isEmpty (.getQueue pool)) 0 (- (long reading-ms) (long grace-ms)))))

;; Signing in: the page's cookie

(defn- page [file]
  {:status 200
   :type "text/html; charset=utf-8"
   :body (slurp (io/resource (str "thrum/watch/" file)))})

(defn- decoded [^String text]
  (try (URLDecoder/decode text StandardCharsets/UTF_8) (catch IllegalArgumentException _)))

(defn- posted-token [body]
  (when-some [[_ token] (re-matches #"token=([^&]*)" body)]
    (decoded token)))

(defn- sign-in [body {:keys [token] :as access}]
  (if (access/same? (posted-token body) token)
    {:status 303, :body "", :headers {"Location" "/", "Set-Cookie" (access/cookie access)}}
    (assoc (page "sign-in.html") :status 401)))

;; Server-sent events: each reader keeps a thread of the pool, so that none waits for another.

(def ^:private ^:const most-streams 16)

(defn- send-events!
  "Sends what the queue has, each within its time, until that fails, or the thread is interrupted."
  [^HttpExchange exchange ^BlockingQueue events ^ConcurrentHashMap deadlines]
  (send-headers! exchange {:status 200, :type "text/event-stream"} 0)
  (let [out (.getResponseBody exchange)]
    (loop []
      (.remove deadlines (Thread/currentThread))
      (let [^bytes event (.take events)]
        (allow! deadlines reading-ms)
        (doto out (.write event) .flush))
      (recur))))

(defn- stream!
  "Keeps the thread as long as there is the reader, and throws then; or returns a response."
  [exchange {:keys [^ConcurrentHashMap streams deadlines]}]
  ;; A reader that still takes an event misses the next.
  (let [events (ArrayBlockingQueue. 1)]
    (try
      (.put streams events true)
      (if (< (long most-streams) (.size streams))
        (sentence 503 (str "There are " most-streams " readers of events already"))
        (send-events! exchange events deadlines))
      (catch InterruptedException e (throw (IOException. e)))
      (finally (.remove streams events)))))

(defn- events! [{:keys [^ConcurrentHashMap streams event]}]
  (when-not (.isEmpty streams)
    (try
      (let [text (:body (as-json 200 (event)))
            bytes (.getBytes (str "data: " text "\n\n") StandardCharsets/UTF_8)]
        (run! #(.offer ^BlockingQueue % bytes) (.keySet streams)))
      (catch Throwable t (spi/uncaught! t)))))

;; Routes

;; A tree of a hundred thousand tasks has some 20 MB, which a slow reader holds.
(def ^:private ^:const most-readers 4)
(def ^:private ^:const turn-ms 1000)

(defn- send-route! [^HttpExchange exchange route {:keys [deadlines ^Semaphore readers]}]
  (allow! deadlines answering-ms)
  (if (.tryAcquire readers turn-ms TimeUnit/MILLISECONDS)
    (try
      (send! exchange (route (.getQuery (.getRequestURI exchange))))
      (finally (.release readers)))
    (send! exchange (sentence 503 (str "There are " most-readers " slow readers already"))))
  nil)

(defn- answer
  "Returns the response, or nil where it has been sent. Throws where it was a stream."
  [^HttpExchange exchange body {:keys [access hosts health routes] :as options}]
  (let [path (.getPath (.getRequestURI exchange))
        method (.getRequestMethod exchange)
        header (header exchange)
        route (routes path)]
    (cond
      (= "/health" path) (health)
      (not (access/known-host? hosts (.getAddress (.getLocalAddress exchange)) header))
      (sentence 403 "This server has another name")
      (= ["POST" "/sign-in"] [method path]) (sign-in body access)
      (not (#{"GET" "HEAD"} method)) (sentence 405 "Only GET and HEAD: this server changes nothing")
      (not (access/allowed? access header))
      (if (= "/" path)
        (assoc (page "sign-in.html") :status 401)
        (assoc (sentence 401 "A token is needed: Authorization: Bearer ...")
               :headers {"WWW-Authenticate" "Bearer"}))
      (= "/" path) (page "page.html")
      (= "/events" path) (if (= "HEAD" method)
                           {:status 200, :type "text/event-stream", :body ""}
                           (stream! exchange options))
      route (send-route! exchange route options)
      :else (sentence 404
                      (str "There are /, /events, " (str/join ", " (sort (keys routes))))))))

;; What handle! throws closes the connection. Closing the exchange does less: the JDK reads what is
;; left of the request's body first, which may throw, of a chunk of more than 31 bits an
;; IndexOutOfBoundsException, and leave the connection open; and where it fails to read or write,
;; the JDK closes the connection, but refers to it for good. So no body is left, and none is
;; chunked.

(def ^:private ^:const most-body 4096)

(defn- body-of
  "Returns the body of the request, as a string. Throws where it is chunked, too long, or ends
  early."
  [^HttpExchange exchange]
  (when ((header exchange) "Transfer-Encoding") (throw (IOException. "A chunked body")))
  (let [bytes (.readNBytes (.getRequestBody exchange) (inc (long most-body)))]
    (when (< (long most-body) (alength bytes)) (throw (IOException. "The body is too long")))
    (String. bytes StandardCharsets/UTF_8)))

(defn- handle! [^HttpExchange exchange options]
  (try
    (when-some [response (answer exchange (body-of exchange) options)]
      (send! exchange response))
    (catch IOException e (throw e))
    (catch Throwable t
      (spi/uncaught! t)
      (try
        (send! exchange (sentence 500 "This could not be read now"))
        (catch Throwable t (throw (IOException. t)))))))

;; Starting and stopping

(defn- threads ^ThreadFactory [name]
  (let [n (AtomicInteger.)]
    (reify ThreadFactory
      (newThread [_ f] (spi/platform-thread (str name "-" (.incrementAndGet n)) f)))))

(defn- why [e]
  (if (instance? BindException e)
    "the port is in use, or the address is not this machine's"
    (ex-message e)))

(defn properties
  "Returns the properties that the JDK's servers read when the first is made, for the whole JVM:
  what the engine :jdk of thrum.server, which may start later, needs by default. That engine refuses
  to be asked for others then."
  []
  (let [connections (str (spi/spare-descriptors 65536))]
    {"sun.net.httpserver.idleInterval" "60"
     "jdk.httpserver.maxConnections" connections
     "sun.net.httpserver.maxIdleConnections" connections
     "sun.net.httpserver.maxReqHeaders" "10000"
     "sun.net.httpserver.clockTick" "1000"
     "sun.net.httpserver.nodelay" "true"}))

(defn- set-properties! []
  (doseq [[k v] (properties)]
    (when-not (System/getProperty k) (System/setProperty k v))))

(defn- bind [host port]
  (set-properties!)
  (try
    (HttpServer/create (InetSocketAddress. (InetAddress/getByName host) (int port)) 0)
    (catch IOException e
      (throw (ex-info (str "Cannot listen on " host ", port " port ": " (why e))
                      {:type :thrum/start-failed, :host host, :port port}
                      e)))))

(defprotocol Server
  (port [server] "Returns its port.")
  (stop! [server] "Ends it. Blocks until its threads have ended."))

(defn- new-pool ^ThreadPoolExecutor []
  (doto (ThreadPoolExecutor. most-threads most-threads 10 TimeUnit/SECONDS (LinkedBlockingQueue.)
                             (threads "thrum-watch-http"))
    (.allowCoreThreadTimeOut true)))

(defn- end! [^ExecutorService pool]
  (.shutdownNow pool)
  (.awaitTermination pool 10 TimeUnit/SECONDS))

(defn- serving
  "Has the server, which is bound, answer by the threads of the pool."
  [^HttpServer server {:keys [deadlines] :as options} ^ExecutorService pool ticker]
  (let [options (assoc-in options [:access :port] (.getPort (.getAddress server)))]
    (.createContext server "/" (reify HttpHandler (handle [_ exchange] (handle! exchange options))))
    (.setExecutor server
                  (reify Executor
                    (execute [_ task]
                      (.execute pool #(in-time! deadlines reading-ms (fn [] (.run task)))))))
    ;; Its own thread is a daemon where the one that starts it is: else no program would end.
    (.join (CompletableFuture/runAsync #(.start server) ticker))
    (reify Server
      (port [_] (.getPort (.getAddress server)))
      (stop! [_]
        (try
          (.shutdownNow ^ExecutorService ticker)
          (.stop server 0)
          (end! ticker)
          (finally (end! pool)))))))

(defn start!
  "Starts a server. :host, :port (0: any); :access - {:token, :session}; :hosts - see access/hosts;
  :health - a function that returns a response; :routes - by path, functions of the query; :event -
  a function that returns the data of an event, called once a second while there are readers. Throws
  :thrum/start-failed."
  [{:keys [host port] :as options}]
  (let [deadlines (ConcurrentHashMap.)
        options (assoc options
                       :streams (ConcurrentHashMap.)
                       :deadlines deadlines
                       :readers (Semaphore. most-readers))
        pool (new-pool)
        ^ScheduledExecutorService ticker (Executors/newScheduledThreadPool
                                           2
                                           (threads "thrum-watch-events"))]
    (try
      (.scheduleWithFixedDelay ticker #(events! options) 0 1 TimeUnit/SECONDS)
      (.scheduleWithFixedDelay ticker #(make-room! pool deadlines) 0 100 TimeUnit/MILLISECONDS)
      ;; Behind them: the JDK closes no server that is bound and was not started.
      (serving (bind host port) options pool ticker)
      (catch Throwable t
        (.shutdownNow ticker)
        (throw t)))))
