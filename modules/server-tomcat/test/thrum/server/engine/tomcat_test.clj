(ns thrum.server.engine.tomcat-test
  "Tomcat as an engine, beside what it has in common with Jetty: its options, its connections, and
  handlers that are late."
  (:require
   [clojure.set :as set]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.engine.tomcat.connections :as connections]
   [thrum.server.engine.tomcat.messages :as messages]
   [thrum.server.engine.tomcat.websocket :as websocket]
   [thrum.server.tck.scene :as scene]
   [thrum.server.tck.wire :as wire]
   [thrum.server.tck.ws-client :as ws]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.leak :as leak])
  (:import
   (clojure.lang ExceptionInfo)
   (jakarta.websocket Endpoint)
   (java.io IOException InputStream)
   (java.nio ByteBuffer)
   (org.apache.coyote.http11 Http11NioProtocol)))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(defn- serve [handler options]
  (server/run-server handler (merge {:engine :tomcat, :port 0, :stop-on-shutdown? false} options)))

(defn- ok [_]
  {:status 200, :headers {}, :body "ok"})

;; Start

(defn- start-failure [options]
  (try
    (server/stop! (serve ok options))
    (catch ExceptionInfo e (ex-data e))))

(deftest bad-options-are-refused
  (doseq [[option options] {:max-concurrent {:max-concurrent 0}
                            :max-concurent {:max-concurent 10}
                            :h2-max-stream {:engine-options {:h2-max-stream 1}}
                            :interrupt-on-disconnect? {:interrupt-on-disconnect? true}}]
    (is (= [:thrum/invalid option] ((juxt :type :option) (start-failure options))))))

(deftest a-configurator-gets-the-protocol-before-it-starts
  (let [found (promise)
        s (serve ok
                 {:engine-options {:configurator
                                   (fn [^Http11NioProtocol p]
                                     (deliver found [(.getLocalPort p) (.getAcceptCount p)]))}})]
    (server/stop! s)
    (is (= [-1 4096] (deref found 0 :never)))))

(deftest a-connection-serves-more-than-a-hundred-requests
  (let [s (serve ok {})
        client (wire/connect (server/port s))]
    (dotimes [_ 150] (is (= 200 (:status (wire/ask! client (wire/get "/"))))))
    (wire/send! client (apply str (repeat 150 (wire/get "/"))))
    (dotimes [_ 150] (is (= 200 (:status (wire/response client)))))
    (wire/close! client)
    (server/stop! s)))

;; The end

(defn- connection-threads
  "Returns the threads that Tomcat serves connections on, as a set."
  []
  (set (leak/threads #(and (.isVirtual ^Thread %) (= "tomcat" (.getName ^Thread %))))))

(deftest a-stop-waits-for-no-rest-of-a-body
  (doseq [[status head] {200 "POST / HTTP/1.1\r\nContent-Length: 100000\r\n"
                         400 "POST  / HTTP/1.1\r\nContent-Length: 100000\r\n"}]
    (let [before (connection-threads)
          s (serve ok {})
          client (wire/connect (server/port s))
          left #(count (set/difference (connection-threads) before))]
      (is (= [status :length]
             ((juxt :status :framing) (wire/ask! client head "Host: localhost\r\n\r\nabc"))))
      (is (gate/eventually 5000 #(zero? (:in-flight (server/status s)))))
      (is (gate/eventually 5000 #(= 1 (left))))
      (server/stop! s)
      (is (gate/eventually 5000 #(zero? (left))) status)
      (wire/close! client))))

;; Requests

;; A reused thread

(def ^:private reusing {:engine-options {:reuse-threads? true}})

(deftest a-reused-thread-has-its-name-again
  (let [seen (atom [])
        s (serve (fn [_]
                   (let [thread (Thread/currentThread)]
                     (swap! seen conj [(.threadId thread) (.getName thread)])
                     (.setName thread "left"))
                   (ok nil))
                 reusing)
        client (wire/connect (server/port s))]
    (wire/send! client (apply str (repeat 4 (wire/get "/"))))
    (dotimes [_ 4] (wire/response client))
    (is (= [1 #{"tomcat"}] [(count (set (map first @seen))) (set (map second @seen))]))
    (wire/close! client)
    (server/stop! s)))

(defn- interrupted-late?
  "Returns whether the handler of a request is interrupted for the rest of the body before it, which
  ends while its connection is about to be cut for it."
  [options]
  (let [late (promise), go (promise), entered (promise), answer (promise), cut! connections/cut!
        s (serve (fn [{:keys [uri]}]
                   (when (= "/next" uri)
                     (deliver entered true)
                     (deliver answer (try (deref go 3000 nil)
                                          (deref (promise) 300 false)
                                          (catch InterruptedException _ true))))
                   (ok nil))
                 (assoc options :header-timeout-ms 200))
        client (wire/connect (server/port s))]
    (with-redefs [connections/cut! (fn [socket end?]
                                     (deliver late true)
                                     (deref go 3000 nil)
                                     (cut! socket end?))]
      (wire/send! client "POST /first HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n")
      (wire/response client)
      (is (deref late 5000 false))
      (wire/send! client (apply str (repeat 10000 "x")) (wire/get "/next"))
      ;; Nothing enters where the thread waits for the cut.
      (deref entered 500 nil)
      (deliver go true)
      (let [interrupted (deref answer 5000 :not-called)]
        (wire/close! client)
        (server/stop! s)
        interrupted))))

(deftest the-rest-of-a-body-interrupts-no-later-request
  (is (= [false false] (map interrupted-late? [{} reusing]))))

(deftest two-blanks-in-the-line-are-refused
  (let [s (serve ok {})
        status #(:status (wire/ask-once! (server/port s) %))]
    (doseq [line ["GET  / HTTP/1.1" "GET /  HTTP/1.1" "GET \t/ HTTP/1.1" "GET / \tHTTP/1.1"]]
      (is (= 400 (status (str line "\r\nHost: localhost\r\n\r\n"))) (pr-str line)))
    (is (= 200 (status (str "\r\n\r\n" (wire/get "/"))))
        "lines before the request's are none of it")
    (server/stop! s)))

;; Late handlers, and late readers

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
                     (when-not (try
                                 (deref gate)
                                 true
                                 (catch InterruptedException _ false))
                       (recur)))
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

(deftest an-interrupt-after-the-handshake-leaves-no-websocket-open
  (let [interrupt! (fn [_]
                     (.interrupt (Thread/currentThread))
                     true)
        listener {:ring.websocket/listener {}}]
    (with-redefs-fn {#'websocket/sent? interrupt!}
      (fn []
        (let [s (serve (constantly listener) {})
              client (wire/send! (wire/connect (server/port s)) (ws/handshake))]
          (is (= 101 (:status (wire/head client))))
          (is (wire/closed? client))
          (wire/close! client)
          (server/stop! s))))))

(deftest a-websocket-that-has-ended-can-be-cut
  (let [cut (promise), socket messages/socket]
    (with-redefs-fn {#'messages/socket (fn [& parts]
                                         (deliver cut (last parts))
                                         (apply socket parts))}
      (fn []
        (let [s (serve (constantly {:ring.websocket/listener {}}) {})
              client (wire/send! (wire/connect (server/port s)) (ws/handshake))
              abort! (deref cut 5000 nil)]
          (server/stop! s)
          (wire/close! client)
          (is (= :cut (do (abort!) :cut))))))))

(defn- reporting-late
  "Returns Tomcat's endpoint for a conversation, whose closes are reported when the gate is open."
  [endpoint gate conversation]
  (let [^Endpoint plain (endpoint conversation)]
    (proxy [Endpoint] []
      (onOpen [session config] (.onOpen plain session config))
      (onClose [session reason]
        (deref gate 10000 nil)
        (.onClose plain session reason))
      (onError [session throwable] (.onError plain session throwable)))))

(deftest a-close-that-is-answered-at-once-keeps-its-code
  (let [gate (promise), closed (promise)
        listener {:on-open (fn [ws] (server/close! ws 4000 "bye"))
                  :on-close (fn [_ code reason] (deliver closed [code reason]))}
        endpoint @#'websocket/endpoint]
    (with-redefs-fn {#'websocket/endpoint (partial reporting-late endpoint gate)}
      (fn []
        (let [s (serve (constantly {:ring.websocket/listener listener}) {})
              client (wire/send! (wire/connect (server/port s)) (ws/handshake))]
          (is (= 101 (:status (wire/head client))))
          (is (= 4000 (ws/close-code (ws/read-frame client))))
          (wire/send! client (ws/frame :close (ws/code-text 4000)))
          (is (wire/closed? client))
          (deliver gate :open)
          (is (= [4000 "bye"] (deref closed 5000 :late)))
          (wire/close! client)
          (server/stop! s))))))

(def ^:private long-message
  "More than the sockets' buffers take."
  (byte-array 32000000))

(defn- close-behind-a-message!
  "Has a websocket closed while a message waits for its client, of which the client has read the
  first 10 bytes, its frame's head. Calls (f client closed): closed is a promise of what close!
  returned or threw."
  [f]
  (let [socket (promise)
        send-it (fn [ws]
                  (deliver socket ws)
                  (try (server/send! ws long-message) (catch IOException _)))
        s (serve (constantly {:ring.websocket/listener {:on-open send-it}})
                 {:shutdown-timeout-ms 0})
        client (wire/send! (wire/connect (server/port s)) (ws/handshake))]
    (try
      (wire/head client)
      (wire/read-bytes client 10)
      (f client (scene/start #(server/close! @socket 4001 "bye")))
      (finally
        (wire/close! client)
        (server/stop! s)))))

(deftest a-close-waits-for-the-message-before-it
  (close-behind-a-message!
    (fn [client closed]
      (is (= :waits (deref closed 300 :waits)))
      (is (= (count long-message) (count (wire/read-bytes client (count long-message)))))
      (is (= 4001 (ws/close-code (ws/read-frame client))))
      (is (= {:value nil} (deref closed 5000 :waits))))))

(deftest a-close-that-cannot-be-sent-is-reported
  (close-behind-a-message!
    (fn [client closed]
      (is (= :waits (deref closed 300 :waits)))
      (wire/reset!! client)
      (is (instance? IOException (:thrown (deref closed 5000 nil)))))))

;; Messages

(defn- used-mb []
  (System/gc)
  (let [runtime (Runtime/getRuntime)]
    (quot (- (.totalMemory runtime) (.freeMemory runtime)) 1000000)))

(deftest a-websocket-keeps-no-room-for-its-longest-message
  (doseq [[parts piece] {@#'messages/texts (apply str (repeat 1000000 "a"))
                         @#'messages/binaries (ByteBuffer/wrap (byte-array 1000000))}
          :let [before (used-mb)
                all (vec (repeatedly 64 parts))]]
    (doseq [{:keys [hold! whole clear!]} all]
      (hold! piece)
      (whole)
      (clear!))
    (is (gate/eventually 5000 #(< (- (used-mb) before) 32)))
    (is (= 64 (count all)))))

;; A client that reads nothing

(defn- call-with-deaf-client
  "Calls (f server client ws) with a websocket whose client reads nothing behind the handshake."
  [listener options f]
  (let [opened (promise)
        listener (assoc listener :on-open #(deliver opened %))
        s (serve (constantly {:ring.websocket/listener listener}) options)
        client (wire/send! (wire/connect (server/port s)) (ws/handshake))]
    (try
      (wire/head client)
      (f s client (deref opened 5000 nil))
      (finally
        (wire/close! client)
        (server/stop! s)))))

(deftest the-deadline-of-a-send-is-no-failure
  (call-with-deaf-client {} {:shutdown-timeout-ms 0}
    (fn [_ _ ws]
      (is (= :late (t/with-timeout [200 :late] (server/send! ws long-message)))))))

(deftest the-end-of-a-server-ends-a-send
  (let [closed (promise)]
    (call-with-deaf-client {:on-close (fn [_ _ _] (deliver closed true))} {:shutdown-timeout-ms 0}
      (fn [s _ ws]
        (let [sent (scene/start #(server/send! ws long-message))]
          (is (= :waits (deref sent 300 :waits)))
          (server/stop! s)
          (is (instance? IOException (:thrown (deref sent 5000 nil))))
          (is (deref closed 5000 false)))))))

(deftest a-ping-that-is-interrupted-ends-a-send
  (call-with-deaf-client {} {:shutdown-timeout-ms 0}
    (fn [_ _ ws]
      (let [sent (scene/start #(server/send! ws long-message))]
        (is (= :waits (deref sent 300 :waits)))
        (is (= :late (t/with-timeout [200 :late] (server/ping! ws))))
        (is (instance? IOException (:thrown (deref sent 5000 nil))))))))

(deftest no-handler-reads-the-body-of-the-next-request
  (let [body (promise)
        keep-it (fn [{:keys [uri] :as r}] (when (= "/first" uri) (deliver body (:body r))) (ok r))
        s (serve keep-it {})
        client (wire/connect (server/port s))]
    (is (= 200 (:status (wire/ask! client (wire/post "/first" "mine")))))
    (is (= 200 (:status (wire/ask! client (wire/post "/second" "yours")))))
    (is (thrown? IOException (.read ^InputStream @body)))
    (wire/close! client)
    (server/stop! s)))
