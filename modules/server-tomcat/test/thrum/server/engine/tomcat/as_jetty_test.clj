(ns thrum.server.engine.tomcat.as-jetty-test
  "What is tested of Jetty's websockets, TLS and HTTP/2 holds for Tomcat's."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.engine.jetty.http2-test :as http2]
   [thrum.server.engine.jetty.tls-test :as tls]
   [thrum.server.engine.jetty.websocket-test :as websocket]))

(set! *warn-on-reflection* true)

(def ^:private elsewhere
  "Tests of what Tomcat does not do, and of Jetty below thrum.server."
  #{'a-stream-that-is-reset-interrupts-its-handler-alone 'a-thread-that-is-interrupted-writes-to-nobodys-harm
    'a-thread-that-is-interrupted-reads-to-nobodys-harm})

(defn- tests-of [test-ns]
  (for [[sym v] (sort-by key (ns-publics test-ns)) :when (and (:test (meta v)) (not (elsewhere sym)))]
    (:test (meta v))))

(defn- run-all! [test-ns]
  (let [tests (tests-of test-ns)]
    (is (seq tests))
    (run! #(%) tests)))

(deftest ^{:time-limit-ms 120000} websockets
  (binding [websocket/*engine* :tomcat]
    (run-all! 'thrum.server.engine.jetty.websocket-test)))

(deftest ^{:time-limit-ms 120000} tls
  (binding [tls/*engine* :tomcat]
    (run-all! 'thrum.server.engine.jetty.tls-test)))

(deftest ^{:time-limit-ms 120000} http-2
  (binding [http2/*engine* :tomcat]
    (run-all! 'thrum.server.engine.jetty.http2-test)))
