(ns thrum.server.engine.jdk.held-test
  "How much of a body is held."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.engine.jdk.held :as held])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io ByteArrayOutputStream)))

(set! *warn-on-reflection* true)

(deftest no-more-is-held-than-may-be
  (let [most 8388608, bytes (ByteArrayOutputStream.), out (held/stream bytes)]
    (.write out (byte-array most))
    (is (thrown-with-msg? ExceptionInfo #"no more than 8388608 bytes" (.write out 1)))
    (is (= most (.size bytes)))))
