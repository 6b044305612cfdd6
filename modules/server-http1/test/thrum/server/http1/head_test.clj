(ns thrum.server.http1.head-test
  "What is a head, and what is none."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.http1.head :as head])
  (:import
   (java.nio ByteBuffer)
   (java.nio.charset StandardCharsets)
   (thrum.server.http1.head Head)))

(set! *warn-on-reflection* true)

(defn- received ^ByteBuffer [^String s]
  (ByteBuffer/wrap (.getBytes s StandardCharsets/ISO_8859_1)))

(def ^:private whole "GET /a?b HTTP/1.1\r\nHost: x\r\nX-Two: \t a b \t\r\nEmpty:\r\n\r\n")

(defn- end [text]
  (head/end (received text) 0 (count text)))

(defn- read-head [text]
  (when-some [^Head h (head/head (received text))]
    (into [(.-method h) (.-target h) (.-protocol h)] (.-headers h))))

(deftest a-head-ends-at-the-first-empty-line
  (is (= (count whole) (end whole)))
  (is (= (count whole) (end (str whole "\n\r body"))))
  (is (= (+ 3 (count whole)) (head/end (received (str "ab\n" whole)) 3 (+ 3 (count whole))))))

(deftest a-head-that-is-cut-anywhere-is-unfinished
  (doseq [n (range (count whole))]
    (is (= head/unfinished (end (subs whole 0 n))) n)))

(deftest a-control-character-anywhere-is-garbled
  (doseq [c (concat (range 32) [127]), :when (not (#{9 10 13} c))
          ;; Eight bytes are looked at together.
          n (range 28 42)]
    (is (= head/garbled (end (str (subs whole 0 n) (char c) (subs whole n)))) [c n])
    (is (= head/garbled (end (str "GET" (char c)))) "behind the last eight")))

(deftest other-characters-are-none
  (doseq [c (concat (range 32 127) (range 128 256)), n (range 28 42)]
    (is (= (inc (count whole)) (end (str (subs whole 0 n) (char c) (subs whole n)))) [c n])))

(deftest a-lone-cr-or-lf-is-garbled
  (doseq [text ["GET / HTTP/1.1\nHost: x\r\n\r\n" "GET / HTTP/1.1\r\nX: a\rb" "\n"
                "GET / HTTP/1.1\r\r\n" "GET / HTTP/1.1\r\nHost: x\n\n"]]
    (is (= head/garbled (end text)) (pr-str text))))

(deftest a-head-is-read-as-it-was-sent
  (is (= ["GET" "/a?b" "HTTP/1.1" "Host" "x" "X-Two" "a b" "Empty" ""] (read-head whole)))
  (is (= ["G" "*" "x" "a" "\u00e4"] (read-head "G * x\r\na:\u00e4\r\n\r\n"))))

(deftest what-is-no-head-is-nil
  (doseq [text ["\r\n\r\n" "GET\r\n\r\n" "GET /\r\n\r\n" "GET  / HTTP/1.1\r\n\r\n"
                " GET / HTTP/1.1\r\n\r\n" "GET / HTTP/1.1 \r\n\r\n" "GET /\u0001 HTTP/1.1\r\n\r\n"
                "GET /\u007f HTTP/1.1\r\n\r\n"
                "GET / HTTP/1.1\r\n: x\r\n\r\n" "GET / HTTP/1.1\r\nno colon\r\n\r\n"
                "GET / HTTP/1.1\r\nA: x\r\n folded: y\r\n\r\n"]]
    (is (nil? (read-head text)) (pr-str text))))

(deftest close-is-a-word-of-its-own
  (is (head/closes? (object-array ["X" "close" "connection" "keep-alive, Close"])))
  (is (head/closes? (object-array ["Connection" "x" "Connection" "close"])))
  (is (not (head/closes? (object-array ["Connection" "closed" "X" "close"]))))
  (is (= [false true true]
         (map #(head/ends? (head/head (received (str "GET / HTTP/1.0\r\n" % "\r\n"))))
              ["Connection: Keep-Alive\r\n" "Connection: x-keep-alive\r\n" ""]))))

(deftest a-body-of-no-length-is-none
  (is (= [nil nil 4 :chunked]
         (map #(head/body-length (head/head (received (str "GET / HTTP/1.1\r\n" % "\r\n"))))
              ["" "Content-Length: 0\r\n" "Content-Length: 4\r\n"
               "Transfer-Encoding: chunked\r\n"]))))
