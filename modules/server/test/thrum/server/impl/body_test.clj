(ns thrum.server.impl.body-test
  "How a stream becomes the bytes of a response."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.body :as body])
  (:import
   (java.io ByteArrayInputStream ByteArrayOutputStream OutputStream)
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
(deftest no-monitor-of-a-stream-is-held-while-its-bytes-are-written
  (doseq [n [1 100 65536 200000]
          :let [content (byte-array (map unchecked-byte (range n)))
                in (ByteArrayInputStream. content)
                [bytes held] (written in #(Thread/holdsLock in))]]
    (is (Arrays/equals content ^bytes bytes))
    (is (false? held))))
