(ns thrum.watch.impl.http
  "The server: the JDK's, on a few platform threads of its own, so that it answers while no virtual
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
   (java.io IOException OutputStream)
   (java.net BindException InetAddress InetSocketAddress URLDecoder)
   (java.nio.charset StandardCharsets)
   (java.util.concurrent ConcurrentHashMap Executor ExecutorService Executors ScheduledExecutorService ThreadFactory TimeUnit)
   (java.util.concurrent.atomic AtomicInteger)))

(set! *warn-on-reflection* true)

;; Responses: maps of :status, :type, :body (a string) and :headers

(defn as-json
  "Returns the response with data as JSON; keywords without their colon."
  [status data]
  {:status status, :type "application/json; charset=utf-8"
   :body (json/write-str data :key-fn #(if (keyword? %) (name %) (str %)) :escape-slash false)})

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
        head? (= "HEAD" (.getRequestMethod exchange))]
    (send-headers! exchange response (if (or head? (zero? (alength bytes))) -1 (alength bytes)))
    (when-not (or head? (zero? (alength bytes)))
      (.write (.getResponseBody exchange) bytes))
    (.close exchange)))

;; Slow clients: the JDK's server reads a request on a thread of the pool, for as long as it takes.
;; An interrupt closes the connection.

(def ^:private ^:const reading-ms 2000)
(def ^:private ^:const answering-ms 30000)

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
  "Interrupts the threads whose time is over."
  [^ConcurrentHashMap deadlines]
  ;; A thread that leaves takes its entry out first, and waits there while it is interrupted.
  (let [when-late (fn [^Thread thread deadline]
                    (if (neg? (- (System/nanoTime) (long deadline)))
                      deadline
                      (.interrupt thread)))]
    (run! #(.computeIfPresent deadlines % when-late) (.keySet deadlines))))

;; Signing in: the page's cookie

(defn- page [file]
  {:status 200
   :type "text/html; charset=utf-8"
   :body (slurp (io/resource (str "thrum/watch/" file)))})

(def ^:private ^:const most-body 4096)

(defn- decoded [^String text]
  (try (URLDecoder/decode text StandardCharsets/UTF_8) (catch IllegalArgumentException _)))

(defn- posted-token [^HttpExchange exchange]
  (let [body (String. (.readNBytes (.getRequestBody exchange) most-body) StandardCharsets/UTF_8)]
    (when-some [[_ token] (re-matches #"token=([^&]*)" body)]
      (decoded token))))

(defn- sign-in [exchange {:keys [token session]}]
  (if (access/same? (posted-token exchange) token)
    {:status 303, :body "", :headers {"Location" "/", "Set-Cookie" (access/cookie session)}}
    (assoc (page "sign-in.html") :status 401)))

;; Server-sent events

(def ^:private ^:const most-streams 16)

(defn- stream! [^HttpExchange exchange ^ConcurrentHashMap streams]
  (if (<= (long most-streams) (.size streams))
    (send! exchange (sentence 503 (str "There are " most-streams " readers of events already")))
    (do
      (send-headers! exchange {:status 200, :type "text/event-stream"} 0)
      (.put streams exchange true))))

(defn- event! [^ConcurrentHashMap streams ^HttpExchange exchange ^String text]
  (try
    (let [^OutputStream out (.getResponseBody exchange)]
      (.write out (.getBytes (str "data: " text "\n\n") StandardCharsets/UTF_8))
      (.flush out))
    (catch IOException _
      (.remove streams exchange)
      (.close exchange))))

(defn- events! [{:keys [^ConcurrentHashMap streams deadlines event]}]
  (when-not (.isEmpty streams)
    (try
      (let [text (:body (as-json 200 (event)))]
        (run! (fn [exchange]
                (in-time! deadlines reading-ms #(event! streams exchange text)))
              (.keySet streams)))
      (catch Throwable t (spi/uncaught! t)))))

;; Routes

(defn- answer
  "Returns the response, or nil where the exchange has become a stream."
  [^HttpExchange exchange {:keys [access hosts health routes streams]}]
  (let [path (.getPath (.getRequestURI exchange))
        method (.getRequestMethod exchange)
        header (header exchange)
        route (routes path)]
    (cond
      (= "/health" path) (health)
      (not (access/known-host? hosts header)) (sentence 403 "This server has another name")
      (= ["POST" "/sign-in"] [method path]) (sign-in exchange access)
      (not (#{"GET" "HEAD"} method)) (sentence 405 "Only GET and HEAD: this server changes nothing")
      (not (access/allowed? access header))
      (if (= "/" path)
        (assoc (page "sign-in.html") :status 401)
        (assoc (sentence 401 "A token is needed: Authorization: Bearer ...")
               :headers {"WWW-Authenticate" "Bearer"}))
      (= "/" path) (page "page.html")
      (= "/events" path) (stream! exchange streams)
      route (route (.getQuery (.getRequestURI exchange)))
      :else (sentence 404
                      (str "There are /, /events, " (str/join ", " (sort (keys routes))))))))

(defn- handle! [^HttpExchange exchange {:keys [deadlines] :as options}]
  (try
    (when-not (= "POST" (.getRequestMethod exchange)) (allow! deadlines answering-ms))
    (when-some [response (answer exchange options)]
      (when (:status response) (send! exchange response)))
    (catch IOException _ (.close exchange))
    (catch Throwable t
      (spi/uncaught! t)
      (try
        (send! exchange (sentence 500 "This could not be read now"))
        (catch Throwable _ (.close exchange))))))

;; Starting and stopping

(def ^:private ^:const most-threads 16)

(defn- threads ^ThreadFactory [name]
  (let [n (AtomicInteger.)]
    (reify ThreadFactory
      (newThread [_ f] (spi/platform-thread (str name "-" (.incrementAndGet n)) f)))))

(defn- why [e]
  (if (instance? BindException e)
    "the port is in use, or the address is not this machine's"
    (ex-message e)))

(defn- bind [host port]
  (try
    (HttpServer/create (InetSocketAddress. (InetAddress/getByName host) (int port)) 0)
    (catch IOException e
      (throw (ex-info (str "Cannot listen on " host ", port " port ": " (why e))
                      {:type :thrum/start-failed, :host host, :port port}
                      e)))))

(defprotocol Server
  (port [server] "Returns its port.")
  (stop! [server] "Ends it. Blocks until its threads have ended."))

(defn- end! [^ExecutorService pool]
  (.shutdownNow pool)
  (.awaitTermination pool 10 TimeUnit/SECONDS))

(defn start!
  "Starts a server. :host, :port (0: any); :access - {:token, :session}; :hosts - see access/hosts;
  :health - a function that returns a response; :routes - by path, functions of the query; :event -
  a function that returns the data of an event, called once a second while there are readers. Throws
  :thrum/start-failed."
  [{:keys [host port] :as options}]
  (let [^HttpServer server (bind host port)
        deadlines (ConcurrentHashMap.)
        options (assoc options :streams (ConcurrentHashMap.) :deadlines deadlines)
        pool (Executors/newFixedThreadPool most-threads (threads "thrum-watch-http"))
        ^ScheduledExecutorService ticker (Executors/newScheduledThreadPool
                                           2
                                           (threads "thrum-watch-events"))]
    (.createContext server "/" (reify HttpHandler (handle [_ exchange] (handle! exchange options))))
    (.setExecutor server
                  (reify Executor
                    (execute [_ task]
                      (.execute pool #(in-time! deadlines reading-ms (fn [] (.run task)))))))
    (.scheduleWithFixedDelay ticker #(events! options) 0 1 TimeUnit/SECONDS)
    (.scheduleWithFixedDelay ticker #(interrupt-late! deadlines) 0 200 TimeUnit/MILLISECONDS)
    (.start server)
    (reify Server
      (port [_] (.getPort (.getAddress server)))
      (stop! [_]
        (end! ticker)
        (.stop server 0)
        (end! pool)))))
