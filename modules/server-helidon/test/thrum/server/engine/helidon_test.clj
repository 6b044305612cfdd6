(ns thrum.server.engine.helidon-test
  "What Helidon does differently, or would: the contract is in helidon-tck-test."
  (:require
   [clojure.java.io :as io]
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.server :as server]
   [thrum.server.engine.helidon :as helidon]
   [thrum.server.engine.helidon.exhausted :as exhausted]
   [thrum.server.engine.helidon.starved :as starved]
   [thrum.server.http1 :as http1]
   [thrum.server.tck.tls :as tls]
   [thrum.server.tck.wire :as wire]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.jvm :as jvm]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.runner :as runner])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io ByteArrayInputStream ByteArrayOutputStream IOException InputStream ObjectInputStream ObjectOutputStream)
   (java.net ConnectException InetAddress InetSocketAddress ServerSocket Socket SocketTimeoutException)
   (java.util Date)
   (java.util.concurrent Semaphore)
   (javax.net.ssl SSLSocket)
   (thrum.server.engine.helidon Port)))

(set! *warn-on-reflection* true)

(def ^:private quiet
  (mapv #(java.util.logging.Logger/getLogger %) ["thrum.server" "io.helidon"]))

(run! #(java.util.logging.Logger/.setLevel % java.util.logging.Level/OFF) quiet)

(defn- all-helidon-threads
  []
  (filter #(re-find #"helidon-idle|idle-timeout|server-.*-listener|thrum-helidon"
                    (.getName ^Thread %))
          (keys (Thread/getAllStackTraces))))

(def ^:private ^:dynamic *others*
  "The threads of the servers of other tests."
  #{})

(defn- among-others
  "Runs the test among servers of others, whose threads do not count."
  [test]
  (binding [*others* (set (all-helidon-threads))]
    (test)))

(defn- helidon-threads []
  (remove *others* (all-helidon-threads)))

(use-fixtures :each leak/no-leaks among-others)

(defn- start [handler options]
  (server/run-server handler (merge {:engine :helidon, :port 0, :stop-on-shutdown? false} options)))

(defn- ok [_]
  {:status 200, :body "ok"})

(defn- failure [f]
  (try (f) nil (catch ExceptionInfo e e)))

(defmacro ^:private serving
  "Runs the body with a client of a server that is stopped after it."
  [[client [handler options]] & body]
  `(let [s# (start ~handler ~options)
         ~client (wire/connect (server/port s#))]
     (try
       ~@body
       (finally
         (wire/close! ~client)
         (server/stop! s#)))))

;; Start and stop

(defn- refused? [port]
  (try
    (with-open [_ (Socket. "127.0.0.1" (int port))] false)
    (catch ConnectException _ true)))

(deftest what-it-lacks-is-refused-at-the-start
  (is (= #{:tls :client-certificates :disconnect :blocking-send :http-1.0}
         (server/capabilities :helidon)))
  (doseq [[options lacks] [[{:h2c? true} :h2] [{:ws-idle-timeout-ms 5} :websockets]]]
    (is (= {:type :thrum/invalid, :lacks lacks}
           (select-keys (ex-data (failure #(start ok options))) [:type :lacks])))))

(deftest a-port-in-use-leaves-no-thread
  (with-open [taken (ServerSocket. 0 1 (InetAddress/getByName "127.0.0.1"))]
    (is (= :thrum/start-failed
           (:type (ex-data (failure #(start ok {:port (.getLocalPort taken)}))))))
    (is (= :thrum/start-failed
           (:type (ex-data (failure
                             #(start ok (assoc (tls/keystore) :ssl-port (.getLocalPort taken))))))))
    (is (gate/eventually 10000 #(empty? (helidon-threads))))))

(deftest a-start-that-fails-gives-the-port-back
  (let [port-of #(let [s (start ok %), port (server/port s)] (server/stop! s) port)
        port (port-of {})]
    (with-redefs [http1/watch (fn [_] (throw (OutOfMemoryError. "for the test")))]
      (is (thrown? OutOfMemoryError (start ok {:port port}))))
    (is (= port (port-of {:port port})))))

(deftest a-start-that-fails-at-its-second-port-gives-the-first-one-back
  (let [first-port (promise), started @#'helidon/started]
    (with-redefs [helidon/started (fn [port securing parts]
                                    (if securing
                                      (throw (IOException. "for the test"))
                                      (let [^Port p (started port securing parts)]
                                        (deliver first-port (.-number p))
                                        p)))]
      (is (= :thrum/start-failed (:type (ex-data (failure #(start ok (tls/keystore))))))))
    (is (refused? @first-port))
    (is (gate/eventually 10000 #(empty? (helidon-threads))))))

(deftest the-end-of-helidon-s-timer-is-no-uncaught-exception
  (let [before (Thread/getDefaultUncaughtExceptionHandler), uncaught (atom #{})]
    (Thread/setDefaultUncaughtExceptionHandler
      (reify Thread$UncaughtExceptionHandler
        (uncaughtException [_ _ t] (swap! uncaught conj (ex-message t)))))
    (try
      (server/stop! (start ok {}))
      (is (gate/eventually 10000 #(empty? (helidon-threads))))
      (is (not (contains? @uncaught "This timer is not needed")))
      (finally (Thread/setDefaultUncaughtExceptionHandler before)))))

(deftest an-interrupt-of-before-does-not-disturb-a-start
  ;; Clojure drops an interrupt as it loads a namespace, the engine's.
  (server/stop! (start ok {}))
  (.interrupt (Thread/currentThread))
  (let [s (try (start ok {}) (catch ExceptionInfo e e)), interrupted? (Thread/interrupted)]
    (is (true? interrupted?))
    (is (= "ok" (slurp (str "http://127.0.0.1:" (server/port s)))))
    (server/stop! s)
    (is (gate/eventually 10000 #(empty? (helidon-threads))))))

(deftest a-wrong-password-leaves-no-thread
  (is (= :thrum/start-failed
         (:type (ex-data (failure #(start ok (assoc (tls/keystore) :key-password "wrong")))))))
  (is (gate/eventually 10000 #(empty? (helidon-threads)))))

(deftest stopping-ends-every-thread-of-helidon
  (doseq [options [{} (assoc (tls/keystore) :port nil)]]
    (testing "a server without a request"
      (let [s (start ok options)]
        (is (seq (helidon-threads)))
        (server/stop! s)
        (is (gate/eventually 10000 #(empty? (helidon-threads)))))))
  (testing "a server with a connection that is kept"
    (let [s (start ok (tls/keystore))
          client (wire/connect (server/port s))]
      (is (= 200 (:status (wire/ask! client (wire/get "/")))))
      (server/stop! s)
      (is (gate/eventually 10000 #(empty? (helidon-threads))))
      (is (wire/closed? client))
      (wire/close! client))))

(def ^:private another-loopback "127.0.0.2")

(defn- held?
  "True if the thread is Helidon's listener, and is held by what it calls for each socket."
  [[^Thread thread frames]]
  (and (re-find #"listener" (.getName thread))
       (= Thread$State/WAITING (.getState thread))
       (some #(str/includes? (str %) "helidon.handover") frames)))

(defn- listener-held?
  "Returns whether a listener that is no other test's is held."
  []
  (some held? (remove (comp *others* key) (Thread/getAllStackTraces))))

;; Helidon interrupts its listener as it stops. In accept that would make the JDK forget a socket.
(deftest the-listener-is-not-in-accept-when-helidon-interrupts-it
  (let [entered (promise)
        gate (promise)
        s (start (fn [_] (deliver entered true) (deref gate 10000 nil) (ok nil)) {})
        [_ answer] (gate/start "client" #(wire/ask-once! (server/port s) (wire/get "/")))
        _ (is (deref entered 5000 false))
        [_ stopped] (gate/start "stop" #(server/stop! s))]
    (is (gate/eventually 5000 listener-held?))
    (deliver gate true)
    (is (= 200 (:status (:value (deref answer 5000 nil)))))
    (is (contains? (deref stopped 10000 {}) :value))))

(deftest neither-port-takes-a-client-while-a-request-ends
  (let [entered (promise)
        gate (promise)
        s (start (fn [_] (deliver entered true) (deref gate 20000 nil) (ok nil)) (tls/keystore))
        [_ answer] (gate/start "client" #(wire/ask-once! (server/port s) (wire/get "/")))
        _ (is (deref entered 5000 false))
        [_ stopped] (gate/start "stop" #(server/stop! s))]
    (is (gate/eventually 5000 #(every? refused? [(server/port s) (server/ssl-port s)])))
    (deliver gate true)
    (is (= 200 (:status (:value (deref answer 5000 nil)))))
    (is (contains? (deref stopped 10000 {}) :value))))

(defn- listenable? [^String host]
  (try
    (with-open [_ (ServerSocket. 0 1 (InetAddress/getByName host))] true)
    (catch IOException _ false)))

(deftest stopping-ends-every-thread-of-a-server-at-one-address
  (when-not (listenable? another-loopback) (runner/skip! "There is one loopback address"))
  (server/stop! (start ok {:host another-loopback}))
  (is (gate/eventually 10000 #(empty? (helidon-threads)))))

(defn- in-a-child
  "Returns the exit code of a child JVM, and the lines that it has printed."
  [command]
  (let [{:keys [exit lines]} (jvm/quietly command 280000 jvm/quick)]
    (into [exit] (remove #(str/starts-with? % "NOTE")) lines)))

(defn- in-a-starved-jvm
  "The same of a scene of starved."
  [scene]
  (in-a-child (jvm/command (jvm/this-home) starved/jvm-options
                           'thrum.server.engine.helidon.starved [scene])))

(deftest a-server-stops-where-handlers-hold-every-carrier
  (is (= [0 "{:state :stopped, :overdue 1} true"] (in-a-starved-jvm "stops"))))

(deftest a-client-that-waits-for-a-carrier-is-not-cut-and-a-silent-one-is
  (is (= [0 "true" "200"] (in-a-starved-jvm "asks"))))

;; What would end Helidon's listener

(defn- in-an-exhausted-jvm
  "The same of a scene of exhausted."
  [scene]
  (when-not (.canExecute (io/file "/bin/sh")) (runner/skip! "No shell sets a limit"))
  (-> (jvm/command (jvm/this-home) [] 'thrum.server.engine.helidon.exhausted [scene])
      exhausted/under-limit
      in-a-child))

(deftest a-server-without-descriptors-takes-connections-when-there-are-some
  (is (= [0 "[200 200 200] 200"] (in-an-exhausted-jvm "comes"))))

;; What the JDK needs for that it opens at the first wait, or never.
(deftest a-virtual-thread-can-wait-for-a-socket-though-no-descriptor-is-left
  (is (= [0 "2"] (in-an-exhausted-jvm "waits"))))

(deftest an-error-does-not-end-the-listener
  (let [accept! http1/accept!, failed (atom false)
        fail-once (fn [& args]
                    (when (compare-and-set! failed false true)
                      (throw (OutOfMemoryError. "for the test")))
                    (apply accept! args))
        s (start ok {})]
    (with-redefs [http1/accept! fail-once]
      (is (= [nil 200] (repeatedly 2 #(:status (wire/ask-once! (server/port s) (wire/get "/")))))))
    (server/stop! s)))

(defn- copied [x]
  (let [out (ByteArrayOutputStream.)]
    (.writeObject (ObjectOutputStream. out) x)
    (.readObject (ObjectInputStream. (ByteArrayInputStream. (.toByteArray out))))))

(deftest deserialization-is-left-to-the-application
  (server/stop! (start ok {}))
  (is (nil? (java.io.ObjectInputFilter$Config/getSerialFilter)))
  (is (= (Date. 1) (copied (Date. 1)))))

;; Requests

(deftest refusals-repeat-nothing
  (doseq [[status request] [[505 "GET /marker HTTP/9.9\r\n\r\n"]
                            [505 "GET /marker HTTP/1.2\r\nHost: x\r\n\r\n"]
                            [400 "GET /marker marker\r\n\r\n"]
                            [400 "GET / HTTP/1.1\r\nHost: x\r\nmarker with blanks: 1\r\n\r\n"]
                            [400 "GET / HTTP/1.1\r\nHost: x\r\nX: marker\u0001\r\n\r\n"]
                            [400 "GET / HTTP/1.1\r\nHost: x\r\nX: 1\r\n marker\r\n\r\n"]
                            [400 "MARKER / HTTP/1.1\r\nHost: marker marker\r\n\r\n"]
                            [501 "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: marker\r\n\r\n"]
                            [431
                             (str "GET / HTTP/1.1\r\nHost: x\r\nX: marker"
                                  (apply str (repeat 20000 "x"))
                                  "\r\n\r\n")]]]
    (testing request
      (serving [client [ok {}]]
               (wire/try-send! client request)
               (let [answer (wire/response client)]
                 (is (= status (:status answer)))
                 (is (not (re-find #"(?i)marker|helidon|Exception" (pr-str answer))))
                 (is (wire/closed? client)))))))

(deftest every-path-reaches-the-handler
  (serving
    [client [(fn [{:keys [uri]}] {:status 200, :body uri}) {}]]
    (doseq [path ["/%zz" "//" "/a%00b" "/{}|\\^`\"<>" "/..;/x"]]
      (is (= path (:body (wire/ask! client (wire/get path))))))
    (is (= 200
           (:status
             (wire/ask!
               client
               (str "GET / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: "
                    "0\r\n\r\n")))))
    (is (= 200 (:status (wire/ask! client "\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"))))))

;; Bodies of requests

(deftest a-large-chunk-is-read-while-it-comes
  (let [read-some (fn [{:keys [^InputStream body]}]
                    {:status 200, :body (String. (.readNBytes body 5))})]
    (serving
      [client [read-some {}]]
      (wire/send! client (wire/head-of "POST" "/" "Transfer-Encoding: chunked") "7fffffff\r\nfirst")
      (wire/finish! client)
      (is (= "first" (:body (wire/response client))))
      (is (wire/closed? client)))))

(deftest a-body-nobody-read-is-skipped-before-the-next-request
  (serving [client [(fn [r] {:status 200, :body (:uri r)}) {}]]
           (wire/send! client
                       (wire/post "/1" "unread")
                       (wire/chunked "/2" "GET /evil HTTP/1.1\r\n" "x")
                       (wire/get "/3"))
           (is (= ["/1" "/2" "/3"] (mapv :body (repeatedly 3 #(wire/response client)))))))

(deftest a-long-body-nobody-reads-ends-the-connection
  (serving [client [ok {}]]
    (wire/send! client (wire/head-of "POST" "/" "Content-Length: 10000000"))
    (wire/try-send! client (apply str (repeat 200000 "x")))
    (let [answer (wire/response client)]
      (is (= 200 (:status answer)))
      (is (= "close" (wire/header answer "connection"))))
    (is (wire/closed? client))))

(deftest a-short-body-nobody-has-read-yet-ends-no-connection
  (serving [client [ok {}]]
    (wire/send! client (wire/head-of "POST" "/" "Content-Length: 60000") "first")
    (is (nil? (wire/header (wire/response client) "connection")))
    (wire/send! client (apply str (repeat 59995 "x")))
    (is (= 200 (:status (wire/ask! client (wire/get "/")))))))

(deftest a-client-that-asks-first-is-answered-when-its-body-is-read
  (let [gate (promise)]
    (serving [client [(fn [r] (deref gate 5000 nil) {:status 200, :body (slurp (:body r))}) {}]]
      (wire/send! client (wire/head-of "POST" "/" "Content-Length: 4" "Expect: 100-continue"))
      (is (= :silent (wire/after client 100)))
      (deliver gate :open)
      (is (= 100 (:status (wire/response client))))
      (wire/send! client "body")
      (is (= "body" (:body (wire/response client)))))))

;; Answers

(deftest a-status-without-a-body-says-what-the-handler-says
  (let [answers {"/304" {:status 304, :headers {"Content-Length" "17", "ETag" "e"}}
                 "/304-open" {:status 304}
                 "/204" {:status 204}
                 "/205" {:status 205, :body "some"}
                 "/299" {:status 299, :body "odd"}}]
    (serving [client [(comp answers :uri) {}]]
             (let [ask (fn [path]
                         (let [{:keys [status body], :as answer} (wire/ask! client (wire/get path))]
                           [status (wire/header answer "content-length") body]))]
               (is (= [304 "17"] (take 2 (ask "/304"))))
               (is (= [304 nil] (take 2 (ask "/304-open"))))
               (is (= [204 nil] (take 2 (ask "/204"))))
               (is (= [205 "0" ""] (ask "/205")))
               (is (= [299 "3" "odd"] (ask "/299")))))))

(deftest nothing-that-is-flushed-ends-a-body
  (serving [client [(fn [_] {:status 200, :body (list "" "a" "" "b" "")}) {}]]
    (dotimes [_ 2]
      (is (= ["ab" :whole] ((juxt :body :ended) (wire/ask! client (wire/get "/"))))))))

(deftest the-head-of-a-stream-does-not-wait-for-its-first-event
  (let [gate (promise)
        handler (fn [_] (server/sse (fn [events]
                                      (deref gate 5000 nil)
                                      (server/send! events {:data "late"}))))]
    (serving [client [handler {}]]
      (wire/send! client (wire/get "/"))
      (is (= 200 (:status (wire/head client))))
      (is (not (realized? gate)))
      (deliver gate :open))))

(deftest a-repeated-or-lower-case-header-is-sent-as-it-is
  (serving [client
            [(fn [_] {:status 200, :headers {"set-cookie" ["a=1" "b=2"], "x-own" "1"}, :body "x"})
             {}]]
           (let [{:keys [headers]} (wire/ask! client (wire/get "/"))]
             (is (= [["a=1" "b=2"] ["1"]] (map headers ["set-cookie" "x-own"]))))))

(deftest http-1-0-is-kept-where-the-end-is-stated
  (serving
    [client
     [(fn [{:keys [uri]}] {:status 200, :body (if (= "/seq" uri) (list "a" "b") "whole")}) {}]]
    (let [ask
          (fn [path]
            (let [answer (wire/ask! client
                                    (str "GET " path
                                      " HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"))]
              [(:body answer) (:framing answer) (:ended answer)
               (wire/header answer "connection")]))]
      (is (= ["whole" :length :whole "keep-alive"] (ask "/") (ask "/")))
      (is (= ["ab" :close :eof "close"] (ask "/seq"))))))

(deftest an-interrupted-body-of-http-1-0-ends-in-a-reset
  (serving [client [(fn [_]
                      {:status 200
                       :body (cons "begun" (lazy-seq (.interrupt (Thread/currentThread))
                                                     (list "never sent")))})
                    {}]]
    (is (= [:close :reset "begun"]
           ((juxt :framing :ended :body) (wire/ask! client "GET / HTTP/1.0\r\n\r\n"))))))

(deftest events-flow-to-http-1-0
  (let [gate (promise)
        handler (fn [_] (server/sse (fn [events]
                                      (server/send! events {:data "first"})
                                      (deref gate 5000 nil))))]
    (serving [client [handler {}]]
      (wire/send! client "GET / HTTP/1.0\r\n\r\n")
      (is (= :close (:framing (wire/head client))))
      (is (= "data: first" (wire/text-of (wire/read-bytes client 11))))
      (deliver gate :end)
      (is (= :eof (:ended (wire/body client {:framing :close})))))))

;; Slow clients

(def ^:private piece
  "Large, since a busy machine is slow to fill what a client does not take."
  (apply str (repeat 65536 "x")))

(defn- endless [written failed]
  (map (fn [n]
         (swap! written inc)
         (when (< 10000 (long n)) (deliver failed :never))
         piece)
       (range)))

(deftest a-client-that-takes-nothing-holds-the-writer-up-and-is-given-up
  (let [written (atom 0), failed (promise)]
    (serving [client [(fn [_] {:status 200, :body (endless written failed)})
                      {:idle-timeout-ms 300, :observer {:end #(deliver failed (:throwable %))}}]]
      (wire/send! client (wire/get "/"))
      (is (instance? IOException (deref failed 10000 :late)))
      (is (< 0 (long @written) 10000)))))

(defn- small-socket
  "Returns a socket that holds little of what comes, and leaves the rest to the server's."
  ^Socket [port]
  (doto (Socket.)
    (.setReceiveBufferSize 8192)
    (.setSoTimeout 5000)
    (.connect (InetSocketAddress. "127.0.0.1" (int port)))))

(defn- on-tls [^Socket socket]
  (.createSocket (.getSocketFactory (tls/context nil)) socket "127.0.0.1" (.getPort socket) true))

(deftest what-was-sent-whole-arrives-behind-a-stop
  (doseq [[options port-of secured request ended]
          [[{} server/port identity "GET / HTTP/1.0\r\n\r\n" :eof]
           [(tls/keystore) server/ssl-port on-tls (wire/get "/") :whole]]]
    (let [sent (promise)
          s (start (fn [_] {:status 200, :body (repeat 4 piece)})
                   (assoc options :observer {:end #(deliver sent (:throwable %))}))]
      (with-open [socket (small-socket (port-of s))]
        (let [client (wire/send! (wire/client (secured socket)) request)]
          (is (nil? (deref sent 10000 :late)))
          (server/stop! s)
          (is (= [(* 4 (count piece)) ended]
                 ((juxt (comp count :body) :ended) (wire/response client)))))))))

(defn- secure-client
  ^SSLSocket [s]
  (doto ^SSLSocket
        (.createSocket (.getSocketFactory (tls/context nil)) "127.0.0.1" (int (server/ssl-port s)))
        (.setSoTimeout 5000)))

(deftest over-tls-a-client-that-takes-nothing-is-given-up
  (let [written (atom 0)
        failed (promise)
        s (start (fn [_] {:status 200, :body (endless written failed)})
                 (assoc (tls/keystore)
                        :idle-timeout-ms 300
                        :observer {:end #(deliver failed (:throwable %))}))]
    (with-open [socket (secure-client s)]
      (wire/send! (wire/client socket) (wire/get "/"))
      (is (instance? IOException (deref failed 10000 :late))))
    (server/stop! s)))

(deftest a-second-handshake-is-refused
  (let [s (start ok (tls/keystore))]
    (with-open [socket (secure-client s)]
      (.setEnabledProtocols socket (into-array String ["TLSv1.2"]))
      (let [client (wire/client socket)]
        (is (= 200 (:status (wire/ask! client (wire/get "/")))))
        (is (= "TLSv1.2" (.getProtocol (.getSession socket))))
        (is (thrown? IOException
                     (.startHandshake socket)
                     (wire/send! client (wire/get "/"))
                     (.read ^InputStream (:in client))))))
    (server/stop! s)))

(deftest over-tls-http-1-1-is-agreed-on
  (let [s (start ok (tls/keystore))]
    (with-open [socket (secure-client s)]
      (.setSSLParameters socket
        (doto (.getSSLParameters socket)
          (.setApplicationProtocols (into-array String ["h2" "http/1.1"]))))
      (.startHandshake socket)
      (is (= "http/1.1" (.getApplicationProtocol socket))))
    (server/stop! s)))

(defn- hung-up?
  "Reads what comes, an alert of TLS, until the connection ends; returns whether it does."
  [{:keys [^InputStream in]}]
  (try
    (while (not= -1 (.read in)))
    true
    (catch SocketTimeoutException _ false)
    (catch IOException _ true)))

(deftest handshakes-that-fail-or-stall-take-no-place-for-ever
  (let [s (start ok (assoc (tls/keystore) :port nil, :max-connections 2, :header-timeout-ms 300))
        stalled (vec (repeatedly 2 #(wire/connect (server/ssl-port s))))]
    ;; The beginning of a record that never comes.
    (run! #(wire/send! % "\u0016\u0003\u0001") stalled)
    (dotimes [_ 5]
      (let [garbled (wire/connect (server/ssl-port s))]
        (wire/try-send! garbled "no TLS at all\r\n\r\n")
        (is (hung-up? garbled))
        (wire/close! garbled)))
    (is (every? hung-up? stalled))
    ;; On a busy machine this handshake may be too slow as well.
    (is (gate/eventually 10000
                         #(with-open [socket (secure-client s)]
                            (= 200 (:status (wire/ask! (wire/client socket) (wire/get "/")))))))
    (run! wire/close! stalled)
    (server/stop! s)))

(defn- places
  "Returns how many connections more the server would take."
  [s]
  (let [field (fn [x n] (.get (doto (.getDeclaredField (class x) n) (.setAccessible true)) x))]
    (-> s
        (field "life")
        (field "running")
        (field "parts")
        :all
        (field "room")
        Semaphore/.availablePermits)))

(deftest every-way-to-end-gives-the-place-back
  (let [s (start
            (fn [{:keys [uri]}] (if (= "/throws" uri) (throw (Error. "handler")) (ok nil)))
            (assoc (tls/keystore) :max-connections 20 :header-timeout-ms 300 :idle-timeout-ms 300))
        whole (fn [socket & parts] (apply wire/ask! (wire/client socket) parts))
        ends
        {:reset-at-once #(dotimes [_ 10] (wire/hit! % 0 ""))
         :reset-from-one-port #(reduce (fn [from _] (wire/hit! % from "")) 0 (range 30))
         :garbage #(wire/hit! % 0 "no TLS, no HTTP\r\n\r\n")
         :silence (fn [port]
                    (with-open [k (Socket. "127.0.0.1" (int port))] (hung-up? (wire/client k))))
         :stalled (fn [port]
                    (let [c (wire/connect port)]
                      (wire/send! c "\u0016\u0003\u0001")
                      (hung-up? c)
                      (wire/close! c)))
         :failing (fn [_]
                    (with-open [k (Socket. "127.0.0.1" (int (server/port s)))]
                      (whole k (wire/get "/throws"))))
         :asked (fn [_] (with-open [k (secure-client s)] (whole k (wire/get "/"))))
         :closing
         (fn [_] (with-open [k (secure-client s)] (whole k (wire/get "/" "Connection: close"))))}]
    (doseq [[how end!] ends
            port [(server/port s) (server/ssl-port s)]]
      (testing how (end! port) (is (gate/eventually 10000 #(= 20 (places s))))))
    (server/stop! s)
    (is (= 20 (places s)))))

(deftest an-interrupt-late-in-a-handler-ends-with-its-thread
  (let [threads (atom [])]
    (serving [client
              [(fn [r]
                 (swap! threads conj
                   [(Thread/currentThread) (.isInterrupted (Thread/currentThread))])
                 (.interrupt (Thread/currentThread))
                 (ok r)) {}]]
             (dotimes [_ 3] (is (= 200 (:status (wire/ask! client (wire/get "/"))))))
             (is (= [false false false] (map second @threads)))
             (is (apply distinct? (map first @threads))))))
