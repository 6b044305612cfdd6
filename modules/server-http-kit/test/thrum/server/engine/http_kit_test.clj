(ns thrum.server.engine.http-kit-test
  "What http-kit alone does, or does differently. The contract is in http-kit-tck-test, HTTP is
  thrum.server.http1's, and websocket-test has a stand-in for the decoder."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.server :as server]
   [thrum.server.engine.http-kit.library :as library]
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
