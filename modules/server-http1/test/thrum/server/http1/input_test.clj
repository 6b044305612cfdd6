(ns thrum.server.http1.input-test
  "Heads one after the other, however their bytes arrive, and clients that go."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [deftest is]]
   [thrum.server.http1.connection :as connection]
   [thrum.server.http1.input :as input]
   [thrum.server.http1.sockets :as sockets]
   [thrum.server.spi.flow :as flow]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.net Socket)
   (java.nio ByteBuffer)
   (java.util.concurrent CompletableFuture)
   (thrum.server.http1.head Head)))

(set! *warn-on-reflection* true)

(defn- target [head]
  (if (instance? Head head) (.-target ^Head head) head))

(defn- targets
  "Returns the targets of so many heads, or what came instead."
  [n text]
  (sockets/with-client [c text]
    (let [in (input/input c)]
      (vec (repeatedly n #(target (input/head! in)))))))

(defn- get-of [target]
  (str "GET " target " HTTP/1.1\r\nHost: x\r\n\r\n"))

(deftest pipelined-heads-come-one-after-the-other
  (is (= ["/1" "/2" "/3" nil] (targets 4 (str/join (map get-of ["/1" "/2" "/3"])))))
  (is (= ["/1" "/2" nil] (targets 3 (str "\r\n\r\n" (get-of "/1") "\r\n" (get-of "/2"))))))

(deftest an-empty-line-may-come-in-two-pieces
  (sockets/call-with-client
    nil
    (fn [c ^Socket client]
      (let [in (input/input c)]
        (.write (.getOutputStream client) 13)
        (is (input/fill! in nil))
        (sockets/send-and-finish! client (str "\n" (get-of "/1")))
        (is (= ["/1" nil] (vec (repeatedly 2 #(target (input/head! in))))))))))

(deftest a-cr-alone-is-no-request
  (is (= [nil] (targets 1 "\r")))
  (is (= [400] (targets 1 "\rx"))))

(deftest heads-larger-than-the-buffer-arrive-whole
  (let [long-ones (map #(str "/" % (apply str (repeat 9000 "x"))) (range 5))]
    (is (= long-ones (targets 5 (str/join (map get-of long-ones)))))))

(deftest a-head-that-trickles-in-takes-no-more-room
  (sockets/call-with-client
    nil
    (fn [c ^Socket client]
      (let [in (input/input c)]
        (dotimes [_ 5]
          (.write (.getOutputStream client) (int \G))
          (is (input/fill! in nil)))
        (is (= 8192 (.capacity (input/received in))))))))

(deftest what-is-no-head-has-a-status
  (is (= [431] (targets 1 (get-of (apply str (repeat 20000 "x"))))))
  (is (= [431] (targets 1 (apply str (repeat 20000 "x")))))
  (is (= [400] (targets 1 "GET /\n\n")))
  (is (= [400] (targets 1 "GET / HTTX/1.1\r\n\r\n")))
  (is (= [505] (targets 1 "GET / HTTP/2.0\r\n\r\n")))
  (is (= [400] (targets 1 "GET / HTTP/2.00\r\n\r\n")))
  (is (= [nil] (targets 1 "GET / HT")))
  (is (= [nil] (targets 1 (apply str (repeat 5000 "\r\n"))))))

(deftest a-head-may-be-as-long-as-the-option-says
  (let [most (long (:max-header-bytes sockets/options))
        path #(apply str "/" (repeat (- (long %) (count (get-of "/"))) "x"))]
    (is (= [(path most)] (targets 1 (get-of (path most)))))
    (is (= [431] (targets 1 (get-of (path (inc most))))))))

(deftest a-watched-client-that-stays-loses-nothing
  (sockets/call-with-client
    nil
    (fn [c ^Socket client]
      (let [in (input/input c), gone (promise)]
        (input/watch! in #(deliver gone :gone))
        (sockets/send-and-finish! client (str (get-of "/1") (get-of "/2")))
        (is (= ["/1" "/2" nil] (vec (repeatedly 3 #(target (input/head! in))))))
        (is (not (realized? gone)))))))

(deftest a-watched-client-that-goes-is-noticed
  (sockets/call-with-client
    nil
    (fn [c ^Socket client]
      (let [in (input/input c), gone (promise)]
        (input/watch! in #(deliver gone :gone))
        (.close client)
        (is (= :gone (deref gone 5000 :late)))
        (is (nil? (input/head! in)))))))

(defn- send-watched!
  "Watches the client, which sends the text; returns when the bytes are there."
  [in ^Socket client ^String text]
  (input/watch! in (constantly nil))
  (.write (.getOutputStream client) (.getBytes text))
  (is (gate/eventually 5000 #(.hasRemaining ^ByteBuffer (input/received in)))))

(deftest what-comes-behind-a-watched-head-is-received
  (sockets/call-with-client
    nil
    (fn [c ^Socket client]
      (let [in (input/input c), body (byte-array 4)]
        (send-watched! in client (get-of "/1"))
        (is (= "/1" (target (input/head! in))))
        (sockets/send-and-finish! client "body")
        (is (= 4 (input/take! in body 0 4)))
        (is (= "body" (String. body)))))))

(deftest a-client-is-watched-behind-a-watched-head
  (sockets/call-with-client
    nil
    (fn [c ^Socket client]
      (let [in (input/input c), gone (promise)]
        (send-watched! in client (get-of "/1"))
        (is (= "/1" (target (input/head! in))))
        (input/watch! in #(deliver gone :gone))
        (.close client)
        (is (= :gone (deref gone 5000 :late)))))))

(deftest a-client-is-watched-by-one-thread
  (sockets/with-client [c nil]
    (let [in (input/input c), threads (atom 0)]
      (with-redefs [flow/elsewhere (fn [_] (swap! threads inc) (CompletableFuture.))]
        (dotimes [_ 2] (input/watch! in (constantly nil))))
      (is (= 1 @threads)))))

(deftest a-connection-that-is-cut-has-no-head
  (sockets/with-client [c nil]
    (connection/cut! c)
    (is (nil? (input/head! (input/input c))))))
