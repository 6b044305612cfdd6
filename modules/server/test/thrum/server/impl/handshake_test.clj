(ns thrum.server.impl.handshake-test
  "Which requests may become a websocket, where an engine lets them all through."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.impl.handshake :as handshake]))

(set! *warn-on-reflection* true)

(defn- refused
  "Returns the status that a request for a websocket with these headers too is refused with, nil
  where it may become one."
  [origins headers]
  (:status (handshake/refusal {:request-method :get
                               :protocol "HTTP/1.1"
                               :headers (merge {"host" "shop.example"
                                                "upgrade" "WebSocket"
                                                "connection" "keep-alive, Upgrade"
                                                "sec-websocket-version" "13"
                                                "sec-websocket-key" "dGhlIHNhbXBsZSBub25jZQ=="}
                                               headers)}
                              origins)))

(deftest a-websocket-is-asked-for-by-a-connection-that-is-to-change
  (is (nil? (refused nil {})))
  (is (= 426 (refused nil {"connection" "keep-alive"}))))

(deftest an-origin-is-the-same-in-any-case
  (is (nil? (refused nil {"origin" "https://Shop.example"})))
  (is (nil? (refused #{"https://Shop.example"} {"origin" "https://shop.example"})))
  (is (= 403 (refused nil {"origin" "https://other.example"})))
  (is (= 403 (refused #{"https://other.example"} {"origin" "https://shop.example"}))))
