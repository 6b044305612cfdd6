(ns thrum.server.engine.http-kit.parts-test
  "What can be said without http-kit."
  (:require
   [clojure.test :refer [deftest is]]
   [thrum.server.engine.http-kit.body :as body]
   [thrum.server.engine.http-kit.fields :as fields]
   [thrum.server.engine.http-kit.refusal :as refusal])
  (:import
   (java.io IOException)
   (java.nio ByteBuffer)
   (java.nio.charset StandardCharsets)
   (thrum.server.engine.http_kit.fields Fields)))

(set! *warn-on-reflection* true)

;; The headers that http-kit is shown

(defn- put-as-http-kit-does! [^Fields fields k v]
  (let [before (.get fields k)]
    (.put fields k (if before (str before "\n" v) v))))

(deftest all-fields-are-kept-in-their-order-and-framing-is-hidden
  (let [fields (fields/fields)]
    (doseq [[k v] [["x" "1"] ["content-length" "1"] ["x" "2"] ["content-length" "2"] ["x" "3"]
                   ["transfer-encoding" "chunked"] ["expect" "100-continue"]]]
      (put-as-http-kit-does! fields k v))
    (is (= ["x" "1" "content-length" "1" "x" "2" "content-length" "2" "x" "3" "transfer-encoding"
            "chunked" "expect" "100-continue"]
           (vec (fields/all fields))))
    (is (= ["1\n2\n3" nil nil nil]
           (map #(.get fields %) ["x" "content-length" "transfer-encoding" "expect"])))))

;; Bodies

(defn- buffer ^ByteBuffer [^String text]
  (ByteBuffer/wrap (.getBytes text StandardCharsets/ISO_8859_1)))

(defn- read-body
  "Returns [body what-follows], or :broken."
  [text length]
  (let [rest (promise)
        body (body/body nil
                        (buffer text)
                        length
                        {:finish #(deliver rest (str (.decode StandardCharsets/ISO_8859_1 %)))
                         :most-trailers 100})]
    (try
      [(slurp (body/stream body) :encoding "ISO-8859-1") (deref rest 0 :unfinished)]
      (catch IOException _ :broken))))

(deftest a-body-ends-where-its-length-says
  (is (= ["body" "GET"] (read-body "bodyGET" 4))))

(deftest chunks-are-joined-and-trailers-are-dropped
  (is (= ["abcdefghijklmn" "GET"]
         (read-body "4\r\nabcd\r\nA;x=\"y\"\r\nefghijklmn\r\n0\r\nX-User: evil\r\nY: z\r\n\r\nGET"
                    :chunked)))
  (is (= ["" ""] (read-body "000\r\n\r\n" :chunked))))

(deftest chunks-that-could-be-read-differently-are-broken
  (doseq [text ["+4\r\nabcd\r\n0\r\n\r\n" "-1\r\n" "\r\n" "0x4\r\nabcd\r\n0\r\n\r\n"
                " 4\r\nabcd\r\n0\r\n\r\n" "4 4\r\nabcd\r\n0\r\n\r\n" "4\nabcd\r\n0\r\n\r\n"
                "4\rabcd\r\n0\r\n\r\n" "4\r\nabcde\r\n0\r\n\r\n" "4\r\nabcd0\r\n\r\n"
                "4\r\nabcd\r\n0\r\n\n" "4;\u0000\r\nabcd\r\n0\r\n\r\n" "FFFFFFFFFFFFFFFFF\r\nabcd"]]
    (is (= :broken (read-body text :chunked)) (pr-str text))))

(deftest trailers-have-an-end
  (is (= :broken (read-body (str "0\r\n" (apply str (repeat 200 "X: y\r\n")) "\r\n") :chunked))))

;; What http-kit would say by itself

(deftest pages-are-given-our-status
  (doseq [[expected given message]
          [[400 400 "Malformed HTTP header: x"] [431 431 ""] [431 414 "exceed max line"]
           [413 413 ""] [501 400 "Unsupported Transfer-Encoding: gzip"]
           [400 400 "Unsupported Transfer-Encoding: chunked, gzip"] [400 599 ""]]]
    (is (= expected (refusal/status (str "HTTP/1.1 " given " Whatever\r\n") message)) message)))

(deftest closing-frames-are-told-from-other-bytes
  (is (= 1002
         (refusal/close-code (ByteBuffer/wrap (byte-array (map unchecked-byte
                                                               [0x88 2 0x03 0xea]))))))
  (is (nil? (refusal/close-code (buffer "HTTP"))))
  (is (nil? (refusal/close-code (buffer "HTTP/1.1 400")))))
