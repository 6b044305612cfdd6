(ns thrum.server.tck.http-1-0
  "Chapter: requests of HTTP/1.0."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.refusal :refer [read-all]]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-status expect=]]
   [thrum.server.tck.wire :as wire]))

(set! *warn-on-reflection* true)

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
  on; or it is closed, and says so once where the handler does."
  {:needs #{:http-1.0}}
  [env]
  (let [handler (scene/answering {:headers {"Connection" "close"}, :body "a string"})
        c (scene/client env (scene/serve env handler {}))
        answer (wire/ask! c "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")]
    (expect= ["close"] (get (:headers (expect-status 200 answer)) "connection"))
    (expect-closed c))
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
  (let [[c uris] (scene/noting-uris env scene/ok)]
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
  "HTTP/1.0 knows no 100 Continue: it gets none, also where it expects one."
  {:needs #{:http-1.0}}
  [env]
  (let [c (wire/send! (scene/client env (scene/serve env read-all {}))
                      "POST / HTTP/1.0\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc")]
    (expect= 200 (:status (wire/head c)))))
