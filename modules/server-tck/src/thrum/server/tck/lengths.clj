(ns thrum.server.tck.lengths
  "Chapter: the headers that say where a request's body ends, Content-Length and Transfer-Encoding."
  (:require
   [thrum.server.tck.refusal :refer [expect-refused expect-throwing-body lines read-all refused-post]]
   [thrum.server.tck.scene :as scene :refer [defcase expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io InputStream)))

(set! *warn-on-reflection* true)

(defcase length-beside-chunks-is-refused "4.8"
  "Content-Length beside Transfer-Encoding is refused."
  [env]
  (refused-post env #{400} "Content-Length: 3" "Transfer-Encoding: chunked"))

(defcase chunks-beside-length-are-refused "4.8"
  "Transfer-Encoding before Content-Length is refused too."
  [env]
  (refused-post env #{400} "Transfer-Encoding: chunked" "Content-Length: 3"))

(defcase two-lengths-are-refused "4.8"
  "Two Content-Lengths that differ are refused."
  [env]
  (refused-post env #{400} "Content-Length: 3" "Content-Length: 0"))

(defcase two-equal-lengths-are-refused "4.8"
  "Two Content-Lengths that are equal are refused."
  [env]
  (refused-post env #{400} "Content-Length: 3" "Content-Length: 3"))

(defcase a-list-of-lengths-is-refused "4.8"
  "A list as Content-Length is refused."
  [env]
  (refused-post env #{400} "Content-Length: 3, 3"))

(defcase signed-lengths-are-refused "4.8"
  "A Content-Length with a sign is refused."
  [env]
  (run! #(refused-post env #{400} (str "Content-Length: " %)) ["+3" "-3" "-0"]))

(defcase garbled-lengths-are-refused "4.8"
  "A Content-Length that is no decimal number is refused."
  [env]
  (run! #(refused-post env #{400} (str "Content-Length: " %)) ["0x3" "3a" "3 3" "3.0" "\u00b3"]))

(defcase empty-length-is-refused "4.8"
  "An empty Content-Length is refused."
  [env]
  (refused-post env #{400} "Content-Length:"))

(defcase overflowing-length-is-refused "4.8"
  "A Content-Length that no long can hold is refused."
  [env]
  (refused-post env #{400 413} "Content-Length: 18446744073709551619"))

(defcase unknown-coding-is-501 "4.8"
  "An unknown transfer coding is a 501, or a 400."
  [env]
  (run! #(refused-post env #{501 400} (str "Transfer-Encoding: " %))
        ["gzip" "identity" "xchunked" "chunked-x"]))

(defcase coding-list-is-refused "4.8"
  "A Transfer-Encoding that lists more than chunked is refused."
  [env]
  (run! #(refused-post env #{501 400} (str "Transfer-Encoding: " %))
        ["gzip, chunked" "chunked, gzip" "chunked, chunked" ", chunked"]))

(defcase two-codings-are-refused "4.8"
  "Two Transfer-Encoding headers are refused."
  [env]
  (refused-post env #{501 400} "Transfer-Encoding: chunked" "Transfer-Encoding: identity"))

(defcase garbled-coding-is-refused "4.8"
  "A Transfer-Encoding with control characters or parameters around chunked is refused."
  [env]
  (run! #(refused-post env #{501 400} (str "Transfer-Encoding: " %))
        ["\u000bchunked" "chunked\u0000" "chunked;q=1" "\"chunked\""]))

(defcase empty-coding-is-refused "4.8"
  "An empty Transfer-Encoding is refused."
  [env]
  (refused-post env #{501 400} "Transfer-Encoding:"))

(defcase coding-on-1-0-is-refused "4.8"
  "A Transfer-Encoding on HTTP/1.0 is refused."
  [env]
  (expect-refused env
    #{400 501 505}
    (str
      (lines "POST / HTTP/1.0" "Host: localhost" "Transfer-Encoding: chunked")
      "0\r\n\r\n")))

(defcase names-are-known-in-any-spelling "4.8"
  "The headers that frame a request are known in any spelling."
  [env]
  (let [seen (atom [])
        read-text (fn [{:keys [uri ^InputStream body]}]
                    (swap! seen conj [uri (wire/text-of (.readAllBytes body))]))
        c (scene/client env (scene/serve env (fn [r] (read-text r) (scene/ok r)) {}))]
    (expect-status
      200
      (wire/ask! c (lines "POST /length HTTP/1.1" "hOST: localhost" "cONTENT-lENGTH: 3") "abc"))
    (expect-status 200
                   (wire/ask!
                     c
                     (lines "POST /chunks HTTP/1.1" "HOST: localhost" "tRANSFER-eNCODING: chunked")
                     "3\r\nabc\r\n0\r\n\r\n"))
    (expect= [["/length" "abc"] ["/chunks" "abc"]] @seen)))

(defcase names-are-checked-in-any-spelling "4.8"
  "What is refused is refused in any spelling."
  [env]
  (refused-post env #{400} "cONTENT-lENGTH: 3" "Content-Length: 4")
  (refused-post env #{400} "cONTENT-lENGTH: 3" "tRANSFER-eNCODING: chunked")
  (refused-post env #{400} "tRANSFER-eNCODING: chunked" "CONTENT-LENGTH: 3")
  (refused-post env #{400 501} "tRANSFER-eNCODING: gzip")
  (refused-post env #{400} "hOST: elsewhere" "cONTENT-lENGTH: 3"))

(defcase truncated-length-is-no-body "4.8"
  "A body shorter than its length throws where it is read; the handler never takes it for whole."
  [env]
  (expect-throwing-body env (str (wire/head-of "POST" "/" "Content-Length: 100") "abc")))

(defcase coding-is-chunked-in-any-case "4.8"
  "chunked is read in any case."
  [env]
  (let [text (str (wire/head-of "POST" "/" "transfer-encoding: Chunked") "3\r\nabc\r\n0\r\n\r\n")]
    (expect= "abc" (:body (expect-status 200 (scene/ask env (scene/serve env read-all {}) text))))))
