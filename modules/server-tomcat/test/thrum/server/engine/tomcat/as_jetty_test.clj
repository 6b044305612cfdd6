(ns thrum.server.engine.tomcat.as-jetty-test
  "What is tested of Jetty, its threads, starts, slow clients, websockets, TLS and HTTP/2, holds for
  Tomcat."
  (:require
   [clojure.test :refer [deftest is use-fixtures]]
   [thrum.server.engine.jetty-test :as jetty]
   [thrum.server.engine.jetty.http2-test :as http2]
   [thrum.server.engine.jetty.tls-test :as tls]
   [thrum.server.engine.jetty.websocket-test :as websocket]
   [thrum.test-kit.leak :as leak]))

(set! *warn-on-reflection* true)

(use-fixtures :each leak/no-leaks)

(def ^:private elsewhere
  "Tests of what Tomcat does not do, and of Jetty below thrum.server."
  #{'a-body-in-small-frames-is-read-and-its-connection-goes-on
    'a-body-that-jetty-inflates-is-shorter-than-its-length
    'a-client-that-closes-or-resets-interrupts-its-handler
    'a-client-that-stays-is-not-taken-for-gone 'watched-connections-are-kept-and-pipelined
    'a-configurator-gets-the-server-before-it-starts
    'a-head-that-has-half-come-at-a-stop-is-no-failure
    'a-stream-that-is-reset-interrupts-its-handler-alone
    'a-websocket-that-jetty-declines-is-no-open-connection
    'an-on-error-that-throws-keeps-no-on-close-from-its-listener
    'bytes-beyond-ascii-stay-as-they-were-sent})

(defn- tests-of
  [test-ns]
  (for [[sym v] (sort-by key (ns-publics test-ns))
        :when (and (:test (meta v)) (not (elsewhere sym)))]
    (:test (meta v))))

(defn- run-all! [test-ns]
  (let [tests (tests-of test-ns)]
    (is (seq tests))
    (run! #(%) tests)))

(deftest threads-starts-and-slow-clients
  (binding [jetty/*engine* :tomcat]
    (jetty/among-others #(run-all! 'thrum.server.engine.jetty-test))))

(deftest websockets
  (binding [websocket/*engine* :tomcat]
    (run-all! 'thrum.server.engine.jetty.websocket-test)))

(deftest tls
  (binding [tls/*engine* :tomcat]
    (run-all! 'thrum.server.engine.jetty.tls-test)))

(deftest http-2
  (binding [http2/*engine* :tomcat]
    (run-all! 'thrum.server.engine.jetty.http2-test)))
