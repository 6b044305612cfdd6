(ns thrum.server.tck.expect-continue
  "Chapter: Expect: 100-continue."
  (:require
   [thrum.server.tck.refusal :refer [hidden read-all]]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io InputStream)))

(set! *warn-on-reflection* true)

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
  (let [uris (atom [])
        c (scene/client env (scene/serve env (fn [r] (swap! uris conj (:uri r)) (scene/ok r)) {}))
        answer (wire/ask! c (expecting (count hidden)))]
    (wire/try-send! c hidden)
    (expect-status 200 (if (= 100 (:status answer)) (wire/response c) answer))
    (wire/after c wire/quiet-ms)
    (expect= ["/"] @uris)))
