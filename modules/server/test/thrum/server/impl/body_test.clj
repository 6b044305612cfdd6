(ns thrum.server.impl.body-test
  "How a stream becomes the bytes of a response."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.body :as body]
   [thrum.spi :as spi])
  (:import
   (java.io BufferedInputStream ByteArrayInputStream ByteArrayOutputStream OutputStream SequenceInputStream)
   (java.util Arrays)))

(set! *warn-on-reflection* true)

(defn- written
  "Returns the bytes that are written of a body that is in, and (seen) at the first write."
  [in seen]
  (let [bytes (ByteArrayOutputStream.)
        first-seen (promise)
        out (proxy [OutputStream] []
              (write [b offset n]
                (deliver first-seen (seen))
                (.write bytes ^bytes b (int offset) (int n))))]
    (body/write! {:body in} nil "utf-8" out)
    [(.toByteArray bytes) @first-seen]))

;; Before JDK 24 a thread that waits for its client inside a monitor keeps its carrier.
(deftest no-monitor-of-a-stream-is-held-while-its-bytes-are-written-where-that-pins
  (with-redefs [spi/monitors-pin? (constantly true)]
    (doseq [n [1 100 65536 200000]
            :let [content (byte-array (map unchecked-byte (range n)))]
            wrapped [identity #(BufferedInputStream. %)
                     #(SequenceInputStream. % (ByteArrayInputStream. (byte-array 0)))]
            :let [in (ByteArrayInputStream. content)
                  [bytes held] (written (wrapped in) #(Thread/holdsLock in))]]
      (is (Arrays/equals content ^bytes bytes))
      (is (false? held)))))

(deftest a-stream-is-written-as-a-whole
  (let [content (byte-array (map unchecked-byte (range 200000)))]
    (is (Arrays/equals content ^bytes (first (written (ByteArrayInputStream. content) (fn [])))))))
