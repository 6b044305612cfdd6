(ns thrum.lab.load.answer-test
  "Where an answer ends."
  (:require
   [clojure.string :as str]
   [clojure.test :refer [are deftest is]]
   [thrum.lab.load.answer :as answer])
  (:import
   (java.io ByteArrayInputStream IOException)))

(set! *warn-on-reflection* true)

(defn- stream [& lines]
  (ByteArrayInputStream. (.getBytes (str/join "\r\n" lines) "ISO-8859-1")))

(defn- rest-after
  "Returns [status keep? what the stream still holds after one answer]."
  [^ByteArrayInputStream in]
  (let [{:keys [status keep?]} (answer/read! in)]
    [status keep? (String. (.readAllBytes in))]))

(deftest an-answer-is-read-to-its-end-and-no-further
  (are [expected lines] (= expected (rest-after (apply stream lines)))
    [200 true "next"]
    ["HTTP/1.1 200 OK" "Content-length: 5" "" "hellonext"]
    [200 true "next"]
    ["HTTP/1.1 200 OK" "transfer-encoding: chunked" "" "5;x=y" "hello" "10" "0123456789abcdef" "0"
     "Trailer: x" "" "next"]
    [204 true "next"]
    ["HTTP/1.1 204 No Content" "" "next"]
    [503 false "next"]
    ["HTTP/1.1 503 Service Unavailable" "Connection: close" "Content-Length: 0" "" "next"]
    [200 false ""]
    ["HTTP/1.1 200 OK" "" "all that comes"]))

(deftest what-is-cut-off-or-no-answer-is-an-io-exception
  (are [lines] (instance? IOException
                          (try
                            (answer/read! (apply stream lines))
                            (catch Exception e e)))
    [""]
    ["HTTP/1.1 200 OK" "Content-Le"]
    ["HTTP/1.1 200 OK" "Content-Length: 5" "" "hell"]
    ["HTTP/1.1 200 OK" "Transfer-Encoding: chunked" "" "5" "hello"]
    ["HTTP/1.1 200 OK" "Transfer-Encoding: chunked" "" "no size" ""]
    ["SSH-2.0" ""])
  (is (= "The server answered with no status line"
         (try
           (answer/read! (stream "SSH-2.0" ""))
           (catch IOException e (ex-message e))))))
