(ns thrum.server.engine.http-kit-test
  "What http-kit alone does, or does differently: the contract is in http-kit-tck-test."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is testing use-fixtures]]
   [thrum.server :as server]
   [thrum.server.engine.http-kit.library :as library]
   [thrum.server.tck.wire :as wire]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak]
   [thrum.test-kit.runner :as runner])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io IOException)
   (java.net URI)
   (java.net.http HttpClient WebSocket WebSocket$Listener)
   (java.util.concurrent TimeUnit)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- need-http-kit! []
  (when-not (library/on-classpath?) (runner/skip! "http-kit is not on the classpath")))

(defn- start
  [handler options]
  (server/run-server handler
                     (merge {:engine :http-kit, :port 0, :stop-on-shutdown? false} options)))

(defn- serve [handler options]
  (need-http-kit!)
  (start handler options))

(defn- ok [_]
  {:status 200, :body "ok"})

(defn- failure [f]
  (try (f) nil (catch ExceptionInfo e e)))

;; With and without http-kit

(deftest what-it-can-do-is-known-without-http-kit
  (is (= #{:http-1.0 :websockets :disconnect :blocking-send} (server/capabilities :http-kit))))

(deftest what-it-cannot-do-is-refused-without-http-kit
  (doseq [[options lacks] [[{:h2c? true} :h2] [{:ssl-port 0, :keystore "x"} :tls]
                           [{:client-auth :need} :client-certificates]]]
    (is (= {:type :thrum/invalid, :lacks lacks}
           (select-keys (ex-data (failure #(start ok options))) [:type :lacks])))))

(deftest a-start-without-http-kit-says-in-one-sentence-what-to-add
  (when (library/on-classpath?) (runner/skip! "http-kit is on the classpath"))
  (let [e (failure #(start ok {}))]
    (is (= :thrum/invalid (:type (ex-data e))))
    (is
      (=
        (str "The engine :http-kit needs http-kit on the classpath: add http-kit/http-kit "
             "{:mvn/version \"2.9.0\"}")
        (ex-message e)))))

(deftest a-release-that-lacks-something-is-refused
  (need-http-kit!)
  (with-redefs-fn {#'library/handles #(throw (NoSuchMethodException. "decode"))}
    (fn []
      (let [e (failure #(start ok {}))]
        (is (= :thrum/invalid (:type (ex-data e))))
        (is (str/includes?
              (ex-message e)
              "2.9.0 or a release like it; the one on the classpath has no decode"))))))

;; Threads

(defn- threads
  []
  (filter #{"thrum-http1"} (map #(.getName ^Thread %) (keys (Thread/getAllStackTraces)))))

(deftest one-platform-thread-runs-a-server-and-ends-with-it
  (let [s (serve ok {})]
    (is (= ["thrum-http1"] (threads)))
    (server/stop! s)
    (is (empty? (threads)))))

(deftest a-port-in-use-leaves-no-thread
  (let [s (serve ok {})]
    (is (= :thrum/start-failed (:type (ex-data (failure #(start ok {:port (server/port s)}))))))
    (server/stop! s)
    (is (empty? (threads)))))

;; Bodies

(deftest a-body-nobody-read-is-skipped-before-the-next-request
  (let [s (serve (fn [r] {:status 200, :body (:uri r)}) {})
        client (wire/connect (server/port s))]
    (wire/send! client
                (wire/post "/1" "unread")
                (wire/chunked "/2" "GET /evil HTTP/1.1\r\n" "x")
                (wire/get "/3"))
    (is (= ["/1" "/2" "/3"] (mapv :body (repeatedly 3 #(wire/response client)))))
    (wire/close! client)
    (server/stop! s)))

(deftest a-long-body-nobody-reads-ends-the-connection
  (let [s (serve ok {})
        client (wire/connect (server/port s))]
    (wire/send! client (wire/head-of "POST" "/" "Content-Length: 10000000"))
    (wire/try-send! client (apply str (repeat 200000 "x")))
    (is (= 200 (:status (wire/response client))))
    (is (wire/closed? client))
    (wire/close! client)
    (server/stop! s)))

(deftest a-client-that-asks-first-is-answered-when-its-body-is-read
  (let [gate (promise)
        s (serve (fn [r] (deref gate 5000 nil) {:status 200, :body (slurp (:body r))}) {})
        client (wire/connect (server/port s))]
    (wire/send! client (wire/head-of "POST" "/" "Content-Length: 4" "Expect: 100-continue"))
    (is (= :silent (wire/after client 100)))
    (deliver gate :open)
    (is (= 100 (:status (wire/response client))))
    (wire/send! client "body")
    (is (= "body" (:body (wire/response client))))
    (wire/close! client)
    (server/stop! s)))

;; Slow clients

(defn- endless [written failed]
  (map (fn [n]
         (swap! written inc)
         (when (< 100000 (long n)) (deliver failed :never))
         (apply str (repeat 1024 "x")))
       (range)))

(deftest a-client-that-takes-nothing-holds-the-writer-up-and-is-given-up
  (let [written (atom 0)
        failed (promise)
        s (serve (fn [_] {:status 200, :body (endless written failed)})
                 {:idle-timeout-ms 300, :error-handler (fn [_ t] (throw t))
                  :observer {:end #(deliver failed (:throwable %))}})
        client (wire/connect (server/port s))]
    (wire/send! client (wire/get "/"))
    (is (instance? IOException (deref failed 10000 :late)))
    (is (< 0 (long @written) 100000))
    (wire/close! client)
    (server/stop! s)))

(deftest an-abort-reaches-a-writer-that-waits
  (let [written (atom 0)
        ended (promise)
        s (serve (fn [_] {:status 200, :body (endless written (promise))})
                 {:request-timeout-ms 500, :observer {:end #(deliver ended %)}})
        client (wire/connect (server/port s))]
    (wire/send! client (wire/get "/"))
    (is (map? (deref ended 5000 nil)))
    (is (#{:eof :reset} (:ended (wire/response client))))
    (wire/close! client)
    (server/stop! s)))

;; Websockets

(defn- socket-of
  "Returns a client's websocket; what ends it is delivered."
  ^WebSocket [s closed]
  (-> (.newWebSocketBuilder (HttpClient/newHttpClient))
      (.buildAsync (URI/create (str "ws://127.0.0.1:" (server/port s) "/"))
                   (reify WebSocket$Listener
                     (onClose [_ _ code reason] (deliver closed [code reason]) nil)
                     (onError [_ _ t] (deliver closed t))))
      (.get 5 TimeUnit/SECONDS)))

(defn- send-text! [^WebSocket ws text]
  (.get (.sendText ws text true) 5 TimeUnit/SECONDS))

(defn- listening [callbacks]
  (fn [_] {:ring.websocket/listener callbacks}))

(deftest messages-wait-for-a-slow-listener-and-stay-in-order
  (let [gate (promise)
        heard (atom [])
        s (serve (listening {:on-message
                             (fn [_ message] (deref gate 5000 nil) (swap! heard conj message))})
                 {})
        ws (socket-of s (promise))
        messages (map str (range 500))]
    (run! #(send-text! ws %) messages)
    (deliver gate :open)
    (is (gate/eventually 5000 #(= messages @heard)))
    (.abort ws)
    (server/stop! s)))

(deftest what-is-no-frame-closes-with-a-code
  (let [told (promise)
        closed (promise)
        s (serve (listening {:on-error (fn [_ t] (deliver told t))
                             :on-close (fn [_ code _] (deliver closed code))})
                 {:ws-max-message-bytes 100})
        at-client (promise)
        ws (socket-of s at-client)]
    (send-text! ws (apply str (repeat 200 "x")))
    (is (= [1009 ""] (deref at-client 5000 :late)))
    (is (instance? IOException (deref told 5000 :late)))
    (is (= 1009 (deref closed 5000 :late)))
    (server/stop! s)))

(deftest a-silent-websocket-is-closed
  (let [s (serve (listening {}) {:ws-idle-timeout-ms 200})
        closed (promise)]
    (socket-of s closed)
    (is (= 1001 (first (deref closed 5000 [:late]))))
    (server/stop! s)))

(deftest a-client-that-vanishes-is-told-as-1006
  (let [closed (promise)
        s (serve (listening {:on-close (fn [_ code _] (deliver closed code))}) {})]
    (.abort (socket-of s (promise)))
    (is (= 1006 (deref closed 5000 :late)))
    (server/stop! s)))

;; What http-kit would say by itself

(deftest refusals-repeat-nothing
  (let [s (serve ok {})]
    (doseq [[status request] [[505 "GET /marker HTTP/9.9\r\n\r\n"]
                              [400 "GET / HTTP/1.1\r\nHost: x\r\nmarker with blanks: 1\r\n\r\n"]
                              [400 "GET / HTTP/1.1\r\nHost: x\r\nX: marker\u0001\r\n\r\n"]
                              [400 "MARKER / HTTP/1.1\r\nHost: marker marker\r\n\r\n"]
                              [501
                               "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: marker\r\n\r\n"]
                              [431
                               (str "GET / HTTP/1.1\r\nHost: x\r\nX: marker"
                                    (apply str (repeat 20000 "x"))
                                    "\r\n\r\n")]]
            :let [client (wire/connect (server/port s))]]
      (testing (subs request 0 20)
        (wire/try-send! client request)
        (let [answer (wire/response client)]
          (is (= status (:status answer)))
          (is (not (re-find #"(?i)marker|http-kit|Exception" (pr-str answer))))
          (is (wire/closed? client))))
      (wire/close! client))
    (server/stop! s)))
