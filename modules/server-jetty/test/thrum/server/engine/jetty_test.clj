(ns thrum.server.engine.jetty-test
  "Jetty as an engine: its threads, its start and end, slow clients, and clients that go."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.impl.handshake :as handshake]
   [thrum.server.spi.watchdog :as watchdog]
   [thrum.server.tck.wire :as wire]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.keys :as keys]
   [thrum.test-kit.leak :as leak])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io ByteArrayOutputStream IOException)
   (java.net HttpURLConnection InetAddress ServerSocket Socket URI)
   (java.util.concurrent CountDownLatch TimeUnit)
   (java.util.zip GZIPOutputStream)
   (org.eclipse.jetty.io EndPoint)
   (org.eclipse.jetty.io.ssl SslConnection)
   (org.eclipse.jetty.server Server ServerConnector)
   (org.eclipse.jetty.server.handler.gzip GzipHandler)
   (org.eclipse.jetty.server.internal HttpConnection)))

(set! *warn-on-reflection* true)

(def ^:dynamic *engine*
  "The engine that is tested; Tomcat's tests bind it."
  :jetty)

(defn- all-engine-threads
  []
  (filter #(re-find #"^jetty-|^Connector|-Poller|-Acceptor" (.getName ^Thread %))
          (keys (Thread/getAllStackTraces))))

(def ^:private ^:dynamic *others*
  "The threads of the servers of other tests."
  #{})

(defn among-others
  "Runs the test among servers of others, whose threads do not count."
  [test]
  (binding [*others* (set (all-engine-threads))]
    (test)))

(use-fixtures :each leak/no-leaks among-others)

(defn- serve [handler options]
  (server/run-server handler (merge {:engine *engine*, :port 0, :stop-on-shutdown? false} options)))

(defn- ok [_]
  {:status 200, :headers {}, :body "ok"})

(defn- engine-threads []
  (remove *others* (all-engine-threads)))

(defn- gone?
  "Waits until the engine has no platform thread left."
  []
  (gate/eventually 10000 #(empty? (engine-threads))))

;; Start and stop

(defn- start-failure [options]
  (try
    (server/stop! (serve ok options))
    (catch ExceptionInfo e (ex-data e))))

(deftest a-port-in-use-leaves-no-thread
  (with-open [taken (ServerSocket. 0 1 (InetAddress/getByName "127.0.0.1"))]
    (is (= :thrum/start-failed (:type (start-failure {:port (.getLocalPort taken)}))))
    (is (gone?))))

(deftest a-start-that-fails-gives-the-port-back
  (let [ok (constantly {:status 200})
        port-of #(let [s (serve ok %), port (server/port s)] (server/stop! s) port)
        port (port-of {})]
    (with-redefs [watchdog/start (fn [& _] (throw (OutOfMemoryError. "for the test")))]
      (is (thrown? OutOfMemoryError (serve ok {:port port}))))
    (is (= port (port-of {:port port})))))

(deftest a-wrong-password-leaves-no-thread-and-stays-secret
  (let [failure
        (try
          (serve ok
                 {:ssl-port 0, :keystore (keys/key-store "server"), :key-password "battery-staple"})
          (catch ExceptionInfo e e))]
    (is (= :thrum/start-failed (:type (ex-data failure))))
    (is (not (str/includes? (str failure (ex-cause failure)) "battery-staple")))
    (is (gone?))))

(deftest a-missing-key-store-leaves-no-thread
  (is (= :thrum/start-failed
         (:type (start-failure {:ssl-port 0, :keystore "no/such/store.p12", :key-password "x"}))))
  (is (gone?)))

(deftest stopping-ends-every-platform-thread
  (let [s (serve ok {})]
    (is (seq (engine-threads)))
    (server/stop! s)
    (is (gone?))))

(defn- awaited?
  "True where a platform thread waits for the end of a watchdog."
  []
  (some (fn [frames]
          (some #(str/ends-with? (.getClassName ^StackTraceElement %) "watchdog$stop_BANG_")
                frames))
        (vals (Thread/getAllStackTraces))))

(defn- slow-to-end
  "Returns a thread that ends when its end is awaited; without that, 20 s after it is interrupted."
  ^Thread []
  (.start (.daemon (Thread/ofPlatform))
          #(try
             (Thread/sleep Long/MAX_VALUE)
             (catch InterruptedException _ (gate/eventually 20000 awaited?)))))

(deftest what-looks-for-slow-clients-has-ended-when-a-stop-returns
  (let [dog (slow-to-end), start watchdog/start]
    (with-redefs [watchdog/start (fn [thread-name period-ms look]
                                   (if (str/starts-with? thread-name "thrum-")
                                     (start thread-name period-ms look)
                                     dog))]
      (server/stop! (serve ok {})))
    (is (not (.isAlive dog)))))

(deftest a-configurator-gets-the-server-before-it-starts
  (let [found (promise)
        s (serve ok
                 {:engine-options {:configurator (fn [^Server jetty]
                                                   (deliver found
                                                            [(.isRunning jetty)
                                                             (count (.getConnectors jetty))]))}})]
    (server/stop! s)
    (is (= [false 1] (deref found 0 :never)))))

(defn- zipped
  ^bytes [^String text]
  (let [out (ByteArrayOutputStream.)]
    (with-open [zip (GZIPOutputStream. out)] (.write zip (.getBytes text)))
    (.toByteArray out)))

(deftest a-body-that-jetty-inflates-is-shorter-than-its-length
  (let [inflate #(.setHandler ^Server % (doto (GzipHandler. (.getHandler ^Server %))
                                          (.setInflateBufferSize 4096)))
        s (serve (fn [{:keys [body]}] {:status 200, :headers {}, :body (slurp body)})
                 {:engine-options {:configurator inflate}})
        connection ^HttpURLConnection (.openConnection
                                        (.toURL (URI. (str "http://127.0.0.1:" (server/port s)))))]
    (try
      (doto connection (.setDoOutput true) (.setRequestProperty "Content-Encoding" "gzip"))
      (with-open [out (.getOutputStream connection)] (.write out (zipped "hello")))
      (is (= "hello" (slurp (.getInputStream connection))))
      (finally (server/stop! s)))))

(defn- goes-on-as-said?
  "True if the answer to a request whose body the handler does not read says that the connection
  ends, or the next request on it is answered."
  [s n]
  (let [client (wire/connect (server/port s))]
    (try
      (wire/send! client (wire/head-of "POST" "/" (str "Content-Length: " n)))
      (wire/try-send! client (str/join (repeat n "x")))
      (let [answer (wire/response client)]
        (and (= "ok" (:body answer))
             (or (= "close" (wire/header answer "connection"))
                 (= 200 (:status (wire/ask! client (wire/get "/")))))))
      (finally (wire/close! client)))))

(deftest an-early-answer-says-whether-its-connection-ends
  (let [s (serve ok {})]
    (doseq [n [100 60000 900000], _ (range 5)]
      (is (goes-on-as-said? s n) n))
    (server/stop! s)))

(deftest a-long-response-head-says-that-its-connection-ends
  (let [answer {:status 200, :headers {"X-Long" (str/join (repeat 15900 "x"))}, :body "ok"}
        s (serve (constantly answer) {})
        client (wire/connect (server/port s))]
    (try
      (wire/send! client (wire/get "/" "Connection: close"))
      (is (= "close" (wire/header (wire/response client) "connection")))
      (is (wire/closed? client))
      (finally
        (wire/close! client)
        (server/stop! s)))))

(deftest platform-threads-do-not-grow-with-requests
  (let [n 200
        all-in (CountDownLatch. n)
        gate (promise)
        s (serve (fn [r] (.countDown all-in) (deref gate 5000 nil) (ok r)) {})
        before (count (engine-threads))
        clients (vec (repeatedly n #(wire/send! (wire/connect (server/port s)) (wire/get "/"))))]
    (is (.await all-in 10 TimeUnit/SECONDS))
    (is (<= (count (engine-threads)) before))
    (deliver gate :open)
    (is (every? #(= 200 (:status (wire/response %))) clients))
    (run! wire/close! clients)
    (server/stop! s)))

;; Slow clients

(defn- trickle!
  "Sends bytes to the socket, one each 20 ms, until the other side has closed it; returns whether it
  did within ms."
  [client ms text]
  (let [left (atom (seq text))]
    (gate/eventually ms
                     #(do
                        (Thread/sleep 20)
                        (not (wire/try-send! client
                                             (if-let [[c & more] @left]
                                               (do
                                                 (reset! left more)
                                                 (str c))
                                               "x")))))))

(deftest a-head-that-trickles-in-is-given-up
  (let [s (serve ok {:header-timeout-ms 300})
        client (wire/connect (server/port s))]
    (is (trickle! client 5000 "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "))
    (wire/close! client)
    (server/stop! s)))

(deftest a-second-head-has-its-own-time
  (let [s (serve ok {:header-timeout-ms 300})
        client (wire/connect (server/port s))]
    (is (= 200 (:status (wire/ask! client (wire/get "/")))))
    (is (= :silent (wire/after client 600)))
    (is (= 200 (:status (wire/ask! client (wire/get "/")))))
    (is (trickle! client 5000 "GET / HTTP/1.1\r\nHost: "))
    (wire/close! client)
    (server/stop! s)))

(deftest a-handshake-that-trickles-in-is-given-up
  (let [s (serve ok
                 {:port nil
                  :ssl-port 0
                  :keystore (keys/key-store "server")
                  :key-password keys/password
                  :header-timeout-ms 300})
        client (wire/connect (server/ssl-port s))]
    ;; The header of a record of 16 KiB that never comes.
    (is (trickle! client 5000 (map char [22 3 1 64 0])))
    (wire/close! client)
    (server/stop! s)))

(deftest a-read-that-waits-ends-at-its-deadline
  (let [ended (promise)
        read-all (fn [{:keys [body]}]
                   (try
                     (t/with-timeout 200 (slurp body))
                     (catch Throwable e (deliver ended (:type (ex-data e))) (throw e))))
        s (serve read-all {})
        client (wire/send! (wire/connect (server/port s))
                           "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf")]
    (is (= :thrum/timeout (deref ended 5000 :never)))
    (wire/close! client)
    (server/stop! s)))

;; A client that goes

(defn- noting-interrupts
  "Returns a handler that waits for the gate at /wait and notes how it ended."
  [entered outcome gate]
  (fn [{:keys [uri] :as r}]
    (if (= "/wait" uri)
      (try
        (deliver entered true)
        (deliver outcome (deref gate 8000 :never))
        (ok r)
        (catch InterruptedException e (deliver outcome :interrupted) (throw e)))
      (ok r))))

(defn- after-leaving
  "Returns how a handler ended whose client left by (leave! client)."
  [connect options leave!]
  (let [entered (promise)
        outcome (promise)
        gate (promise)
        s (serve (noting-interrupts entered outcome gate)
                 (merge {:interrupt-on-disconnect? true} options))]
    (try
      (let [client (connect s)]
        (wire/send! client (wire/get "/wait"))
        (deref entered 5000 nil)
        (leave! client)
        (deref outcome 5000 :nothing))
      (finally
        (deliver gate :open)
        (server/stop! s)))))

(defn- plain [s] (wire/connect (server/port s)))

(defn- secure [s]
  (wire/client (keys/connect (server/ssl-port s))))

(def ^:private tls
  {:port nil
   :ssl-port 0
   :keystore (delay (keys/key-store "server"))
   :key-password keys/password
   :h2? false})

(defn- tls-options []
  (update tls :keystore deref))

(deftest a-client-that-closes-or-resets-interrupts-its-handler
  (is (= :interrupted (after-leaving plain {} wire/close!)))
  (is (= :interrupted (after-leaving plain {} wire/reset!!)))
  (is (= :interrupted
         (after-leaving secure (tls-options) (fn [{:keys [^Socket socket]}] (.close socket))))))

(defn- http-connection ^HttpConnection [^EndPoint end-point]
  (let [connection (.getConnection end-point)]
    (if (instance? SslConnection connection)
      (recur (.getSslEndPoint ^SslConnection connection))
      connection)))

(defn- read-ahead?
  "Waits until the server has read, on its only connection, what belongs to the next request."
  [s]
  (let [^ServerConnector connector (first (.getConnectors ^Server (server/native s)))]
    (gate/eventually 10000 #(when-some [end-point (first (.getConnectedEndPoints connector))]
                              (not (.isRequestBufferEmpty (http-connection end-point)))))))

(deftest a-client-that-stays-is-not-taken-for-gone
  (doseq [[connect options] [[plain {}] [secure (tls-options)]]]
    (let [entered (promise)
          outcome (promise)
          gate (promise)
          s (serve (noting-interrupts entered outcome gate)
                   (merge {:interrupt-on-disconnect? true} options))
          client (connect s)]
      (wire/send! client (wire/get "/wait"))
      (is (deref entered 5000 nil))
      ;; The next request comes in two halves, one of them while the first is handled.
      (wire/send! client "GET /next HTTP/1.1\r\n")
      (is (read-ahead? s))
      (deliver gate :answered)
      (is (= :answered (deref outcome 5000 :nothing)))
      (is (= 200 (:status (wire/response client))))
      (is (= 200 (:status (wire/ask! client "Host: localhost\r\n\r\n"))))
      (is (= 200 (:status (wire/ask! client (wire/get "/again")))))
      (wire/close! client)
      (server/stop! s))))

(defn- head-begun?
  "Waits until the server has read, on its only connection, the beginning of a head."
  [s]
  (let [^ServerConnector connector (first (.getConnectors ^Server (server/native s)))]
    (gate/eventually 10000 #(when-some [end-point (first (.getConnectedEndPoints connector))]
                              (.inHeaderState (.getParser (http-connection end-point)))))))

(deftest a-head-that-has-half-come-at-a-stop-is-no-failure
  (let [s (serve ok {})
        client (wire/send! (wire/connect (server/port s)) "GET / HTTP/1.1\r\nHost: loc")]
    (is (head-begun? s))
    (server/stop! s)
    ;; In a race with the stop the connection is closed without an answer.
    (is (contains? #{503 nil} (:status (wire/response client))))
    (wire/close! client)))

(deftest watched-connections-are-kept-and-pipelined
  (let [s (serve ok {:interrupt-on-disconnect? true})
        client (wire/connect (server/port s))]
    (dotimes [_ 200] (is (= 200 (:status (wire/ask! client (wire/get "/"))))))
    (wire/send! client (apply str (repeat 50 (wire/get "/"))))
    (dotimes [_ 50] (is (= 200 (:status (wire/response client)))))
    (is (= 200 (:status (wire/ask! client (wire/post "/" "body")))))
    (is (zero? (:disconnected (server/status s))))
    (wire/close! client)
    (server/stop! s)))

;; Targets

(deftest bytes-beyond-ascii-stay-as-they-were-sent
  (let [seen (promise)
        s (serve (fn [r] (deliver seen [(:uri r) (:query-string r)]) (ok r)) {})
        client (wire/connect (server/port s))]
    (is (= 200 (:status (wire/ask! client (wire/get "/\u00c3\u00a9?\u00c3\u00a9")))))
    (is (= ["/\u00c3\u00a9" "\u00c3\u00a9"] (deref seen 5000 nil)))
    (wire/close! client)
    (server/stop! s)))

;; Connections that are being accepted at the end

(defn- ask-until
  "Asks on one connection after the other until it is over, or there is no server; returns how the
  answers ended."
  [over? port asked]
  (loop [ends #{}]
    (if-some [client (when-not (realized? over?)
                       (try
                         (wire/connect port)
                         (catch java.io.IOException _ nil)))]
      (let [{:keys [ended]} (wire/ask! client (wire/get "/" "Connection: close"))]
        (swap! asked inc)
        (wire/close! client)
        (recur (conj ends ended)))
      ends)))

(deftest a-stop-abandons-no-connection-that-is-being-accepted
  (dotimes [_ 15]
    (let [s (serve ok {})
          port (server/port s)
          asked (atom 0), over? (promise)
          clients (mapv (fn [_] (future (ask-until over? port asked))) (range 16))]
      (is (gate/eventually 5000 #(< 20 (long @asked))))
      (server/stop! s)
      (deliver over? true)
      (is (not-any? #(contains? (deref % 20000 #{:silent}) :silent) clients)))))

;; Events

(deftest an-event-behind-the-cut-throws-an-io-exception
  (let [thrown (promise)
        send-late (fn [events]
                    (try (deref (promise)) (catch InterruptedException _))
                    (deliver thrown (try (server/send! events "late") (catch Throwable t t))))
        s (serve (fn [_] (server/sse {:heartbeat-ms 10} send-late)) {})
        client (wire/send! (wire/connect (server/port s)) (wire/get "/"))]
    (wire/head client)
    (wire/reset!! client)
    (is (instance? IOException (deref thrown 10000 :never)))
    (server/stop! s)))

(deftest events-are-sent-no-longer-than-their-sender-may
  (let [sent (promise)
        feed (fn [events]
               (deliver sent (t/with-timeout [200 :late]
                               (while true (server/send! events "x")))))
        s (serve (fn [_] (server/sse feed)) {})
        client (wire/send! (wire/connect (server/port s)) (wire/get "/"))
        read (future (wire/response client))]
    (is (= :late (deref sent 10000 :never)))
    (server/stop! s)
    (is (not= :never (deref read 10000 :never)))))

;; Websockets that Jetty declines

(def ^:private asking
  (wire/get "/"
            "Upgrade: websocket" "Connection: Upgrade"
            "Sec-WebSocket-Version: 13" "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="))

(defn- declined [protocol request]
  ;; Thrum's own look at a handshake would find these first.
  (with-redefs [handshake/refusal (constantly nil), handshake/check-protocol! (constantly nil)]
    (let [s (serve (constantly {:ring.websocket/listener {}, :ring.websocket/protocol protocol}) {})
          client (wire/connect (server/port s))
          {:keys [status ended]} (wire/ask! client request)]
      (is (or (<= 400 (or status 200)) (#{:eof :reset} ended)) (pr-str status ended))
      (is (wire/closed? client))
      (is (gate/eventually 5000 #(zero? (:in-flight (server/status s)))))
      (wire/close! client)
      (server/stop! s))))

(deftest a-websocket-that-jetty-declines-is-no-open-connection
  (declined "chat" asking)
  (declined nil (str/replace asking "HTTP/1.1" "HTTP/1.0"))
  (declined nil (str/replace asking "Version: 13" "Version: 7"))
  (declined nil (str/replace asking "GET" "POST")))
