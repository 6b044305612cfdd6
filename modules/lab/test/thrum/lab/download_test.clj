(ns thrum.lab.download-test
  "Downloads and their outcomes, against servers in this process."
  (:require
   [clojure.test :refer [are deftest is]]
   [thrum.lab.download :as download]
   [thrum.lab.file-server :as file-server]
   [thrum.lab.servers :as servers])
  (:import
   (java.io IOException)
   (java.net ConnectException URI)
   (java.nio.channels UnresolvedAddressException)
   (java.util.concurrent TimeoutException)))

(defn- fetch [url timeout-ms]
  (let [client (download/client)]
    (try
      (download/fetch client (URI. url) timeout-ms)
      (finally (download/close! client)))))

(deftest every-byte-is-counted
  (servers/with-server [url (file-server/start!)]
    (is (= {:status 200, :bytes 100000} (fetch (str url
                                                 (file-server/path 100000 :unlimited)) 10000)))))

(deftest the-server-keeps-to-its-rate
  (servers/with-server [url (file-server/start!)]
    (let [start (System/nanoTime)]
      (is (= 50000 (:bytes (fetch (str url (file-server/path 50000 200000)) 10000))))
      (is (<= 250 (/ (- (System/nanoTime) start) 1e6))))))

(deftest a-redirect-is-an-outcome
  (servers/with-server [url (servers/answering 302 {"location" "http://elsewhere.invalid/"} 0)]
                       (is (= {:status 302, :bytes 0, :location "http://elsewhere.invalid/"}
                              (fetch (str url "/x") 10000)))))

(deftest failures-have-kinds
  (servers/with-server [url (servers/answering 404 {} 3)]
    (is (= :http-404 (:kind (fetch (str url "/x") 10000)))))
  (servers/with-server [url (file-server/start!)]
    (is (= :timeout (:kind (fetch (str url (file-server/path 100000 1)) 50)))))
  (let [closed (servers/with-server [url (file-server/start!)] url)]
    (is (= :connection-refused (:kind (fetch (str closed "/x") 10000))))))

(deftest kinds-are-found-in-the-cause-chain
  (are [kind throwable] (= kind (download/kind throwable))
    :too-many-open-files (InternalError. (IOException. "Too many open files"))
    :connection-reset (IOException. "x" (IOException. "Connection reset by peer"))
    :unknown-host (doto (ConnectException.) (.initCause (UnresolvedAddressException.)))
    :timeout (TimeoutException.)
    :connection-refused (ConnectException.)
    :IOException (IOException. "something else")))

(deftest a-wrong-byte-count-is-a-failure
  (is (= :wrong-byte-count (:kind (download/expect-bytes {:status 200, :bytes 9} 10))))
  (is (= {:status 200, :bytes 10} (download/expect-bytes {:status 200, :bytes 10} 10)))
  (is (= :timeout (:kind (download/expect-bytes {:kind :timeout} 10)))))
