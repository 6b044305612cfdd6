(ns thrum.server.tck.ws-handshake
  "Chapter: how a websocket is opened or refused (RFC 6455, section 4)."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire]
   [thrum.server.tck.ws-client :as ws]))

(set! *warn-on-reflection* true)

(defcase ws-handshake "4.9"
  "The handshake is answered with 101 and the right Sec-WebSocket-Accept."
  ws/needs
  [env]
  (let [c (wire/send! (scene/client env (ws/serve env (ws/echo env))) (ws/handshake))
        answer (wire/head c)]
    (expect= [101 "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" "websocket"]
             [(:status answer) (wire/header answer "sec-websocket-accept")
              (some-> (wire/header answer "upgrade")
                      str/lower-case)])))

(defcase ws-foreign-origins-are-refused "4.8"
  "A page of another origin gets 403; one of the Host's, and a client without Origin, are let in."
  ws/needs-origins
  [env]
  (let [server (ws/serve env (ws/echo env))
        status #(:status (wire/head (wire/send! (scene/client env server) (apply ws/handshake %))))]
    (expect= [403 101 101]
             (mapv status [["Origin: http://evil.example"] ["Origin: http://localhost"] []]))))

(defcase ws-listed-origins-are-let-in "4.8"
  "A page of an origin in :ws-origins is let in, and no other."
  ws/needs-origins
  [env]
  (let [server (ws/serve env (ws/echo env) {:ws-origins ["http://good.example"]})
        status #(:status (wire/head (wire/send! (scene/client env server)
                                                (ws/handshake (str "Origin: " %)))))]
    (expect= [101 403] (mapv status ["http://good.example" "http://good.example.evil"]))))

(defcase ws-needs-a-handshake "4.9"
  "A websocket response to a request that asks for none is an error, not a 101."
  ws/needs
  [env]
  (let [server (ws/serve env (ws/echo env))]
    (doseq [text [(wire/get "/") (str/replace (ws/handshake) "Version: 13" "Version: 12")]]
      (let [{:keys [status] :as answer} (scene/ask env server text)]
        (expect (<= 400 (or status 0) 599) "an error" answer)))))

(defcase ws-handshakes-are-strict "4.8"
  "A handshake without Connection: Upgrade, on HTTP/1.0, by another method, with a body, or an
  invalid key, is an error; the answer to another version names ours."
  ws/needs
  [env]
  (let [server (ws/serve env (ws/echo env))
        answer #(wire/head (wire/send! (scene/client env server) %))]
    (doseq [[from to]
            [["Connection: Upgrade\r\n" ""] ["Connection: Upgrade" "Connection: keep-alive"]
             ["HTTP/1.1" "HTTP/1.0"] ["GET" "POST"]
             ["\r\n\r\n" "\r\nContent-Length: 5\r\n\r\nhello"]
             ["\r\n\r\n" "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
             ["dGhlIHNhbXBsZSBub25jZQ==" ""] ["dGhlIHNhbXBsZSBub25jZQ==" "abc"]
             ["dGhlIHNhbXBsZSBub25jZQ==" "dGhlIHNhbXBsZSBub25jZTE="]
             ["Sec-WebSocket-Key:" "X-Key:"]]
            :let [{:keys [status], :as found} (answer (str/replace (ws/handshake) from to))]]
      (expect (<= 400 (or status 0) 499)
              (str "an error for " (pr-str to) " in place of " (pr-str from))
              found))
    (let [of-version-8 (str/replace (ws/handshake) "Version: 13" "Version: 8")
          {:keys [status], :as found} (answer of-version-8)]
      (expect= [426 "13" "websocket"]
               [status (wire/header found "sec-websocket-version")
                (some-> (wire/header found "upgrade") str/lower-case)]))))

(defcase ws-subprotocol-is-offered "4.9"
  "A subprotocol that the client does not offer is a failure of the handler's: 500, and no 101 that
  the client could not take."
  ws/needs
  [env]
  (let [server (ws/serve env (ws/echo env) {} {:ring.websocket/protocol "chat"})
        status #(:status (wire/head (wire/send! (scene/client env server) (apply ws/handshake %))))]
    (expect= [500 500 101]
             (mapv status
                   [[]
                    ["Sec-WebSocket-Protocol: super"]
                    ["Sec-WebSocket-Protocol: super, chat"]]))))

(defcase ws-subprotocol-is-told "4.9"
  "The answer names the subprotocol that the handler has chosen."
  ws/needs
  [env]
  (let [server (ws/serve env (ws/echo env) {} {:ring.websocket/protocol "chat"})
        answer (wire/head (wire/send! (scene/client env server)
                                      (ws/handshake "Sec-WebSocket-Protocol: super, chat")))]
    (expect= [101 "chat"] [(:status answer) (wire/header answer "sec-websocket-protocol")])))

(defcase ws-refused-by-the-handler "4.9"
  "A handler may answer a websocket's handshake with a plain response."
  ws/needs
  [env]
  (let [server (scene/serve env (scene/answering {:status 401, :body "no"}) {})]
    (expect= "no" (:body (expect-status 401 (scene/ask env server (ws/handshake)))))))
