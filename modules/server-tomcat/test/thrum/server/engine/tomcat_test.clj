(ns thrum.server.engine.tomcat-test
  "Tomcat as an engine: its threads, its start and end, slow clients, and interrupts while a client is waited for."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.tck.wire :as wire]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.keys :as keys]
   [thrum.test-kit.leak :as leak])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io InputStream)
   (java.net InetAddress ServerSocket)
   (java.util.concurrent CountDownLatch TimeUnit)
   (org.apache.coyote.http11 Http11NioProtocol)))

(set! *warn-on-reflection* true)

(defn- all-tomcat-threads []
  (filter #(re-find #"-(Poller|Acceptor)" (.getName ^Thread %)) (clojure.core/keys (Thread/getAllStackTraces))))

(def ^:private ^:dynamic *others*
  "The threads of the servers of other tests."
  #{})

(defn- among-others [test]
  (binding [*others* (set (all-tomcat-threads))]
    (test)))

(use-fixtures :each leak/no-leaks among-others)

(defn- serve [handler options]
  (server/run-server handler (merge {:engine :tomcat, :port 0, :stop-on-shutdown? false} options)))

(defn- ok [_]
  {:status 200, :headers {}, :body "ok"})

(defn- tomcat-threads []
  (remove *others* (all-tomcat-threads)))

(defn- gone?
  "Waits until Tomcat has no platform thread left."
  []
  (gate/eventually 3000 #(empty? (tomcat-threads))))

;; Start and stop

(defn- start-failure [options]
  (try
    (server/stop! (serve ok options))
    (catch ExceptionInfo e (ex-data e))))

(deftest a-port-in-use-leaves-no-thread
  (with-open [taken (ServerSocket. 0 1 (InetAddress/getByName "127.0.0.1"))]
    (is (= :thrum/start-failed (:type (start-failure {:port (.getLocalPort taken)}))))
    (is (gone?))))

(deftest a-wrong-password-leaves-no-thread-and-stays-secret
  (let [failure (try
                  (serve ok {:ssl-port 0, :keystore (keys/key-store "server"), :key-password "battery-staple"})
                  (catch ExceptionInfo e e))]
    (is (= :thrum/start-failed (:type (ex-data failure))))
    (is (not (str/includes? (str failure (ex-cause failure)) "battery-staple")))
    (is (gone?))))

(deftest a-missing-key-store-leaves-no-thread
  (is (= :thrum/start-failed (:type (start-failure {:ssl-port 0, :keystore "no/such/store.p12", :key-password "x"}))))
  (is (gone?)))

(deftest bad-options-are-refused
  (doseq [[option options] {:max-concurrent {:max-concurrent 0}
                            :max-concurent {:max-concurent 10}
                            :h2-max-stream {:engine-options {:h2-max-stream 1}}
                            :interrupt-on-disconnect? {:interrupt-on-disconnect? true}}]
    (is (= [:thrum/invalid option] ((juxt :type :option) (start-failure options))))))

(deftest stopping-ends-every-thread-of-tomcat
  (let [s (serve ok {})]
    (is (seq (tomcat-threads)))
    (server/stop! s)
    (is (gone?))))

(deftest a-configurator-gets-the-protocol-before-it-starts
  (let [found (promise)
        s (serve ok {:engine-options {:configurator (fn [^Http11NioProtocol p] (deliver found [(.getLocalPort p) (.getAcceptCount p)]))}})]
    (server/stop! s)
    (is (= [-1 4096] (deref found 0 :never)))))

(deftest platform-threads-do-not-grow-with-requests
  (let [n 200
        all-in (CountDownLatch. n)
        gate (promise)
        s (serve (fn [r] (.countDown all-in) (deref gate 5000 nil) (ok r)) {})
        before (count (tomcat-threads))
        clients (vec (repeatedly n #(wire/send! (wire/connect (server/port s)) (wire/get "/"))))]
    (is (.await all-in 10 TimeUnit/SECONDS))
    (is (<= (count (tomcat-threads)) before))
    (deliver gate :open)
    (is (every? #(= 200 (:status (wire/response %))) clients))
    (run! wire/close! clients)
    (server/stop! s)))

(deftest a-connection-serves-more-than-a-hundred-requests
  (let [s (serve ok {})
        client (wire/connect (server/port s))]
    (dotimes [_ 150] (is (= 200 (:status (wire/ask! client (wire/get "/"))))))
    (wire/send! client (apply str (repeat 150 (wire/get "/"))))
    (dotimes [_ 150] (is (= 200 (:status (wire/response client)))))
    (wire/close! client)
    (server/stop! s)))

;; Slow clients

(defn- trickle!
  "Sends bytes to the socket, one each 20 ms, until the other side has closed it; returns whether it did within ms."
  [client ms text]
  (let [left (atom (seq text))]
    (gate/eventually ms #(do (Thread/sleep 20)
                             (not (wire/try-send! client (if-let [[c & more] @left] (do (reset! left more) (str c)) "x")))))))

(deftest a-head-that-trickles-in-is-given-up
  (let [s (serve ok {:header-timeout-ms 300})
        client (wire/connect (server/port s))]
    (is (= 200 (:status (wire/ask! client (wire/get "/")))))
    (is (trickle! client 5000 "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "))
    (wire/close! client)
    (server/stop! s)))

(deftest a-handshake-that-trickles-in-is-given-up
  (let [s (serve ok {:port nil, :ssl-port 0, :keystore (keys/key-store "server"), :key-password keys/password
                     :header-timeout-ms 300})
        client (wire/connect (server/ssl-port s))]
    ;; The header of a record of 16 KiB that never comes.
    (is (trickle! client 5000 (map char [22 3 1 64 0])))
    (wire/close! client)
    (server/stop! s)))

;; Interrupts while a client is waited for

(def ^:private half-a-body "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf")

(deftest a-read-that-waits-ends-at-its-deadline
  (let [ended (promise)
        read-all (fn [{:keys [body]}]
                   (try
                     (t/with-timeout 200 (slurp body))
                     (catch Throwable e
                       (deliver ended [(:type (ex-data e)) (Thread/interrupted)])
                       (throw e))))
        s (serve read-all {:idle-timeout-ms 60000})
        client (wire/send! (wire/connect (server/port s)) half-a-body)]
    (is (= [:thrum/timeout false] (deref ended 5000 :never)))
    (is (gate/eventually 5000 #(zero? (:in-flight (server/status s)))))
    (wire/close! client)
    (server/stop! s)))

(deftest a-write-that-waits-ends-at-its-deadline
  (let [ended (promise)
        endless (fn [_] {:status 200, :headers {}, :body (repeat (apply str (repeat 100000 "x")))})
        s (serve endless {:request-timeout-ms 300, :idle-timeout-ms 60000
                          :observer {:end (fn [event] (deliver ended event))}})
        client (wire/send! (wire/connect (server/port s)) (wire/get "/"))]
    (is (map? (deref ended 5000 :never)))
    (is (= 1 (:timed-out (server/status s))))
    (is (gate/eventually 5000 #(zero? (:in-flight (server/status s)))))
    (wire/close! client)
    (server/stop! s)))

(deftest a-late-handler-keeps-no-client
  (let [gate (promise)
        stubborn (fn [r]
                   (loop []
                     (when-not (try (deref gate) true (catch InterruptedException _ false)) (recur)))
                   (ok r))
        s (serve stubborn {:request-timeout-ms 100})
        client (wire/connect (server/port s))
        {:keys [status headers]} (wire/ask! client (wire/get "/"))]
    (is (= [503 ["close"]] [status (headers "connection")]))
    (is (wire/closed? client))
    (is (= 1 (:overdue (server/status s))))
    (deliver gate :open)
    (is (gate/eventually 5000 #(zero? (:in-flight (server/status s)))))
    (server/stop! s)))

(deftest nobody-reads-the-body-of-the-next-request
  (let [body (promise)
        keep-it (fn [{:keys [uri] :as r}] (when (= "/first" uri) (deliver body (:body r))) (ok r))
        s (serve keep-it {})
        client (wire/connect (server/port s))]
    (is (= 200 (:status (wire/ask! client (wire/post "/first" "mine")))))
    (is (= 200 (:status (wire/ask! client (wire/post "/second" "yours")))))
    (is (thrown? java.io.IOException (.read ^InputStream @body)))
    (wire/close! client)
    (server/stop! s)))
