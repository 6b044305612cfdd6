(ns thrum.server.tck.expect-continue
  "Chapter: Expect: 100-continue."
  (:require
   [thrum.server.tck.refusal :refer [hidden read-all]]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io InputStream)))

(set! *warn-on-reflection* true)

(defn- expecting [n]
  (wire/head-of "POST" "/" (str "Content-Length: " n) "Expect: 100-continue"))

(defn- expecting-by-chunks [& headers]
  (apply wire/head-of "POST" "/" "Transfer-Encoding: chunked" headers))

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
  "100 Continue is never sent behind the response's head, where a client would take it for the
  body."
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
  (let [[c uris] (scene/noting-uris env scene/ok)
        answer (wire/ask! c (expecting (count hidden)))]
    (wire/try-send! c hidden)
    (expect-status 200 (if (= 100 (:status answer)) (wire/response c) answer))
    (wire/after c wire/quiet-ms)
    (expect= ["/"] @uris)))

(defcase unread-expected-bodies-close "4.8"
  "A final response in place of 100 Continue says Connection: close, and the connection ends: what a
  client sends next may be the body, or another request."
  [env]
  (let [server (scene/serve env scene/ok {})]
    (doseq [head [(expecting 3) (expecting-by-chunks "Expect: 100-continue")]]
      (let [c (scene/client env server)
            answer (wire/ask! c head)]
        ;; Where the server has asked for the body it may read that.
        (when-not (= 100 (:status answer))
          (expect= "close" (wire/header (expect-status 200 answer) "connection"))
          (expect-closed c))))))

(defcase continue-is-sent-for-chunks "4.2"
  "100 Continue is sent for a chunked body too, however the expectation is spelt."
  [env]
  (let [server (scene/serve env read-all {})]
    (doseq [expectation ["100-continue" "100-Continue"]
            :let [c (scene/client env server)]]
      (wire/send! c (expecting-by-chunks (str "Expect: " expectation)))
      (expect= 100 (:status (wire/head c)) expectation)
      (wire/send! c "3\r\nabc\r\n0\r\n\r\n")
      (expect= "abc" (:body (expect-status 200 (wire/response c))) expectation))))

(defcase continue-may-not-be-waited-for "4.2"
  "A client that sends its body without waiting for 100 Continue is answered, and so is its next
  request."
  [env]
  (let [c (scene/client env (scene/serve env read-all {}))
        final #(let [answer (wire/response c)]
                 (if (= 100 (:status answer)) (wire/response c) answer))]
    (doseq [[head body] [[(expecting 3) "abc"]
                         [(expecting-by-chunks "Expect: 100-continue") "3\r\nabc\r\n0\r\n\r\n"]]]
      (wire/send! c head body)
      (expect= "abc" (:body (expect-status 200 (final)))))))

(defcase refused-expectations-are-not-continued "4.4"
  "A request that is refused before its body is read gets its 413 or 503 at once, and no 100
  Continue."
  [env]
  (let [entered (promise)
        gate (scene/gate env)
        wait (fn [r] (deliver entered true) (deref gate 30000 nil) (scene/ok r))
        server (scene/serve env
                            (scene/routes {"/wait" wait})
                            {:max-body-bytes 100, :max-concurrent 1})]
    (expect= 413 (:status (scene/ask env server (expecting 1000))))
    (expect (scene/eventually #(do (scene/asked env server (wire/get "/wait"))
                                   (deref entered 100 nil)))
            "a request in the handler"
            :none)
    (expect= 503 (:status (scene/ask env server (expecting 3))))))
