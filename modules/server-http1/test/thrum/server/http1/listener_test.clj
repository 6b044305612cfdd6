(ns thrum.server.http1.listener-test
  "What a listener survives, and what a start that fails leaves behind."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.server.http1 :as http1]
   [thrum.server.http1.connection :as connection]
   [thrum.server.http1.listener :as listener]
   [thrum.server.http1.requests :as requests]
   [thrum.server.http1.sockets :as sockets]
   [thrum.server.spi :as engine]
   [thrum.test-kit.gate :as gate]
   [thrum.test-kit.uncaught :as uncaught])
  (:import
   (java.io IOException OutputStream)
   (java.net InetAddress ServerSocket Socket SocketTimeoutException)
   (java.util.concurrent Semaphore)
   (thrum.server.http1 Connections)
   (thrum.server.http1.connection Connection)
   (thrum.server.http1.listener Listening)
   (thrum.server.http1.wire Ends Http1Wire)))

(set! *warn-on-reflection* true)

(def ^:private options
  (assoc sockets/options :host "127.0.0.1" :port 0 :backlog 10 :max-connections 10))

(defn- ok! [wire]
  (engine/send! wire 200 (object-array 0) (byte-array 0)))

(defn- served?
  "True if a client of its own is answered with 200."
  [running]
  (with-open [client (Socket. (InetAddress/getLoopbackAddress) (int (engine/port running)))]
    (.setSoTimeout client 5000)
    (.write (.getOutputStream client) (.getBytes "GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
    (try
      (= "HTTP/1.1 200" (String. (.readNBytes (.getInputStream client) 12)))
      (catch IOException _ false))))

(defn- with-server [options f & {:keys [serve], :or {serve ok!}}]
  (let [running (listener/start options serve nil)]
    (try
      (f running)
      (finally (engine/stop! running)))))

(defn- failing-once
  "Returns a function that throws an Error at its first call, and is f after it."
  [f]
  (let [failed (atom false)]
    (fn [& args]
      (when (compare-and-set! failed false true) (throw (OutOfMemoryError. "for the test")))
      (apply f args))))

(deftest an-error-does-not-end-the-listener
  (with-redefs [http1/accept! (failing-once http1/accept!)]
    (with-server options
      (fn [running]
        (is (not (served? running)))
        (is (served? running))))))

(deftest an-error-of-what-serves-is-reported
  (doseq [reuse? [false true]
          :let [e (Error. "for the test"), reported (promise)]]
    (uncaught/reporting
      (fn [_ t] (deliver reported t))
      (fn []
        (with-server (assoc options :engine-options {:reuse-threads? reuse?})
          #(is (not (served? %)))
          :serve (fn [_] (throw e)))
        (is (= e (deref reported 5000 :nothing)))))))

(deftest a-connection-that-cannot-be-made-takes-no-place
  (with-open [socket (Socket.)]
    (let [all (http1/connections (assoc options :max-connections 1))
          boom (fn [_ ^long _] (throw (OutOfMemoryError. "for the test")))
          refused? #(try
                      (http1/accept! all socket nil)
                      (catch OutOfMemoryError _ true))]
      (with-redefs [connection/expect! boom]
        (is (= [true true] (deref (future [(refused?) (refused?)]) 5000 :waiting-for-a-place)))))))

(deftest the-largest-numbers-are-no-overflow
  (with-server (assoc options
                      :max-connections Long/MAX_VALUE
                      :header-timeout-ms Long/MAX_VALUE
                      :idle-timeout-ms Long/MAX_VALUE)
    #(is (served? %))))

(deftest a-start-that-fails-gives-the-port-back
  (let [port (with-server options engine/port)
        options (assoc options :port port)]
    (with-redefs [http1/watch (failing-once http1/watch)]
      (is (thrown? OutOfMemoryError (listener/start options ok! nil)))
      (is (= port (with-server options engine/port))))))

(deftest the-thread-that-a-stop-waits-for-needs-no-carrier
  (let [^Listening running (listener/start options ok! nil)
        ^Thread acceptor (.-acceptor running)]
    (is (not (.isVirtual acceptor)))
    (engine/stop! running)
    (is (not (.isAlive acceptor)))
    (is (not (.isAlive ^Thread (.-watchdog running))))))

(deftest a-refusal-that-cannot-be-sent-is-reported-all-the-same
  (let [reported (promise)]
    (sockets/call-with-client nil
      (fn [^Connection c _]
        (let [c (connection/connection (.-raw c) (.-raw c)
                                       (assoc options :on-refused #(deliver reported %)))]
          (connection/cut! c)
          (is (false? (#'requests/refuse! c 400))))))
    (is (= 400 (:status (deref reported 0 nil))))))

(deftest what-is-no-request-is-reported
  (let [reported (promise)
        options (assoc options :on-refused #(deliver reported %))]
    (with-server options
      (fn [running]
        (with-open [client (Socket. (InetAddress/getLoopbackAddress) (int (engine/port running)))]
          (.write (.getOutputStream client) (.getBytes "GET  / HTTP/1.1\r\n\r\n"))
          (is (= {:request {:remote-addr "127.0.0.1"}, :status 400, :bytes 0}
                 (deref reported 5000 :nothing))))))))

;; The end, while clients come

(defn- ends?
  "True if the server ends the connection of a client that says something. One that was never
  accepted may know nothing of an end until then."
  [^Socket client]
  (.setSoTimeout client 5000)
  (try
    (.write (.getOutputStream client) (.getBytes "GET"))
    (neg? (.read (.getInputStream client)))
    (catch SocketTimeoutException _ false)
    (catch IOException _ true)
    (finally (.close ^Socket client))))

(defn- connect-on!
  "Connects to the port again and again, until it is closed, n times at most; returns the sockets."
  [port n]
  (loop [clients []]
    (if-some [client (when (< (count clients) (long n))
                       (try
                         (Socket. (InetAddress/getLoopbackAddress) (int port))
                         (catch IOException _)))]
      (recur (conj clients client))
      clients)))

(deftest a-stop-leaves-no-connection-behind-that-was-accepted
  (dotimes [_ 10]
    (let [running (listener/start (assoc options :max-connections 10000, :backlog 1000) ok! nil)
          port (engine/port running)
          clients (doall (repeatedly 3 #(future (connect-on! port 300))))]
      (is (served? running))
      (engine/stop! running)
      (is (zero? (count (remove ends? (mapcat deref clients))))))))

(deftest a-stop-does-not-wait-for-a-place
  (let [running (listener/start (assoc options :max-connections 1, :idle-timeout-ms 60000) ok! nil)
        connect #(Socket. (InetAddress/getLoopbackAddress) (int (engine/port running)))]
    (with-open [^Socket first-one (connect)]
      (.write (.getOutputStream first-one) (.getBytes "GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
      (.read (.getInputStream first-one))
      (let [^Socket second-one (connect)]
        (is (nil? (gate/in-time 10000 #(engine/stop! running))))
        (is (ends? second-one))))))

(deftest an-end-does-not-wait-for-ever-for-a-connection
  (with-open [listener (ServerSocket. 0 1 (InetAddress/getLoopbackAddress))
              _client (Socket. (InetAddress/getLoopbackAddress) (.getLocalPort listener))]
    (let [all (http1/connections options)
          c (http1/accept! all (.accept listener) nil)]
      ;; It is neither served nor watched: nothing gives its place back.
      (http1/close! all)
      (is (nil? (gate/in-time 20000 #(http1/end-all! all))))
      (is (connection/cut? c)))))

(defn- with-client
  "Calls f with a client's socket that has sent the text."
  [running ^String text f]
  (with-open [client (Socket. (InetAddress/getLoopbackAddress) (int (engine/port running)))]
    (.setSoTimeout client 5000)
    (.write (.getOutputStream client) (.getBytes text))
    (f client)))

(defn- received
  "Returns all that the client receives, up to the end."
  [^Socket client]
  (String. (.readAllBytes (.getInputStream client))))

(deftest an-error-behind-the-answer-ends-the-connection
  (uncaught/reporting
    (fn [_ _])
    (fn []
      (with-server options
        (fn [running]
          (with-client running "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
            #(is (str/starts-with? (received %) "HTTP/1.1 200"))))
        :serve #(do (ok! %) (throw (Error. "for the test")))))))

(deftest a-client-may-send-its-body-behind-the-answer
  (with-server options
    (fn [running]
      (with-client running "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n"
        (fn [^Socket client]
          (is (str/starts-with? (received client) "HTTP/1.1 200"))
          (is (nil? (.write (.getOutputStream client) (byte-array 3000000)))))))
    :serve #(do (engine/body %) (ok! %))))

(deftest the-rest-of-a-body-that-is-too-long-is-no-request
  (let [seen (atom [])
        ;; Of 64 bytes: what is skipped ends where one ends.
        hidden (str "GET /hidden HTTP/1.1\r\nHost: " (str/join (repeat 32 "x")) "\r\n\r\n")
        chunk (str/join (repeat 2048 hidden))]
    (with-server options
      (fn [running]
        (with-client running (str "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                                  "20000\r\n" chunk "\r\n0\r\n\r\n")
          received)
        (is (= ["/"] @seen)))
      :serve (fn [wire]
               (swap! seen conj (engine/target wire))
               (engine/body wire)
               (ok! wire)))))

(deftest a-stream-to-the-end-of-the-connection-that-is-whole-ends-without-a-reset
  (let [lingers (atom [])
        serve (fn [^Http1Wire wire]
                (let [^Connection c (.-connection ^Ends (.-ends wire))
                      note! #(swap! lingers conj (.getSoLinger ^Socket (.-raw c)))]
                  (engine/begin! wire 200 (object-array 0) -1)
                  (note!)
                  (engine/end! wire)
                  (note!)))]
    (with-server options
      (fn [running]
        (with-client running "GET / HTTP/1.0\r\n\r\n"
          #(do
             (received %)
             ;; The client's close may close the server's socket.
             (is (gate/eventually 5000 (fn [] (= [0 -1] @lingers)))))))
      :serve serve)))

(deftest a-stream-to-the-end-of-the-connection-whose-thread-throws-ends-in-a-reset
  (let [boom (Error. "for the test")
        serve (fn [wire]
                (doto ^OutputStream (engine/begin! wire 200 (object-array 0) -1)
                  (.write (.getBytes "some"))
                  (.flush))
                (throw boom))]
    (uncaught/reporting
      (fn [_ _])
      (fn []
        (with-server options
          (fn [running]
            (with-client running "GET / HTTP/1.0\r\n\r\n"
              #(is (thrown? IOException (received %)))))
          :serve serve)))))

(deftest a-client-that-goes-behind-its-answer-is-watched-no-more
  (let [gone (atom false)]
    (with-server options
      (fn [running]
        (with-client running "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
          (fn [^Socket client]
            (is (= 12 (alength (.readNBytes (.getInputStream client) 12))))
            (.shutdownOutput client)
            (received client))))
      :serve (fn [wire]
               (engine/watch! wire #(reset! gone true))
               (engine/unwatch! wire)
               (ok! wire)))
    (is (false? @gone))))

(deftest a-handler-that-goes-on-behind-its-answer-does-not-keep-the-end-back
  (let [gate (promise)]
    (with-server options
      (fn [running]
        (with-client running "GET / HTTP/1.0\r\n\r\n"
          #(is (str/starts-with? (received %) "HTTP/1.1 200")))
        (deliver gate :go))
      :serve #(do (ok! %) (deref gate 20000 nil)))))

(deftest nothing-is-accepted-behind-the-end
  (with-open [socket (Socket.)]
    (let [^Connections all (http1/connections options)]
      (http1/close! all)
      (is (thrown? IOException (http1/accept! all socket nil)))
      (is (empty? (.-open all))))))

(deftest what-is-sent-does-not-wait-for-more
  (with-open [listener (ServerSocket. 0 1 (InetAddress/getLoopbackAddress))
              _client (Socket. (InetAddress/getLoopbackAddress) (.getLocalPort listener))
              socket (.accept listener)]
    (http1/accept! (http1/connections options) socket nil)
    (is (.getTcpNoDelay socket))))

(deftest a-connection-gives-its-place-back-once
  (with-open [listener (ServerSocket. 0 1 (InetAddress/getLoopbackAddress))
              _client (Socket. (InetAddress/getLoopbackAddress) (.getLocalPort listener))]
    (let [^Connections all (http1/connections options)
          c (http1/accept! all (.accept listener) nil)]
      (connection/cut! c)
      (#'http1/look-at-all! all)
      (is (empty? (.-open all)))
      (http1/serve! all c nil nil)
      (is (= 10 (.availablePermits ^Semaphore (.-room all)))))))

(def ^:dynamic ^:private *left* :nothing)

(defn- leaving!
  "Serves a wire; notes in seen on which thread, and what is there of the request before."
  [seen wire]
  (let [thread (Thread/currentThread)]
    (swap! seen conj [(.threadId thread) *left* (.isInterrupted thread) (.getName thread)])
    (push-thread-bindings {#'*left* :left})
    (.setName thread "left")
    (ok! wire)
    (.interrupt thread)))

(defn- ask-four-times! [running]
  (with-open [client (Socket. (InetAddress/getLoopbackAddress) (int (engine/port running)))]
    (.setSoTimeout client 5000)
    (.write (.getOutputStream client)
            (.getBytes (str/join (repeat 4 "GET / HTTP/1.1\r\nHost: x\r\n\r\n"))))
    (.shutdownOutput client)
    (.readAllBytes (.getInputStream client))))

(deftest a-connection-may-have-one-thread-for-its-requests
  (doseq [[reuse? threads] {true 1, false 4}]
    (let [seen (atom [])]
      (with-server (assoc options :engine-options {:reuse-threads? reuse?}) ask-four-times!
        :serve #(leaving! seen %))
      (is (= threads (count (set (map first @seen)))))
      (is (= (repeat 4 [:nothing false "http-request"]) (map rest @seen))))))

(deftest an-abort-behind-the-answer-takes-no-other-request-away
  (let [calls (atom 0)]
    (with-server options ask-four-times!
      :serve #(do (ok! %) (engine/abort! %) (swap! calls inc)))
    (is (= 4 @calls))))

(deftest what-was-pipelined-is-not-served-behind-a-cut
  (let [calls (atom 0)]
    (with-server options #(try (ask-four-times! %) (catch IOException _))
      :serve (fn [^Http1Wire wire]
               (swap! calls inc)
               (ok! wire)
               (connection/cut! (.-connection ^Ends (.-ends wire)))))
    (is (= 1 @calls))))
