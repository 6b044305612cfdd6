(ns thrum.server.engine.jetty.websocket-test
  "Websockets by Jetty, with a client of the JDK's."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.core :as t]
   [thrum.server :as server]
   [thrum.server.engine.jetty.websocket :as jetty-websocket]
   [thrum.server.spi :as engine]
   [thrum.server.tck.wire :as wire]
   [thrum.server.tck.ws-client :as ws]
   [thrum.test-kit.leak :as leak])
  (:import
   (java.io IOException)
   (java.net URI)
   (java.net.http HttpClient WebSocket WebSocket$Listener)
   (java.nio ByteBuffer)
   (java.util.concurrent CompletableFuture CompletionStage LinkedBlockingQueue TimeUnit)
   (org.eclipse.jetty.websocket.api Callback Session$Listener$AutoDemanding)))

(set! *warn-on-reflection* true)

(def ^:dynamic *engine*
  "The engine that is tested; Tomcat's tests bind it."
  :jetty)

(use-fixtures :each leak/no-leaks)

(defn- noting
  "Returns a listener of the client's side that notes what it is called with."
  [^LinkedBlockingQueue trail]
  (let [note (fn [^WebSocket ws & event]
               (.put trail (vec event))
               (.request ws 1)
               nil)]
    (reify WebSocket$Listener
      (onOpen [_ ws] (.request ws 1))
      (onText [_ ws text last] (note ws :text (count text) (str (first text)) last))
      (onBinary [_ ws data last] (note ws :binary (.remaining data) last))
      (onPong [_ ws data] (note ws :pong (.get data)))
      (onClose [_ ws code reason] (note ws :close code reason))
      (onError [_ _ t] (.put trail [:error (str t)])))))

(defn- next-event [^LinkedBlockingQueue trail]
  (.poll trail 5 TimeUnit/SECONDS))

(defn- done [^CompletionStage stage]
  (.get (.toCompletableFuture stage) 5 TimeUnit/SECONDS))

(defn- talk
  "Opens a websocket to a server with this listener, and calls (f ws trail); returns what it
  returned."
  [listener options f]
  (with-open [^java.lang.AutoCloseable s
              (server/run-server
                (constantly {:ring.websocket/listener listener})
                (merge {:engine *engine*, :port 0, :stop-on-shutdown? false, :shutdown-timeout-ms 0}
                       options))
              client (HttpClient/newHttpClient)]
    (let [trail (LinkedBlockingQueue.)
          ^WebSocket ws (done (.buildAsync (.newWebSocketBuilder client)
                                           (URI. (str "ws://127.0.0.1:" (server/port s) "/"))
                                           (noting trail)))]
      (try
        (f ws trail)
        (finally
          (.abort ws))))))

(def ^:private echo
  {:on-message (fn [ws message] (server/send! ws message))})

(deftest buffers-are-the-listeners-to-keep
  (let [kept (atom [])
        keep! (fn [ws message] (swap! kept conj message) (server/send! ws "kept"))]
    (talk {:on-message keep!} {}
          (fn [^WebSocket ws trail]
            (doseq [b [1 2 3]]
              (done (.sendBinary ws (ByteBuffer/wrap (byte-array 100 (byte b))) true))
              (is (= [:text 4 "k" true] (next-event trail))))
            (is (= [1 2 3] (map #(.get ^ByteBuffer % 50) @kept)))))))

(deftest a-callback-has-no-deadline
  (talk {:on-message (fn [ws _] (server/send! ws (pr-str (t/remaining-ms))))}
        {:request-timeout-ms 60000}
        (fn [^WebSocket ws trail]
          (done (.sendText ws "?" true))
          (is (= [:text 3 "n" true] (next-event trail))))))

;; A message that is inflated could be longer than :ws-max-message-bytes.
(deftest no-extension-is-taken
  (with-open [^java.lang.AutoCloseable s
              (server/run-server (constantly {:ring.websocket/listener echo})
                                 {:engine *engine*, :port 0, :stop-on-shutdown? false
                                  :shutdown-timeout-ms 0})]
    (let [client (wire/connect (server/port s))]
      (try
        (wire/send! client (ws/handshake "Sec-WebSocket-Extensions: permessage-deflate"))
        (let [answer (wire/head client)]
          (is (= [101 nil] [(:status answer) (wire/header answer "sec-websocket-extensions")])))
        (finally (wire/close! client))))))

(deftest messages-are-whole-whatever-their-frames
  (talk echo {}
        (fn [^WebSocket ws trail]
          (done (.sendText ws "he" false))
          (done (.sendText ws "llo" true))
          (is (= [:text 5 "h" true] (next-event trail)))
          (done (.sendBinary ws (ByteBuffer/wrap (byte-array 70000)) true))
          (is (= 70000 (loop [n 0]
                         (let [[_ more last] (next-event trail)
                               n (+ n (long (or more 0)))]
                           (if (or last (nil? more)) n (recur n)))))))))

(deftest a-buffer-that-was-sent-is-as-it-was
  (let [buffer (.slice (ByteBuffer/wrap (byte-array [1 2 3 4 5 6])) 1 4)]
    (talk {:on-open (fn [ws]
                      (.position buffer 1)
                      (.limit buffer 3)
                      (server/send! ws buffer)
                      (server/ping! ws buffer)
                      (server/send! ws buffer))}
          {}
          (fn [_ trail]
            (is (= [:binary 2 true] (next-event trail)))
            (is (= [:binary 2 true] (next-event trail)))
            (is (= [1 3] [(.position buffer) (.limit buffer)]))))))

(deftest a-ping-is-answered-once
  (talk {:on-message (fn [ws _] (server/send! ws "x"))} {}
        (fn [^WebSocket ws trail]
          (done (.sendPing ws (ByteBuffer/wrap (byte-array [7]))))
          (is (= [:pong 7] (next-event trail)))
          (done (.sendText ws "next" true))
          (is (= [:text 1 "x" true] (next-event trail))))))

(deftest codes-and-reasons-of-a-close-go-both-ways
  (let [closed (promise)]
    (talk {:on-close (fn [_ code reason] (deliver closed [code reason]))} {}
          (fn [^WebSocket ws _]
            (done (.sendClose ws 4321 "enough"))
            (is (= [4321 "enough"] (deref closed 5000 :never))))))
  (talk {:on-open (fn [ws] (server/close! ws 4001 "no more"))} {}
        (fn [_ trail] (is (= [:close 4001 "no more"] (next-event trail))))))

(deftest a-message-that-is-too-long-is-refused-with-1009
  (doseq [text? [true false]]
    (let [got (atom [])]
      (talk {:on-message (fn [_ message] (swap! got conj message))} {:ws-max-message-bytes 100}
            (fn [^WebSocket ws trail]
              (done (if text?
                      (.sendText ws (apply str (repeat 101 "x")) true)
                      (.sendBinary ws (ByteBuffer/wrap (byte-array 101)) true)))
              (is (= [:close 1009] (take 2 (next-event trail))))
              (is (= [] @got)))))))

(deftest many-small-frames-are-one-message-that-may-be-too-long
  (talk echo {:ws-max-message-bytes 100}
        (fn [^WebSocket ws trail]
          (dotimes [_ 11] (try (done (.sendText ws "xxxxxxxxxx" false)) (catch Exception _ nil)))
          (is (= [:close 1009] (take 2 (next-event trail)))))))

(deftest each-message-may-be-as-long-as-the-bound
  (talk echo {:ws-max-message-bytes 100}
        (fn [^WebSocket ws trail]
          (dotimes [_ 3]
            (done (.sendText ws (str/join (repeat 100 "x")) true))
            (is (= [:text 100 "x" true] (next-event trail)))
            (done (.sendBinary ws (ByteBuffer/wrap (byte-array 100)) true))
            (is (= [:binary 100 true] (next-event trail))))
          (done (.sendText ws (str/join (repeat 51 "\u00e9")) true))
          (is (= [:close 1009] (take 2 (next-event trail))) "102 bytes"))))

(deftest a-silent-websocket-is-closed
  (let [closed (promise)]
    (talk {:on-close (fn [_ code _] (deliver closed code))} {:ws-idle-timeout-ms 200}
          (fn [_ trail]
            (is (= :close (first (next-event trail))))
            (is (int? (deref closed 5000 nil)))))))

(deftest a-client-that-vanishes-is-told-once
  (let [closed (atom []), told (promise)]
    (talk {:on-close (fn [_ code _] (swap! closed conj code) (deliver told true))} {}
          (fn [^WebSocket ws _]
            (.abort ws)
            (is (deref told 5000 nil))
            (is (= [1006] @closed))))))

(deftest an-on-error-that-throws-keeps-no-on-close-from-its-listener
  (let [closed (promise)
        listener (reify engine/Listener
                   (on-open [_ _])
                   (on-error [_ _ t] (throw t))
                   (on-close [_ _ code _] (deliver closed code)))
        ^Session$Listener$AutoDemanding endpoint
        (#'jetty-websocket/endpoint listener (CompletableFuture.))]
    (.onWebSocketOpen endpoint nil)
    (.onWebSocketError endpoint (IOException. "Broken pipe"))
    (.onWebSocketClose endpoint 1006 nil Callback/NOOP)
    (is (= 1006 (deref closed 5000 :never)))))

(deftest a-slow-reader-blocks-who-sends
  (let [sent (atom 0)
        failed (promise)
        flood (fn [ws]
                (try
                  (dotimes [_ 2000]
                    (server/send! ws (ByteBuffer/wrap (byte-array 65536)))
                    (swap! sent inc))
                  (catch java.io.IOException e (deliver failed e))))]
    (with-open [^java.lang.AutoCloseable s (server/run-server
                                             (constantly {:ring.websocket/listener
                                                          {:on-open flood}})
                                             {:engine *engine*
                                              :port 0
                                              :stop-on-shutdown? false
                                              :shutdown-timeout-ms 0
                                              :idle-timeout-ms 60000})
                client (java.net.Socket. "127.0.0.1" (int (server/port s)))]
      (.write
        (.getOutputStream client)
        (.getBytes
          (str "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
               "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")))
      (is (= 72 (.read (.getInputStream client))))
      (is (= :blocked (deref failed 500 :blocked)))
      (is (< (long @sent) 2000))
      (.setSoLinger client true 0)
      (.close client)
      (is (instance? java.io.IOException (deref failed 5000 nil))))))

(defn- sent-in-time?
  "Calls (send!); returns whether that was done within 20 ms."
  [send!]
  (try
    (t/with-timeout 20 (send!) true)
    (catch Exception _ false)))

(defn- how-many-in-time [send!]
  (count (filterv true? (repeatedly 40 #(sent-in-time? send!)))))

(deftest what-interrupted-senders-leave-does-not-pile-up
  (let [sent (promise)
        impatient (fn [ws]
                    (deliver sent
                             (into {}
                                   (map (fn [[kind send!]] [kind (how-many-in-time send!)]))
                                   [[:binary #(server/send! ws (byte-array 1000000))]
                                    [:ping #(server/ping! ws)]
                                    [:pong #(server/pong! ws)]]))
                    (try (server/close! ws) (catch java.io.IOException _)))]
    (with-open [^java.lang.AutoCloseable s (server/run-server
                                             (constantly {:ring.websocket/listener
                                                          {:on-open impatient}})
                                             {:engine *engine*, :port 0, :stop-on-shutdown? false
                                              :shutdown-timeout-ms 0})]
      (let [client (wire/send! (wire/connect (server/port s)) (ws/handshake))]
        (wire/head client)
        (let [most (update-vals (deref sent 20000 {}) inc)
              frames (into [] (take-while vector?) (repeatedly #(ws/read-frame client)))
              lengths (keep (fn [[kind data]] (when (= :binary kind) (count data))) frames)]
          (is (= (repeat (count lengths) 1000000) lengths) "each is whole")
          (doseq [[kind n] (dissoc (frequencies (map first frames)) :close)]
            (is (<= n (get most kind -1)) (str kind))))
        (wire/close! client)))))
