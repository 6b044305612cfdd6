(ns thrum.server.tck.refusal
  "Requests with a second request hidden behind them, which a server must refuse or read to their
  end."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [expect expect-closed expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io IOException InputStream)))

(set! *warn-on-reflection* true)

(def hidden
  "What would be a second request if the first were read differently."
  "GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n")

(defn lines
  "Returns the text of these lines and of the empty one behind them."
  [& parts]
  (str (str/join "\r\n" parts) "\r\n\r\n"))

(defn expect-refused
  "Sends text with something hidden behind it: one of the statuses is answered, the connection
  closed, no handler called."
  [env statuses text]
  (let [[c uris] (scene/noting-uris env scene/ok)
        answer (wire/ask! c (str text hidden))]
    (expect (statuses (or (:status answer) (:ended answer)))
            (str "status " (str/join " or " statuses))
            answer)
    (expect-closed c)
    (expect= [] @uris)))

(defn refused-post
  "As expect-refused, of a POST with these headers and the body abc."
  [env statuses & headers]
  (expect-refused env
                  statuses
                  (str (apply lines "POST / HTTP/1.1" "Host: localhost" headers) "abc")))

(defn swallow
  "A handler that reads the body, and swallows what that throws."
  [{:keys [^InputStream body] :as request}]
  (try (.readAllBytes body) (catch IOException _))
  (scene/ok request))

(defn read-all
  "A handler that answers with the body it has read."
  [{:keys [^InputStream body]}]
  {:status 200, :headers {}, :body (.readAllBytes body)})

(defn expect-throwing-body
  "Sends text and a FIN: the body that ends with it throws IOException where it is read."
  [env text]
  (let [thrown (promise)
        handler (fn [r] (try (read-all r) (catch IOException e (deliver thrown e) (throw e))))
        c (wire/send! (scene/client env (scene/serve env handler {})) text)]
    (wire/finish! c)
    (scene/within thrown "an IOException from the body")))

(defn chunks
  "Returns the text of a POST whose chunked body is text, as it is."
  [text]
  (str (wire/head-of "POST" "/" "Transfer-Encoding: chunked") text))
