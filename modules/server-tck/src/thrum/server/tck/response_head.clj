(ns thrum.server.tck.response-head
  "Chapter: what a handler may not say in a response's headers."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire]))

(set! *warn-on-reflection* true)

(defcase product-is-not-told "4.3"
  "No header names the server's product or version."
  [env]
  (let [answer (scene/answer-of env {:body "x"})]
    (expect= [nil nil] [(wire/header answer "server") (wire/header answer "x-powered-by")])))

(defcase handlers-server-header-is-sent "4.3"
  "The Server header of a handler is sent."
  [env]
  (expect= "mine" (wire/header (scene/answer-of env {:headers {"Server" "mine"}}) "server")))

(defn- expect-500 [env response]
  (let [answer (scene/answer-of env response)]
    (expect= 500 (:status answer) answer)
    (expect= nil (scene/shows answer ["evil" "injected"]))))

(defcase line-ends-in-values-are-refused "4.8"
  "A CR LF in a response header's value is a 500, never another header."
  [env]
  (expect-500 env {:headers {"X-Text" "a\r\nX-Evil: injected"}, :body "x"}))

(defcase bare-line-ends-in-values-are-refused "4.8"
  "A lone CR, LF or NUL in a response header's value is a 500."
  [env]
  (doseq [value ["a\rX-Evil: 1" "a\nX-Evil: 1" "a\u0000evil"]]
    (expect-500 env {:headers {"X-Text" value}, :body "x"})))

(defcase wide-chars-in-values-are-no-line-ends "4.8"
  "A char whose low byte is CR or LF never ends a header's line."
  [env]
  (let [answer (scene/answer-of env {:headers {"X-Text" "a\u010d\u010aX-Evil: 1"}, :body "x"})]
    (expect= nil (wire/header answer "x-evil"))
    (expect (not= :garbage (:ended answer)) "an HTTP response" answer)))

(defcase line-ends-in-repeated-values-are-refused "4.8"
  "A line's end in one value of a vector is a 500."
  [env]
  (expect-500 env {:headers {"Set-Cookie" ["a=1" "b=2\r\nX-Evil: 1"]}, :body "x"}))

(defcase header-names-are-tokens "4.8"
  "A response header whose name is no token is a 500."
  [env]
  (doseq [name ["X Evil" "X-Evil:" "" "X-Evil\r\nY" "X-\u00c9vil"]]
    (expect-500 env {:headers {name "1"}, :body "x"})))

(defcase transfer-encoding-is-the-servers "4.8"
  "A handler's Transfer-Encoding never reaches the wire."
  [env]
  (doseq [coding ["gzip" "chunked" "identity"]]
    (let [answer (scene/answer-of env {:headers {"Transfer-Encoding" coding}, :body "x"})]
      (expect (wire/complete? answer) "a complete response" answer)
      (expect= nil (wire/header answer "transfer-encoding")))))

(defcase upgrade-is-the-servers "4.8"
  "A handler's Connection: upgrade never reaches the wire."
  [env]
  (let [answer (scene/answer-of env
                                {:headers {"Connection" "upgrade", "Upgrade" "evil"}, :body "x"})]
    (expect (not (str/includes? (str/lower-case (str (wire/header answer "connection"))) "upgrade"))
            "no upgrade"
            answer)))

(defn- expect-right-length
  [env value]
  (let [server
        (scene/serve env (scene/answering {:headers {"Content-Length" value}, :body "hello"}) {})
        answer (scene/ask env server (wire/get "/"))]
    (expect (wire/complete? answer) "a complete response" answer)
    (expect (or (= 500 (:status answer)) (= "hello" (:body answer)))
            "500 or the whole body"
            answer)))

(defcase wrong-lengths-are-not-sent "4.8"
  "A handler's wrong Content-Length for a body of known length never reaches the wire."
  [env]
  (run! #(expect-right-length env %) ["999" "2" "0"]))

(defcase garbled-lengths-are-not-sent "4.8"
  "A handler's Content-Length that is no number never reaches the wire."
  [env]
  (run! #(expect-right-length env %) ["five" "+5" "5,5" "-5" ""]))

(defcase two-lengths-are-not-sent "4.8"
  "A handler's Content-Length of two values never reaches the wire."
  [env]
  (expect-right-length env ["5" "6"]))

(defcase connection-headers-are-the-servers "4.8"
  "A handler's Trailer, TE, Keep-Alive, Proxy-Connection and Upgrade never reach the wire, and its
  response does."
  [env]
  (doseq [body ["text" (list "te" "xt")]
          [name value] [["Trailer" "X-Trailer"] ["TE" "trailers"] ["Keep-Alive" "timeout=9"]
                        ["Proxy-Connection" "keep-alive"] ["Upgrade" "h2c"]]]
    (let [answer (expect-status 200 (scene/answer-of env {:headers {name value}, :body body}))]
      (expect= ["text" nil] [(:body answer) (wire/header answer (str/lower-case name))] name))))
