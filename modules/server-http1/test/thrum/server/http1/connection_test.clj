(ns thrum.server.http1.connection-test
  "How long a client may keep its server waiting."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.http1.connection :as connection]
   [thrum.server.http1.sockets :as sockets]
   [thrum.spi :as spi]
   [thrum.test-kit.gate :as gate])
  (:import
   (java.io OutputStream)
   (java.net Socket)
   (java.nio ByteBuffer)
   (java.util.concurrent.atomic AtomicLong AtomicReference)
   (thrum.server.http1.connection Connection)))

(set! *warn-on-reflection* true)

(defn- cut-at?
  "True if a look at that time cuts the connection."
  [c now]
  (connection/look! c now)
  (connection/cut? c))

(deftest a-client-that-is-waited-for-too-long-is-cut
  (sockets/with-client [c nil]
    (is (= [false true]
           (connection/receiving c 1000 #(vector (cut-at? c 1000) (cut-at? c 1001)))))))

(deftest a-client-that-is-not-waited-for-is-left-alone
  (sockets/with-client [c nil]
    (connection/receiving c 1000 (constantly nil))
    (is (not (cut-at? c Long/MAX_VALUE)))
    (is (not (cut-at? c Long/MIN_VALUE)))))

(deftest a-wait-that-ends-leaves-the-next-one-alone
  (sockets/with-client [c nil]
    (connection/receiving c 1000 #(connection/expect! c 2000))
    (is (= [false true] [(cut-at? c 2000) (cut-at? c 2001)]))))

(defn- doubted
  "Returns whether a look cuts the connection of a client that is late, and whose bytes were not
  received, and whether it is cut in the end; (f c) is called in between."
  [f]
  (sockets/with-client [c "G"]
    (is (gate/eventually 5000 #(pos? (.available (.getInputStream ^Socket (.-raw ^Connection c))))))
    (connection/expect! c 1000)
    (let [at-once (cut-at? c 1001)]
      (f c)
      (.join ^Thread (.get ^AtomicReference (.-again ^Connection c)))
      [at-once (connection/cut? c)])))

(deftest a-client-whose-bytes-are-not-received-is-cut-later
  (is (= [false true] (doubted (constantly nil))))
  (is (= [false true] (doubted #(connection/look! % 2000)))))

(deftest a-client-that-was-in-time-once-is-cut-when-it-is-late-again
  (is (= [false true]
         (doubted (fn [c]
                    (connection/expect! c 2000)
                    (.join ^Thread (.get ^AtomicReference (.-again ^Connection c)))
                    (is (not (connection/cut? c)))
                    (connection/look! c 2001))))))

(deftest a-client-whose-bytes-are-received-late-is-not-cut
  (is (= [false false]
         (doubted #(connection/receive! % (.limit (ByteBuffer/allocate 10) 0) 2000)))))

(deftest a-client-that-takes-bytes-must-send-some-all-the-same
  (sockets/with-client [c nil]
    (is (connection/receiving c 1000
                              #(do (connection/write! c (byte-array 10))
                                   (cut-at? c 1001))))))

(deftest a-body-is-written-in-pieces-each-of-which-has-its-time
  (sockets/with-client [c nil]
    (let [sizes (atom []), untils (atom []), c-of (promise)
          out (proxy [OutputStream] []
                (write [_ _ n]
                  (let [now (System/nanoTime)]
                    (swap! sizes conj n)
                    (swap! untils conj (.get ^AtomicLong (.-send-by ^Connection @c-of)))
                    (while (= now (System/nanoTime)) (Thread/onSpinWait)))))
          socket (proxy [Socket] [] (getOutputStream [] out))
          c (connection/connection (.-raw ^Connection c) socket sockets/options)]
      (deliver c-of c)
      (connection/write! c (byte-array 150000))
      (is (= [65536 65536 18928] @sizes))
      (is (apply < @untils)))))

(deftest a-connection-that-was-cut-waits-for-nobody
  (sockets/with-client [c nil]
    (connection/cut! c)
    (is (thrown? java.net.SocketException (connection/receiving c 1000 (constantly :waited))))
    (is (thrown? java.net.SocketException (connection/write! c (byte-array 1))))))

(deftest what-a-client-still-sends-takes-no-answer-away
  (sockets/call-with-client
    nil
    (fn [c ^Socket client]
      (let [sent (future (.write (.getOutputStream client) (byte-array 3000000))
                         (.shutdownOutput client)
                         :all)]
        (connection/receive-now! c (.limit (ByteBuffer/allocate 8192) 0))
        (connection/write! c (.getBytes "answer"))
        (connection/linger! c)
        (connection/close! c)
        (is (= [:all "answer"] [@sent (String. (.readAllBytes (.getInputStream client)))]))))))

(deftest what-a-client-still-sends-is-discarded-for-a-bounded-time-and-length
  (sockets/with-client [c nil]
    (let [untils (atom [])
          receive! (fn [_ ^ByteBuffer buffer until]
                     (.limit buffer 8192)
                     (> 2000 (count (swap! untils conj until))))]
      (with-redefs [connection/receive! receive!]
        (connection/linger! c))
      (is (= [512 1] [(count @untils) (count (distinct @untils))])))))

(deftest to-say-that-nothing-more-comes-has-its-time
  (sockets/with-client [c nil]
    (let [by (atom nil), c-of (promise)
          socket (proxy [Socket] []
                   (shutdownOutput []
                     (reset! by (.get ^AtomicLong (.-receive-by ^Connection @c-of)))))
          c (connection/connection (.-raw ^Connection c) socket sockets/options)]
      (deliver c-of c)
      (with-redefs [connection/receive! (constantly false)]
        (connection/linger! c))
      (is (< (spi/deadline-in 0) @by (spi/deadline-in 3000))))))

;; A close alone sends a FIN when the thread that reads has had a carrier.
(deftest a-cut-says-its-end-before-it-closes
  (let [trail (atom [])
        raw (proxy [Socket] []
              (getRemoteSocketAddress [] nil)
              (getLocalSocketAddress [] nil)
              (shutdownOutput [] (swap! trail conj :end))
              (close [] (swap! trail conj :close)))]
    (connection/cut! (connection/connection raw raw sockets/options))
    (is (= [:end :close] @trail))))
