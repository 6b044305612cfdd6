(ns thrum.server.misuse-test
  "What a handler or a caller gives by mistake may be endless: it is answered at once, in a short
  sentence."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.server :as server]
   [thrum.server.impl.events :as events]
   [thrum.server.impl.options :as options]
   [thrum.server.impl.response :as response]
   [thrum.server.impl.websocket :as websocket]
   [thrum.test-kit.gate :as gate])
  (:import
   (clojure.lang IFn)
   (java.lang AutoCloseable)
   (java.net URI)
   (java.net.http HttpClient HttpRequest HttpResponse$BodyHandlers)
   (thrum.server.impl.websocket WebSocket)))

(set! *warn-on-reflection* true)

(defn- endless
  "Returns a lazy seq that has no end, but does not let itself be walked far."
  []
  (map #(if (< % 100) % (throw (AssertionError. "An endless seq was walked"))) (iterate inc 0)))

(defn- thrown [f]
  (try (f) nil (catch clojure.lang.ExceptionInfo e e)))

(defn- answer
  "Returns the :type of what f throws, if its message and data are short."
  [f]
  (let [e (gate/in-time 5000 #(thrown f))]
    (when (and (< (count (ex-message e)) 20000)
               (< (count (pr-str (dissoc (ex-data e) :known))) 1000))
      (:type (ex-data e)))))

(deftest endless-responses-are-refused-in-short
  (are [response] (= :thrum/response (answer #(response/head response)))
    (endless)
    {:status (endless)}
    {:status 200, :headers (endless)}
    {:status 200, :headers {(endless) "x"}}
    {:status 200, :headers {"X" (endless)}}
    {:status 200, :headers {"X" {1 (endless)}}}
    {:status 200, :headers {"Content-Length" (apply str (repeat 100000 "x"))}}))

(deftest endless-arguments-are-refused-in-short
  (are [form] (= :thrum/invalid (answer (fn [] form)))
    (server/run-server (endless))
    (server/run-server identity (endless))
    (server/run-server identity {:port (endless)})
    (server/run-server identity {:port 0, (endless) 1})
    (server/run-server identity {:engine (endless)})
    (server/run-server identity {:port 0, :engine-options {(endless) 1}})
    (server/stop! (endless))
    (server/access-log (endless))
    (server/sse (endless))
    (server/send! (endless) "x")
    (websocket/send! (WebSocket. nil nil) (endless))))

(deftest what-is-no-handler-is-answered-with-what-is-expected
  (doseq [handler [nil 7 "handler" {:max-concurrent 8}]
          :let [e (thrown #(server/run-server handler {:port 0}))]]
    (is (= [:thrum/invalid handler] ((juxt :type :value) (ex-data e))))
    (is (str/includes? (ex-message e) "a Ring handler"))))

(deftest an-unknown-option-that-is-nil-is-refused-too
  (is (= :prot (:option (ex-data (thrown #(server/run-server identity {:port 0, :prot nil})))))))

(deftest an-engine-that-is-nil-is-the-default
  (with-open [^AutoCloseable s (server/run-server identity {:engine nil, :port 0})]
    (is (= #{:http-1.0 :blocking-send} (server/capabilities s)))))

(deftest origins-that-no-page-has-are-refused
  (let [checked #(options/checked {:capabilities #{:websockets}, :rows {}} {:ws-origins %})]
    (are [origins] (= :thrum/invalid (:type (ex-data (thrown #(checked origins)))))
      "https://shop.example"
      ["shop.example"]
      ["https://shop.example/"]
      ["https://shop.example" "*"]
      ["https://shop.example:443"]
      ["http://shop.example:80"]
      ["https://shop.example:"]
      ["https://*.shop.example"]
      ["https://me@shop.example"]
      ["https://m\u00fcnchen.example"]
      ["https://"])
    (are [origins] (= origins (:ws-origins (checked origins)))
      :any
      []
      #{"https://shop.example" "http://localhost:8080" "http://[::1]:8080" "null"}
      ["moz-extension://5f4c" "file://" "capacitor://localhost" "NULL"])))

(defrecord Responder [response]
  IFn
  (invoke [_ _] response))

(deftest a-record-that-can-be-called-is-a-handler
  (with-open [server ^java.lang.AutoCloseable (server/run-server (->Responder {:status 204})
                                                                 {:port 0})]
    (is (server/ready? server))))

(deftest a-server-that-is-called-with-arguments-says-that-it-takes-none
  (with-open [server ^java.lang.AutoCloseable (server/run-server identity {:port 0})]
    (are [form] (= :thrum/invalid (:type (ex-data (thrown (fn [] form)))))
      (server 100)
      (server :timeout 100)
      (apply server [:timeout 100]))
    (is (server/ready? server))))

(deftest an-engine-without-options-of-its-own-says-so
  (is (= "Unknown option :x. None is known here."
         (ex-message (thrown #(server/run-server identity {:port 0, :engine-options {:x 1}}))))))

(deftest a-message-says-what-to-do
  (are [options part] (str/includes? (ex-message (thrown #(server/run-server identity options)))
                                     part)
    {:port 0, :health {:live "livez"}}
    "a map of :live, :ready or both to paths, each of which begins with /"
    {:port 0, :health {:ready "/readyz?verbose"}}
    "a map of :live, :ready or both to paths, each of which begins with /"
    {:port 0, :h2c? true}
    "doc/guides/servers.md has a table of the engines"))

(deftest wrong-options-and-events-of-a-stream-are-refused
  (are [form] (= :thrum/invalid (answer (fn [] form)))
    (server/sse {:heartbeat 100} identity)
    (server/sse {:heartbeat-ms 0} identity)
    (server/sse {:status 99} identity)
    (server/sse [] identity)
    (events/send! nil {:dat "x"})))

(defn- status-of
  "Returns the status of a GET of the server's root."
  [server]
  (with-open [client (HttpClient/newHttpClient)]
    (.statusCode (.send client
                        (-> (HttpRequest/newBuilder)
                            (.uri (URI/create (str "http://127.0.0.1:" (server/port server) "/")))
                            .build)
                        (HttpResponse$BodyHandlers/discarding)))))

(deftest a-websocket-of-an-engine-that-has-none-is-a-500
  (let [failed (promise)
        server (server/run-server (fn [_] {:ring.websocket/listener {}})
                                  {:engine :jdk
                                   :port 0
                                   :stop-on-shutdown? false
                                   :error-handler (fn [_ t] (deliver failed t) {:status 500})})]
    (try
      (is (= 500 (status-of server)) "not asked for an upgrade that there is not")
      (is (= {:type :thrum/response, :lacks :websockets} (ex-data (deref failed 5000 nil))))
      (finally (server/stop! server)))))
