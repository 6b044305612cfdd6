(ns thrum.server.tck.no-body
  "Chapter: responses without a body, to HEAD and of 204 and 304."
  (:require
   [thrum.server.tck.bodies :as bodies]
   [thrum.server.tck.scene :as scene :refer [defcase expect-status expect=]]
   [thrum.server.tck.wire :as wire]))

(set! *warn-on-reflection* true)

(defn- head! [env response]
  (expect-status 200 (scene/answer-of env response (wire/head-of "HEAD" "/"))))

(defn- expect-nothing-more
  "Fails if bytes follow the answer to raw; the connection must stay usable."
  [env response raw status]
  (let [c (scene/client env (scene/serve env (scene/answering response) {}))
        ask #(wire/ask! c raw)]
    (expect= status (:status (ask)))
    (expect= :silent (wire/after c wire/quiet-ms))
    (expect= status (:status (ask)))))

(defcase head-sends-no-body "4.2"
  "HEAD is answered without a body."
  [env]
  (expect-nothing-more env {:body "ten bytes."} (wire/head-of "HEAD" "/") 200))

(defcase head-sends-no-streamed-body "4.2"
  "HEAD is answered without a body where GET's would be chunked."
  [env]
  (expect-nothing-more env {:body (map str (range 3))} (wire/head-of "HEAD" "/") 200))

(defcase head-states-the-length "4.2"
  "The Content-Length for HEAD is that for GET, where it is known."
  [env]
  (expect= "10" (wire/header (head! env {:body "ten bytes."}) "content-length")))

(defcase head-keeps-a-stated-length "4.2"
  "The Content-Length that a handler states for HEAD is sent, even with a nil body."
  [env]
  (expect= "1234"
           (wire/header (head! env {:headers {"Content-Length" "1234"}, :body nil})
                        "content-length")))

(defcase head-closes-the-body-unread "4.2"
  "The body of a HEAD is closed without being read."
  [env]
  (let [trail (atom [])]
    (head! env {:body (bodies/stream trail "never")})
    (bodies/expect-trail :closed :read trail)))

(defcase head-does-not-realise-a-seq "4.2"
  "The lazy seq that answers a HEAD is not realised."
  [env]
  (let [realised (atom false)]
    (head! env {:body (lazy-seq (reset! realised true) ["x"])})
    (expect= false @realised)))

(defcase no-content-has-no-body "4.2"
  "204 has no body, whatever the handler says."
  [env]
  (expect-nothing-more env {:status 204, :body "never"} (wire/get "/") 204))

(defcase no-content-has-no-length "4.2"
  "204 states no Content-Length."
  [env]
  (expect= nil (wire/header (scene/answer-of env {:status 204, :body "never"}) "content-length")))

(defcase not-modified-has-no-body "4.2"
  "304 has no body, whatever the handler says."
  [env]
  (expect-nothing-more env {:status 304, :body "never"} (wire/get "/") 304))

(defcase no-content-closes-the-body "4.2"
  "The body of a 204 is closed."
  [env]
  (let [trail (atom [])]
    (scene/answer-of env {:status 204, :body (bodies/stream trail "never")})
    (bodies/expect-trail :closed :read trail)))
