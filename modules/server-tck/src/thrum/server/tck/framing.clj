(ns thrum.server.tck.framing
  "Chapter: where a request begins and ends. What two servers could read differently is refused."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io IOException InputStream)
   (java.util.concurrent.atomic AtomicInteger)))

(set! *warn-on-reflection* true)

(def ^:private hidden
  "What would be a second request if the first were read differently."
  "GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n")

(defn- lines [& parts]
  (str (str/join "\r\n" parts) "\r\n\r\n"))

(defn- expect-refused
  "Sends text with something hidden behind it: one of the statuses is answered, the connection
  closed, no handler called."
  [env statuses text]
  (let [uris (atom [])
        c (scene/client env (scene/serve env (fn [r] (swap! uris conj (:uri r)) (scene/ok r)) {}))
        answer (wire/ask! c (str text hidden))]
    (expect (statuses (or (:status answer) (:ended answer)))
            (str "status " (str/join " or " statuses))
            answer)
    (expect-closed c)
    (expect= [] @uris)))

(defn- refused-post
  [env statuses & headers]
  (expect-refused env
                  statuses
                  (str (apply lines "POST / HTTP/1.1" "Host: localhost" headers) "abc")))

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

(defcase missing-host-is-refused "4.8"
  "HTTP/1.1 without a Host is refused."
  [env]
  (expect-refused env #{400} (lines "GET / HTTP/1.1" "X-Other: 1")))

(defcase two-hosts-are-refused "4.8"
  "Two Hosts are refused, equal ones too."
  [env]
  (expect-refused env #{400} (lines "GET / HTTP/1.1" "Host: localhost" "Host: elsewhere"))
  (expect-refused env #{400} (lines "GET / HTTP/1.1" "Host: localhost" "Host: localhost")))

(defcase hosts-that-are-none-are-refused "4.8"
  "A Host that is empty, or no host with or without a port, is refused."
  [env]
  (doseq [host ["" "[::1" "::1" "[localhost]" "a:b" "a:80:80" "localhost:es" "localhost:()"
                "localhost:99999" "a\"><script>" "a b" "a,b" "u@a" "a/b" "\u00e4"]]
    (expect-refused env #{400} (lines "GET / HTTP/1.1" (str "Host: " host)))))

(defcase endless-hosts-are-refused "4.8"
  "A Host of thousands of characters is refused, whatever it is made of."
  [env]
  (doseq [part ["a" "_" "%41" "~"]]
    (expect-refused env
                    #{400 431}
                    (lines "GET / HTTP/1.1"
                           (str "Host: "
                                (str/join (repeat (quot 16000 (count part)) part)))))))

(defcase hosts-that-are-some-are-served "4.8"
  "A Host that is a name, an address in brackets, with or without a port, is served, and is the
  server's name."
  [env]
  (doseq [[host server-name] {"a-b.c" "a-b.c"
                              "localhost:1" "localhost"
                              "[::1]:8080" "[::1]"
                              "[::ffff:1.2.3.4]" "[::ffff:1.2.3.4]"
                              "127.0.0.1:65535" "127.0.0.1"}]
    (expect= server-name
             (:server-name (scene/received env (lines "GET / HTTP/1.1" (str "Host: " host))))
             host)))

(defcase versions-are-1-0-or-1-1 "4.8"
  "On a connection of HTTP/1 any version but 1.0 and 1.1 is refused."
  [env]
  (doseq [version ["HTTP/2.0" "HTTP/2" "HTTP/1.2" "HTTP/3.0" "HTTP/0.9" "HTTP/11" "HTTP/01.1"]]
    (expect-refused env #{400 426 505} (lines (str "GET / " version) "Host: localhost"))
    (expect-refused env #{400 426 505} (lines (str "GET /admin " version) "X-Other: 1"))))

(defcase connect-is-refused "4.8"
  "CONNECT is refused, whatever its target: a success would open a tunnel."
  [env]
  (doseq [target ["localhost:80" "/" "http://localhost/" "localhost" "*"]]
    (expect-refused env
                    #{400 404 405 501 :eof}
                    (lines (str "CONNECT " target " HTTP/1.1") "Host: localhost"))))

(defcase foreign-targets-are-refused "4.8"
  "An absolute target that is not http, or names a user, is refused."
  [env]
  (doseq [target ["ftp://localhost/" "file://localhost/x" "http://user@localhost/"
                  "http://user:pw@localhost/" "http:///x" "http:localhost/"]]
    (expect-refused env #{400 :eof} (lines (str "GET " target " HTTP/1.1") "Host: localhost"))))

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

(defcase nul-in-a-value-is-refused "4.8"
  "A NUL in a header's value is refused."
  [env]
  (expect-refused env #{400} (lines "GET / HTTP/1.1" "Host: localhost" "X-Nul: a\u0000b")))

(defcase bare-cr-in-a-value-is-refused "4.8"
  "A CR without its LF in a header's value is refused."
  [env]
  (expect-refused env #{400} (lines "GET / HTTP/1.1" "Host: localhost" "X-Cr: a\rX-Evil: b")))

(defcase control-chars-in-a-value-are-refused "4.8"
  "Other control characters in a header's value are refused."
  [env]
  (doseq [c ["\u0001" "\u000b" "\u007f"]]
    (expect-refused env #{400} (lines "GET / HTTP/1.1" "Host: localhost" (str "X-Ctl: a" c "b")))))

(defcase folded-lines-hide-nothing "4.8"
  "A header that goes on in the next line is refused, or is one value."
  [env]
  (let [seen (promise)
        server (scene/serve env (fn [r] (deliver seen (:headers r)) (scene/ok r)) {})
        answer (scene/ask env
                          server
                          (lines "GET / HTTP/1.1" "Host: localhost"
                                 "X-Fold: a" " Transfer-Encoding: b"))]
    (when (not= 400 (:status answer))
      (expect= 200 (:status answer) answer)
      (expect= nil (get @seen "transfer-encoding")))))

(defcase blank-before-the-colon-is-refused "4.8"
  "A blank between a header's name and its colon is refused."
  [env]
  (refused-post env #{400 501} "Content-Length : 3")
  (refused-post env #{400 501} "Transfer-Encoding : chunked"))

(defcase header-without-a-name-is-refused "4.8"
  "A header without a name, or without a colon, is refused."
  [env]
  (doseq [header [": value" "no-colon" "na me: x" "na\u0000me: x"]]
    (expect-refused env #{400} (lines "GET / HTTP/1.1" "Host: localhost" header))))

(defcase garbled-request-lines-are-refused "4.8"
  "A request's line that is not method, target and version is refused."
  [env]
  (doseq [line ["GET /" "GET / a HTTP/1.1" "GET / HTTP/1.x" "G(T / HTTP/1.1"
                "GET /\u0001 HTTP/1.1" "GET x HTTP/1.1"]]
    (expect-refused env #{400 404 405 501 505} (lines line "Host: localhost"))))

(defcase tabs-in-the-request-line-are-refused "4.8"
  "A tab in the request's line is refused."
  [env]
  (doseq [line ["GET\t/ HTTP/1.1" "GET /\tHTTP/1.1" "GET /a\tb HTTP/1.1"]]
    (expect-refused env #{400 404} (lines line "Host: localhost"))))

(defcase user-names-in-targets-are-refused "4.8"
  "A target in absolute form that names a user is refused; an @ in a path or a query is none."
  [env]
  (doseq [target ["http://user@localhost/" "http://user@localhost" "http://user:word@localhost/a"
                  "http://user@localhost?a"]]
    (expect-refused env #{400 404} (lines (str "GET " target " HTTP/1.1") "Host: localhost")))
  (let [server (scene/serve env
                            (fn [{:keys [uri query-string]}]
                              {:status 200, :headers {}, :body (str uri " " query-string)})
                            {})]
    (doseq [[target seen] {"/@a?b@c" "/@a b@c", "http://localhost/@a?@" "/@a @", "/?@" "/ @"}]
      (expect= seen (:body (scene/ask env server (wire/get target)))))))

(defcase bare-lf-does-not-end-a-header "4.8"
  "LF alone, in the middle of a header, does not begin another."
  [env]
  (doseq [end ["X-A: b\nX-C: d\r\n\r\n" "X-A: b\n\r\n" "X-A: b\n\n" "X-A: b\r\n\n"]]
    (expect-refused env #{400} (str "GET / HTTP/1.1\r\nHost: localhost\r\n" end)))
  (expect-refused env #{400} "GET / HTTP/1.1\nHost: localhost\r\n\r\n"))

(defcase bare-lf-does-not-end-the-headers "4.8"
  "Headers whose lines end in LF alone hide nothing: one request is read, or it is refused."
  [env]
  (let [uris (atom [])
        c (scene/client env (scene/serve env (fn [r] (swap! uris conj (:uri r)) (scene/ok r)) {}))]
    (wire/ask! c
               (str "POST /first HTTP/1.1\r\nHost: localhost\r\nX-A: b\nContent-Length: " (count
                                                                                            hidden)
                    "\r\n\r\n" hidden))
    (wire/after c 100)
    (expect (not-any? #{"/hidden"} @uris) "no hidden request" @uris)))

;; Chunks

(defn- read-all
  "A handler that answers with the body it has read."
  [{:keys [^InputStream body]}]
  {:status 200, :headers {}, :body (.readAllBytes body)})

(defn- chunks [text]
  (str (wire/head-of "POST" "/" "Transfer-Encoding: chunked") text))

(defn- expect-bad-chunks
  [env text]
  (let [uris (atom [])
        handler (fn [r] (swap! uris conj (:uri r)) (read-all r))
        c (scene/client env (scene/serve env handler {}))
        answer (wire/ask! c (str (chunks text) hidden))]
    (expect (or (#{400 413} (:status answer)) (#{:eof :reset} (:ended answer)))
            "400 or a closed connection"
            answer)
    (expect-closed c)
    (expect (not-any? #{"/hidden"} @uris) "no hidden request" @uris)))

(defcase garbled-chunk-sizes-are-refused "4.8"
  "A chunk whose size is no hexadecimal number is refused, and never a success."
  [env]
  (run! #(expect-bad-chunks env (str % "\r\nabc\r\n0\r\n\r\n")) ["x" "-3" "+3" "0x3" "" "3 3"]))

(defcase overflowing-chunk-sizes-are-refused "4.8"
  "A chunk size that no long can hold is refused."
  [env]
  (run! #(expect-bad-chunks env (str % "\r\nabc\r\n0\r\n\r\n"))
        ["ffffffffffffffff" "10000000000000003" "8000000000000003" "ffffffff00000003"
         "fffffffffffffffff"]))

(defn- swallow
  "A handler that answers whether or not it could read the body."
  [{:keys [^InputStream body] :as request}]
  (try (.readAllBytes body) (catch IOException _))
  (scene/ok request))

(defcase swallowed-bad-chunks-end-the-connection "4.8"
  "A body with bad chunks is never resumed behind what is bad, where the handler swallows the
  exception too: what follows is no request."
  [env]
  (doseq [bad ["1e;\u0001\r\n" "zz\r\n" (str "1;" (str/join (repeat 20000 "a")) "\r\n")
               "1\r\nab\r\n"]]
    (let [uris (atom [])
          c (scene/client env (scene/serve env (fn [r] (swap! uris conj (:uri r)) (swallow r)) {}))]
      (wire/try-send! c (chunks (str bad "0\r\n\r\n")) hidden)
      (wire/response c)
      (expect-closed c)
      (expect (not-any? #{"/hidden"} @uris) "no hidden request" [bad @uris]))))

(defn- expect-not-whole
  "A chunk of this size, of which three bytes come, is no whole body, and what follows is no
  request."
  [env size]
  (let [uris (atom [])
        handler (fn [r] (swap! uris conj (:uri r)) (read-all r))
        c (scene/client env (scene/serve env handler {}))]
    (wire/try-send! c (chunks (str size "\r\nabc\r\n0\r\n\r\n")) hidden)
    (wire/finish! c)
    (let [answer (wire/response c)]
      (expect (or (#{400 413} (:status answer)) (#{:eof :reset} (:ended answer)))
              "400 or a closed connection"
              [size answer]))
    (expect-closed c)
    (expect (not-any? #{"/hidden"} @uris) "no hidden request" [size @uris])))

(defcase chunk-sizes-may-exceed-an-int "4.8"
  "A chunk of more than 2 GiB, of which less comes, is no whole body."
  [env]
  (run! #(expect-not-whole env %) ["80000003" "80000000" "ffffffff"]))

(defcase chunk-sizes-may-exceed-32-bits "4.8"
  "Nor is one of 4 GiB and more."
  [env]
  (run! #(expect-not-whole env %) ["100000003" "100000000" "7fffffff00000003" "00100000003"]))

(defcase chunk-sizes-may-begin-with-zeros "4.8"
  "Zeros before a chunk's size change nothing, or are refused where they are many."
  [env]
  (let [server (scene/serve env read-all {})]
    (expect= "abc"
             (:body (expect-status 200 (scene/ask env server (chunks "0003\r\nabc\r\n00\r\n\r\n")))))
    (let [answer
          (scene/ask env server (chunks (str (str/join (repeat 20 "0")) "3\r\nabc\r\n0\r\n\r\n")))]
      (expect (or (= "abc" (:body answer))
                  (#{400 :eof :reset} (or (:status answer) (:ended answer))))
              "the body, or a refusal"
              answer))))

(defcase chunks-end-with-a-line "4.8"
  "A chunk that is longer than its size says is refused."
  [env]
  (expect-bad-chunks env "3\r\nabcd\r\n0\r\n\r\n"))

(defcase truncated-chunks-are-no-body "4.8"
  "A chunked body that breaks off throws where it is read; the handler never takes it for whole."
  [env]
  (let [thrown (promise)
        handler (fn [r] (try (read-all r) (catch IOException e (deliver thrown e) (throw e))))
        c (scene/client env (scene/serve env handler {}))]
    (wire/send! c (chunks "3\r\nabc\r\n"))
    (wire/finish! c)
    (scene/within thrown "an IOException from the body")))

(defcase truncated-length-is-no-body "4.8"
  "A body shorter than its length throws where it is read; the handler never takes it for whole."
  [env]
  (let [thrown (promise)
        handler (fn [r] (try (read-all r) (catch IOException e (deliver thrown e) (throw e))))
        c (scene/client env (scene/serve env handler {}))]
    (wire/send! c (wire/head-of "POST" "/" "Content-Length: 100") "abc")
    (wire/finish! c)
    (scene/within thrown "an IOException from the body")))

(defcase chunk-extensions-are-ignored "4.8"
  "Chunk extensions are skipped."
  [env]
  (let [answer (scene/ask env
                          (scene/serve env read-all {})
                          (chunks "3;a=b\r\nabc\r\n0;last\r\n\r\n"))]
    (expect= "abc" (:body (expect-status 200 answer)))))

(defcase trailers-are-not-headers "4.8"
  "Trailers are consumed, or refused; they are no part of the body and never become headers."
  [env]
  (let [seen (atom [])
        handler (fn [r]
                  (let [answer (read-all r)]
                    (swap! seen conj (get-in r [:headers "x-trailer"]))
                    answer))
        c (scene/client env (scene/serve env handler {}))
        answer (wire/ask! c (chunks "3\r\nabc\r\n0\r\nX-Trailer: evil\r\n\r\n"))]
    (if (= 400 (:status answer))
      (scene/expect-closed c)
      (do
        (expect= "abc" (:body (expect-status 200 answer)))
        (expect= 200 (:status (wire/ask! c (wire/get "/"))))))
    (expect (every? nil? @seen) "no trailer among the headers" @seen)))

(defcase trailers-are-not-requests "4.8"
  "What stands behind the last chunk never becomes a request, also where the handler reads no body."
  [env]
  (let [uris (atom [])
        c (scene/client env (scene/serve env (fn [r] (swap! uris conj (:uri r)) (scene/ok r)) {}))]
    (wire/ask! c (chunks "3\r\nabc\r\n0\r\nGET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    (wire/after c 100)
    (expect (not-any? #{"/hidden"} @uris) "no hidden request" @uris)))

(defcase coding-is-chunked-in-any-case "4.8"
  "chunked is read in any case."
  [env]
  (let [text (str (wire/head-of "POST" "/" "transfer-encoding: Chunked") "3\r\nabc\r\n0\r\n\r\n")]
    (expect= "abc" (:body (expect-status 200 (scene/ask env (scene/serve env read-all {}) text))))))

;; Trailers

(defn- last-chunk [path]
  (str (wire/head-of "POST" path "Transfer-Encoding: chunked") "3\r\nabc\r\n0\r\n"))

(defn- expect-refused-trailers
  "Expects 400 or a closed connection for these trailers where the handler reads the body, and no
  second request where it does not."
  [env server uris trailers]
  (let [c (scene/client env server)
        answer (wire/ask! c (str (last-chunk "/read") trailers hidden))]
    (expect (or (#{400 413} (:status answer)) (#{:eof :reset} (:ended answer)))
            "400 or a closed connection"
            [trailers answer])
    (expect-closed c))
  (let [c (scene/client env server)]
    (wire/ask! c (str (last-chunk "/unread") trailers hidden))
    (expect-closed c))
  (expect (not-any? #{"/hidden"} @uris) "no hidden request" trailers))

(defn- expect-bad-trailers [env all]
  (let [uris (atom [])
        handler (fn [r] (swap! uris conj (:uri r)) ((scene/routes {"/read" read-all}) r))
        server (scene/serve env handler {})]
    (run! #(expect-refused-trailers env server uris %) all)))

(defcase blank-lines-end-no-trailers "4.8"
  "A line of blanks or control characters behind the last chunk is not the empty one: it is refused,
  and what follows is no request."
  [env]
  (expect-bad-trailers env
                       (map #(str % "\r\n")
                            [" " "\t" "\u000b" "\f" "\u001c" "\u0000" "\u0085" "\u00a0" " \t "])))

(defcase garbled-trailers-are-refused "4.8"
  "A trailer without a colon or a name, with a blank in its name or before it, or with control
  characters in its value, is refused."
  [env]
  (expect-bad-trailers env
                       (map #(str % "\r\n\r\n")
                            ["no-colon" ": x" "na me: x" "X : x" " X: x" "X: a\u0000b" "X: a\u0001b"
                             "X: a\u007fb"])))

(defcase folded-trailers-hide-nothing "4.8"
  "A trailer that goes on in the next line is refused, or is one trailer; what it holds is no
  request."
  [env]
  (let [uris (atom [])
        c (scene/client env (scene/serve env (fn [r] (swap! uris conj (:uri r)) (read-all r)) {}))
        answer (wire/ask! c (chunks (str "3\r\nabc\r\n0\r\nX: a\r\n " hidden)) (wire/get "/next"))]
    (if (= 200 (:status answer))
      (wire/response c)
      (expect-closed c))
    (expect (#{["/"] ["/" "/next"]} @uris) "no hidden request" @uris)))

(defcase bare-line-ends-end-no-trailers "4.8"
  "A CR or LF alone ends neither a trailer nor the trailers."
  [env]
  (expect-bad-trailers env ["\n" "X: a\n\r\n" "X: a\r\n\n" "X: a\rY: b\r\n\r\n"]))

(defcase endless-trailers-are-refused "4.4"
  "Trailers beyond the bound on headers are refused, one that is too long as well as too many of
  them."
  [env]
  (doseq [trailers [(str "X: " (str/join (repeat 70000 "x"))) (str/join (repeat 9000 "X-A: 1\r\n"))]]
    (let [server (scene/serve env read-all {:max-header-bytes 8192})
          c (scene/client env server)]
      (wire/try-send! c (chunks "3\r\nabc\r\n0\r\n"))
      (wire/try-send! c trailers)
      (let [answer (wire/response c)]
        (expect (or (#{400 413 431} (:status answer)) (#{:eof :reset} (:ended answer)))
                "a refusal or a closed connection"
                answer))
      (expect-closed c))))

(defcase trailers-frame-nothing "4.8"
  "A Content-Length, a Transfer-Encoding or a Host among the trailers counts for nothing: the body
  and the next request are as they were."
  [env]
  (doseq [trailer ["Content-Length: 40" "Transfer-Encoding: chunked" "Host: elsewhere"
                   "Connection: keep-alive"]]
    (let [seen (atom [])
          handler (fn [r]
                    (swap! seen conj
                      [(:uri r) (get-in r [:headers "host"]) (get-in r [:headers "content-length"])])
                    (read-all r))
          c (scene/client env (scene/serve env handler {}))
          answer
          (wire/ask! c (chunks (str "3\r\nabc\r\n0\r\n" trailer "\r\n\r\n")) (wire/get "/next"))]
      (if (= 400 (:status answer))
        (expect-closed c)
        (do
          (expect= "abc" (:body (expect-status 200 answer)))
          (wire/response c)))
      (expect (every? #{["/" "localhost" nil] ["/next" "localhost" nil]} @seen)
              "requests that no trailer has changed"
              @seen))))

;; One after another

(defcase pipelined-requests-are-answered-in-order "4.2"
  "Pipelined requests are answered in their order."
  [env]
  (let [handler (fn [{:keys [uri]}]
                  (when (= "/1" uri) (Thread/sleep 30))
                  {:status 200, :headers {}, :body uri})
        c (scene/client env (scene/serve env handler {}))]
    (wire/send! c (wire/get "/1") (wire/get "/2") (wire/post "/3" "body") (wire/get "/4"))
    (expect= ["/1" "/2" "/3" "/4"] (mapv :body (repeatedly 4 #(wire/response c))))))

(defcase pipelined-requests-run-one-at-a-time "4.2"
  "Of pipelined requests the next one starts when the one before has been answered."
  [env]
  (let [now (AtomicInteger.)
        most (atom 0)
        handler (fn [r]
                  (swap! most max (.incrementAndGet now))
                  (Thread/sleep 10)
                  (.decrementAndGet now)
                  (scene/ok r))
        c (scene/client env (scene/serve env handler {}))]
    (apply wire/send! c (repeat 5 (wire/get "/")))
    (dotimes [_ 5] (expect-status 200 (wire/response c)))
    (expect= 1 @most)))

(defcase unread-body-is-not-a-request "4.8"
  "A body that the handler does not read is never taken for the next request."
  [env]
  (let [uris (atom [])
        c (scene/client env (scene/serve env (fn [r] (swap! uris conj (:uri r)) (scene/ok r)) {}))]
    (expect-status 200 (wire/ask! c (wire/post "/" hidden)))
    (wire/try-send! c (wire/get "/second"))
    (let [answer (wire/response c)]
      (expect (or (:ended answer) (= 200 (:status answer)))
              "an answer or a closed connection"
              answer))
    (expect (not-any? #{"/hidden"} @uris) "no hidden request" @uris)))

(defcase split-requests-are-put-together "4.8"
  "A request that comes in many small pieces is one request."
  [env]
  (let [c (scene/client env (scene/serve env read-all {}))]
    (doseq [piece (partition-all 7 (wire/post "/" "abc"))]
      (wire/send! c (str/join piece))
      ;; So that the pieces do not arrive as one.
      (wire/after c 3))
    (expect= "abc" (:body (expect-status 200 (wire/response c))))))

(defcase requests-byte-by-byte-are-requests "4.8"
  "Two requests, the first in chunks, whose bytes come one by one are two requests, read whole and
  answered in order."
  [env]
  (let [server
        (scene/serve env (fn [r] (update (read-all r) :body #(str (:uri r) (wire/text-of %)))) {})
        first-one (wire/chunked "/1" "ab" "c")
        bytewise (fn [c text]
                   (run! #(do
                            (wire/send! c (str %))
                            (wire/after c 1))
                         text))
        c (scene/client env server)]
    (bytewise c first-one)
    (expect= "/1abc" (:body (expect-status 200 (wire/response c))))
    ;; Some close behind chunks.
    (when (= :silent (wire/after c 50))
      (bytewise c (wire/post "/2" "xyz"))
      (expect= "/2xyz" (:body (expect-status 200 (wire/response c)))))))

(defcase nothing-behind-a-close-is-served "4.8"
  "What is sent behind a request with Connection: close, together with it or later, never runs."
  [env]
  (let [uris (atom [])
        c (scene/client env (scene/serve env (fn [r] (swap! uris conj (:uri r)) (scene/ok r)) {}))]
    (expect-status 200 (wire/ask! c (wire/get "/first" "Connection: close") (wire/get "/second")))
    (wire/try-send! c (wire/get "/third"))
    (expect-closed c)
    (expect= ["/first"] @uris)))

(defcase half-closed-clients-are-answered "4.8"
  "A client that has sent its FIN behind the request is answered."
  [env]
  (let [gate (scene/gate env)
        server (scene/serve env (fn [r] (deref gate 8000 nil) (scene/ok r)) {})
        c (wire/send! (scene/client env server) (wire/get "/"))]
    (wire/finish! c)
    (expect= :silent (wire/after c 60))
    (deliver gate :open)
    (expect= "ok" (:body (expect-status 200 (wire/response c))))))

;; 100 Continue

(defn- expecting [n]
  (wire/head-of "POST" "/" (str "Content-Length: " n) "Expect: 100-continue"))

(defcase continue-is-sent-when-the-body-is-read "4.2"
  "100 Continue is sent when the handler reads the body, and the final response after it."
  [env]
  (let [c (wire/send! (scene/client env (scene/serve env read-all {})) (expecting 3))]
    (expect= 100 (:status (wire/head c)))
    (wire/send! c "abc")
    (expect= "abc" (:body (expect-status 200 (wire/response c))))))

(defn- speaking-first
  "A handler whose body begins before it reads the request's."
  [{:keys [^InputStream body]}]
  {:status 200
   :headers {}
   :body (lazy-seq (cons "first" (lazy-seq [(wire/text-of (.readAllBytes body))])))})

(defcase continue-is-not-sent-within-a-response "4.8"
  "100 Continue is never sent behind the response's head, where a client would take it for the body."
  [env]
  (let [c (wire/send! (scene/client env (scene/serve env speaking-first {})) (expecting 3))
        answer (wire/head c)]
    (wire/send! c "abc")
    (let [{:keys [body ended]} (if (= 100 (:status answer)) (wire/response c) (wire/body c answer))]
      (expect (or (= "firstabc" body) (#{:eof :reset} ended)) "the body, or a cut" [body ended]))))

(defcase continue-keeps-the-framing "4.8"
  "Where the handler does not read the body that a client has announced, what follows is never taken
  for a request."
  [env]
  (let [uris (atom [])
        c (scene/client env (scene/serve env (fn [r] (swap! uris conj (:uri r)) (scene/ok r)) {}))
        answer (wire/ask! c (expecting (count hidden)))]
    (wire/try-send! c hidden)
    (expect-status 200 (if (= 100 (:status answer)) (wire/response c) answer))
    (wire/after c 100)
    (expect= ["/"] @uris)))

;; HTTP/1.0

(defcase http-1-0-closes "4.2"
  "HTTP/1.0 is answered, never with chunks, and the connection is closed."
  {:needs #{:http-1.0}}
  [env]
  (doseq [body ["a string" (map str [1 2 3])]]
    (let [c (scene/client env (scene/serve env (scene/answering {:body body}) {}))
          answer (expect-status 200 (wire/ask! c "GET / HTTP/1.0\r\n\r\n"))]
      (expect (#{:length :close} (:framing answer)) "no chunks" answer)
      (expect-closed c))))

(defcase http-1-0-tells-its-protocol "4.2"
  "The handler sees HTTP/1.0 as :protocol."
  {:needs #{:http-1.0}}
  [env]
  (expect= "HTTP/1.0" (:protocol (scene/received env "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n"))))

(defcase http-1-0-is-kept-or-closed "4.2"
  "HTTP/1.0 with Connection: keep-alive: the response says so, has a length and the connection goes
  on; or it is closed."
  {:needs #{:http-1.0}}
  [env]
  (doseq [body ["a string" (map str [1 2 3])]]
    (let [c (scene/client env (scene/serve env (scene/answering {:body body}) {}))
          ask #(wire/ask! c "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
          answer (expect-status 200 (ask))]
      (if (= "keep-alive" (some-> (wire/header answer "connection") str/lower-case))
        (do (expect= :length (:framing answer))
            (expect= (:body answer) (:body (expect-status 200 (ask)))))
        (do (expect (#{:length :close} (:framing answer)) "no chunks" answer)
            (expect-closed c))))))

(defcase http-1-0-without-keep-alive-closes "4.8"
  "HTTP/1.0 that asks for nothing is closed behind the response: what is pipelined behind it never
  runs."
  {:needs #{:http-1.0}}
  [env]
  (let [uris (atom [])
        c (scene/client env (scene/serve env (fn [r] (swap! uris conj (:uri r)) (scene/ok r)) {}))]
    (expect-status 200 (wire/ask! c "GET / HTTP/1.0\r\n\r\n" "GET /second HTTP/1.0\r\n\r\n"))
    (expect-closed c)
    (expect= ["/"] @uris)))

(defcase http-1-0-bodies-arrive "4.2"
  "A body of a stated length arrives on HTTP/1.0, with an Expect too."
  {:needs #{:http-1.0}}
  [env]
  (let [server (scene/serve env read-all {})]
    (doseq [more ["" "Expect: 100-continue\r\n"]]
      (let [c (wire/send! (scene/client env server)
                          "POST / HTTP/1.0\r\nContent-Length: 3\r\n"
                          more
                          "\r\nabc")
            answer (wire/response c)]
        (expect= "abc"
                 (:body (expect-status 200
                                       (if (= 100 (:status answer)) (wire/response c) answer))))))))

(defcase http-1-0-is-not-asked-to-go-on "4.2"
  "HTTP/1.0 knows no 100 Continue: it gets none, whatever it expects."
  {:needs #{:http-1.0}}
  [env]
  (let [c (wire/send! (scene/client env (scene/serve env read-all {}))
                      "POST / HTTP/1.0\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc")]
    (expect= 200 (:status (wire/head c)))))
