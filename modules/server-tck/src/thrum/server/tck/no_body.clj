(ns thrum.server.tck.no-body
  "Chapter: responses without a body, to HEAD and of 204, 205 and 304."
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

(defcase head-states-no-length-that-is-not-known "4.2"
  "HEAD has no Content-Length where GET's body is chunked: 0 would say that it is empty."
  [env]
  (expect= nil (wire/header (head! env {:body (map str (range 3))}) "content-length")))

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
  "204 has no body, also where the handler gives one."
  [env]
  (expect-nothing-more env {:status 204, :body "never"} (wire/get "/") 204))

(defcase no-content-has-no-length "4.2"
  "204 states no Content-Length."
  [env]
  (expect= nil (wire/header (scene/answer-of env {:status 204, :body "never"}) "content-length")))

(defcase not-modified-has-no-body "4.2"
  "304 has no body, also where the handler gives one."
  [env]
  (expect-nothing-more env {:status 304, :body "never"} (wire/get "/") 304))

(defcase no-content-closes-the-body "4.2"
  "The body of a 204 is closed."
  [env]
  (let [trail (atom [])]
    (scene/answer-of env {:status 204, :body (bodies/stream trail "never")})
    (bodies/expect-trail :closed :read trail)))

;; Every kind of body

(defn- kinds
  "Returns functions that make a body, by the kind of it."
  [env]
  {:string (constantly "never")
   :bytes #(byte-array 9)
   :seq #(map str (range 3))
   :stream #(bodies/stream (atom []) "never")
   :file (constantly (bodies/file-of env "never"))
   :nil (constantly nil)})

(defn- expect-bodiless
  "Fails unless responses of this status to raw have no body, for every kind of body that the
  handler gives, and the connection goes on behind each."
  [env status raw]
  (let [next-kind (atom nil)
        handler (fn [{:keys [uri]}]
                  (if (= "/next" uri)
                    {:status 200, :headers {}, :body "next"}
                    {:status status, :headers {}, :body (@next-kind)}))
        c (scene/client env (scene/serve env handler {}))]
    (doseq [[kind make] (kinds env)]
      (reset! next-kind make)
      (let [answer (wire/ask! c raw)]
        (expect= [status :whole] [(:status answer) (:ended answer)] [kind answer])
        (when-some [framing (get {204 [nil nil], 205 ["0" nil]} status
                              (when (= [304 :nil] [status kind]) [nil nil]))]
          (expect= framing
                   (map #(wire/header answer %) ["content-length" "transfer-encoding"])
                   kind)))
      (expect= "next" (:body (wire/ask! c (wire/get "/next"))) kind))))

(defcase head-has-no-body-of-any-kind "4.2"
  "A HEAD has no body, for every kind of body that the handler gives, and the connection goes on."
  [env]
  (expect-bodiless env 200 (wire/head-of "HEAD" "/")))

(defcase silent-statuses-have-no-body-of-any-kind "4.2"
  "Nor have 204 and 304, to GET and to HEAD; 204, and a 304 without a body, have no framing either."
  [env]
  (doseq [status [204 304], method ["GET" "HEAD"]]
    (expect-bodiless env status (wire/head-of method "/"))))

(defcase reset-content-has-no-body "4.2"
  "205 has no body either, and says so by a Content-Length of 0, to HEAD too."
  [env]
  (doseq [method ["GET" "HEAD"]]
    (expect-bodiless env 205 (wire/head-of method "/"))))
