(ns thrum.server.tck.early
  "Chapter: responses that are sent before the request's body has come."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.refusal :refer [hidden]]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io InputStream)))

(set! *warn-on-reflection* true)

(def ^:private rest-of-body
  "What comes of a body when it has been answered: in each place something like a request."
  (str/join (repeat 1000 hidden)))

(defn- chunk-of [text]
  (str (Long/toHexString (count text)) "\r\n" text "\r\n"))

(def ^:private uploads
  "Framing -> head, first part of the body, its rest."
  {:length [(wire/head-of "POST" "/" (str "Content-Length: " (+ 5 (count rest-of-body))))
            "first" rest-of-body]
   :chunked [(wire/head-of "POST" "/" "Transfer-Encoding: chunked")
             (chunk-of "first") (str (chunk-of rest-of-body) "0\r\n\r\n")]})

(defn- answered-early
  "Returns the client of a request that the handler, which reads nothing, has answered before the
  rest of its body was sent, and the atom with the uris that handlers saw."
  [env [head first-part _] body]
  (let [[c :as noting] (scene/noting-uris env (fn [_] {:status 200, :headers {}, :body (body)}))]
    (expect-status 200 (wire/ask! c head first-part))
    noting))

(defn- expect-nothing-hidden
  "Sends the rest of the body and another request: that is answered, or the connection ends."
  [c uris rest-of-it]
  (wire/try-send! c rest-of-it)
  (wire/try-send! c (wire/get "/next"))
  (let [{:keys [status ended] :as answer} (wire/response c)]
    (expect (or (= 200 status) (#{:eof :reset} ended)) "an answer or a closed connection" answer))
  (expect (#{["/"] ["/" "/next"]} @uris) "no request out of the body" (distinct @uris)))

(defcase early-answers-arrive "4.2"
  "An answer to a request whose body still comes arrives whole, before that has come."
  [env]
  (doseq [upload (vals uploads), body [(constantly "a") #(map str [1 2]) (constantly nil)]]
    (answered-early env upload body)))

(defcase a-part-of-a-body-is-read-as-it-comes "4.2"
  "A handler that reads so many bytes of a body gets them when they have come, and waits for no
  more."
  [env]
  (doseq [[head first-part] (vals uploads)]
    (let [handler (fn [{:keys [^InputStream body]}]
                    {:status 200, :headers {}, :body (wire/text-of (.readNBytes body 5))})
          c (wire/send! (scene/client env (scene/serve env handler {})) head first-part)]
      (expect= "first" (:body (wire/response c))))))

(defcase bodies-answered-early-are-no-requests "4.8"
  "What comes of a body behind its answer is never taken for a request."
  [env]
  (doseq [[_ _ rest-of-it :as upload] (vals uploads)]
    (let [[c uris] (answered-early env upload (constantly "early"))]
      (expect-nothing-hidden c uris rest-of-it))))
