(ns thrum.server.tck.ring
  "Chapter: bodies by Ring's own protocol, where ring.core.protocols can be loaded."
  (:require
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-cut expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io FileNotFoundException IOException OutputStream)))

(set! *warn-on-reflection* true)

(deftype Written [f])

(defn- streamable
  "Returns the protocol, implemented for Written; skips where Ring is not there."
  []
  (let [protocol (try
                   (deref (requiring-resolve 'ring.core.protocols/StreamableResponseBody))
                   (catch FileNotFoundException _
                     (scene/skip "ring.core.protocols is not on the classpath")))]
    (extend Written
      protocol
      {:write-body-to-stream (fn [^Written body _ out] ((.-f body) out))})))

(defn- written [f]
  (streamable)
  {:status 200, :headers {}, :body (->Written f)})

(defn- write! [^OutputStream out ^String text]
  (.write out (.getBytes text))
  (.flush out))

(defcase ring-bodies-write-themselves "4.9"
  "A body that satisfies StreamableResponseBody writes itself."
  [env]
  (let [response
        (written
          (fn [^OutputStream out] (write! out "some") (write! out "more") (.close out)))]
    (expect= "somemore" (:body (expect-status 200 (scene/answer-of env response))))))

(defcase ring-bodies-failing-are-cut "4.9"
  "A body that satisfies StreamableResponseBody and throws half-way is cut off."
  [env]
  (let [response (written (fn [out] (write! out "some") (throw (ex-info "secret" {}))))]
    (expect-cut (scene/answer-of env response))))

(defcase ring-bodies-failing-at-once-are-500 "4.9"
  "A body that satisfies StreamableResponseBody and throws before its first byte is a 500."
  [env]
  (let [answer (scene/answer-of env (written (fn [_] (throw (ex-info "secret" {})))))]
    (expect= nil (scene/shows (expect-status 500 answer) scene/telltale))))

(defcase ring-bodies-end-with-their-response "4.9"
  "What a body that satisfies StreamableResponseBody writes after its response has ended reaches no
  connection."
  [env]
  (let [outs (atom [])
        keeping (written (fn [out] (write! out "some") (swap! outs conj out)))
        handler (scene/routes {"/" (constantly keeping)})
        c (scene/client env (scene/serve env handler {}))]
    (expect= "some" (:body (expect-status 200 (wire/ask! c (wire/get "/")))))
    (try
      (write! (first @outs) "HTTP/1.1 418 I'm late\r\nContent-Length: 0\r\n\r\n")
      (catch IOException _))
    (expect= :silent (wire/after c wire/quiet-ms))
    (expect= "ok" (:body (expect-status 200 (wire/ask! c (wire/get "/next")))))))

(defcase ring-bodies-may-be-written-later "4.9"
  "In an async handler the stream may be written on another thread, until it is closed."
  [env]
  (let [later (fn [^OutputStream out]
                (scene/start #(do
                                (write! out "late")
                                (write! out "r")
                                (.close out))))
        response (written later)
        server (scene/serve env (fn [_ respond _] (respond response)) {:async? true})
        c (scene/client env server)]
    (dotimes [_ 2] (expect= "later" (:body (expect-status 200 (wire/ask! c (wire/get "/"))))))
    (expect (not= :data (wire/after c wire/quiet-ms)) "nothing more" :data)))
