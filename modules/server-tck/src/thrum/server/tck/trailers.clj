(ns thrum.server.tck.trailers
  "Chapter: the lines behind the last chunk. Trailers frame nothing and hide nothing."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.refusal :refer [chunks hidden read-all]]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-status expect=]]
   [thrum.server.tck.wire :as wire]))

(set! *warn-on-reflection* true)

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
  (let [[c uris] (scene/noting-uris env scene/ok)]
    (wire/ask! c (chunks "3\r\nabc\r\n0\r\nGET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    (wire/after c wire/quiet-ms)
    (expect (not-any? #{"/hidden"} @uris) "no hidden request" @uris)))

(defn- last-chunk [path]
  (str (wire/head-of "POST" path "Transfer-Encoding: chunked") "3\r\nabc\r\n0\r\n"))

(defn- expect-refused-trailers
  "Expects 400 or a closed connection for these trailers where the handler reads the body, and no
  second request where it does not."
  [env server uris trailers]
  (let [c (scene/client env server)
        answer (wire/ask! c (str (last-chunk "/read") trailers hidden))]
    (scene/expect-refusal #{400 413} answer trailers)
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
  (let [[c uris] (scene/noting-uris env read-all)
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
  (doseq [trailers [(str "X: " (str/join (repeat 70000 "x")))
                    (str/join (repeat 9000 "X-A: 1\r\n"))]]
    (let [server (scene/serve env read-all {:max-header-bytes 8192})
          c (scene/client env server)]
      (wire/try-send! c (chunks "3\r\nabc\r\n0\r\n"))
      (wire/try-send! c trailers)
      (scene/expect-refusal #{400 413 431} (wire/response c))
      (expect-closed c))))

(defcase trailers-frame-nothing "4.8"
  "A Content-Length, a Transfer-Encoding or a Host among the trailers counts for nothing: the body
  and the next request are as they were."
  [env]
  (doseq [trailer ["Content-Length: 40" "Transfer-Encoding: chunked" "Host: elsewhere"
                   "Connection: keep-alive"]]
    (let [seen (atom [])
          handler (fn [{:keys [uri headers], :as r}]
                    (swap! seen conj [uri (headers "host") (headers "content-length")])
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
