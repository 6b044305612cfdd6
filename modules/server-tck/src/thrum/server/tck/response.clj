(ns thrum.server.tck.response
  "Chapter: how the status, headers and body of a response map are sent."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.bodies :as bodies]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io File)))

(set! *warn-on-reflection* true)

(defn- body-of [env response]
  (:body (expect-status 200 (scene/answer-of env response))))

(defcase status-is-sent "4.2"
  "The status is the handler's, the unusual ones too."
  [env]
  (let [server (scene/serve env
                            (fn [{:keys [query-string]}]
                              {:status (parse-long query-string), :headers {}, :body "x"})
                            {})]
    (doseq [status [200 201 299 302 404 418 500 599]]
      (expect= status (:status (scene/ask env server (wire/get (str "/?" status))))))))

(defcase headers-are-sent "4.2"
  "A response header reaches the client as it is."
  [env]
  (expect= "some  value; q=\"1\""
           (wire/header (scene/answer-of env {:headers {"X-Some" "some  value; q=\"1\""}})
                        "x-some")))

(defcase header-vectors-repeat "4.2"
  "A header whose value is a vector is sent once for each element."
  [env]
  (expect= ["a=1" "b=2"]
           (wire/header (scene/answer-of env {:headers {"Set-Cookie" ["a=1" "b=2"]}})
                        "set-cookie")))

(defcase header-lists-repeat "4.2"
  "A header whose value is a list is sent once for each element."
  [env]
  (expect= ["1" "2"]
           (wire/header (scene/answer-of env {:headers {"X-Two" (list "1" "2")}}) "x-two")))

(defcase string-is-utf-8 "4.2"
  "A String is encoded as UTF-8 where no charset is named."
  [env]
  (expect= (wire/text-of (String/.getBytes "grün €" "UTF-8")) (body-of env {:body "grün €"})))

(defcase string-follows-its-charset "4.2"
  "A String is encoded in the charset of the Content-Type, quoted or not."
  [env]
  (doseq [charset ["ISO-8859-1" "\"ISO-8859-1\""]
          :let [headers {"content-type" (str "text/plain; charset=" charset)}]]
    (expect= "gr\u00fcn" (body-of env {:headers headers, :body "grün"}))))

(defcase bytes-are-sent "4.2"
  "A byte array is sent as it is."
  [env]
  (let [all (byte-array (map unchecked-byte (range 256)))]
    (expect= (wire/text-of all) (body-of env {:body all}))))

(defcase seq-is-concatenated "4.2"
  "The elements of a seq follow one another."
  [env]
  (expect= "1twothree" (body-of env {:body (map identity [1 "two" 'three])})))

(defcase seq-is-flushed-by-element "4.2"
  "An element of a seq reaches the client before the next one is realised."
  [env]
  (let [gate (scene/gate env)
        server (scene/serve env
                            (scene/answering {:body (lazy-seq (cons "first"
                                                                    (lazy-seq (deref gate 30000 nil)
                                                                              ["second"])))})
                            {})
        c (wire/send! (scene/client env server) (wire/get "/"))
        _ (expect= :chunked (:framing (wire/head c)))
        first-chunk (wire/chunk c)]
    (expect= "first" first-chunk)
    (expect (not (realized? gate)) "the element before the gate opens" :after)
    (deliver gate :open)
    (expect= ["second" :last] [(wire/chunk c) (wire/chunk c)])))

(defcase empty-seq-is-empty "4.2"
  "A seq without elements is an empty body."
  [env]
  (expect= "" (body-of env {:body (map identity [])})))

(defcase file-is-sent "4.2"
  "A File is sent whole."
  [env]
  (let [text (str/join (repeat 20000 "0123456789"))]
    (expect (= text (body-of env {:body (bodies/file-of env text)})) "the file's text" :another)))

(defn- changing-file
  "Returns a file that holds text, and says that it has length, as one does that grows or shrinks
  while it is sent."
  [env text length]
  (proxy [File] [(str (bodies/file-of env text))] (length [] length)))

(defcase file-of-unknown-length-is-sent "4.2"
  "A File whose length is 0 but that has bytes, as a FIFO, is sent to its end; one that has none is
  an empty body."
  [env]
  (let [text (str/join (repeat 20000 "0123456789"))
        of-no-length (changing-file env text 0)]
    (expect (= text (body-of env {:body of-no-length})) "the file's text" :another)
    (expect= "" (body-of env {:body (bodies/file-of env "")}))))

(defcase stream-is-sent-and-closed "4.2"
  "An InputStream is sent whole, and closed."
  [env]
  (let [trail (atom [])]
    (expect= "streamed" (body-of env {:body (bodies/stream trail "streamed")}))
    (bodies/expect-trail :closed nil trail)))

(defcase nil-body-is-empty "4.2"
  "A nil body is an empty one, of a framing that says so."
  [env]
  (let [answer (expect-status 200 (scene/answer-of env {:body nil}))]
    (expect= ["" :whole] ((juxt :body :ended) answer))))

(defcase stated-length-is-kept "4.2"
  "A Content-Length that the handler states for a stream is sent, and the body framed by it."
  [env]
  (let [answer (scene/answer-of env
                                {:headers {"Content-Length" "8"}
                                 :body (bodies/stream (atom []) "streamed")})]
    (expect= [:length "8" "streamed"]
             [(:framing answer) (wire/header answer "content-length") (:body answer)])))

(defcase growing-files-are-sent-as-announced "4.3"
  "Of a File that grows while it is sent, as many bytes are sent as were announced."
  [env]
  (doseq [[n length] [[10 5] [10000 9000] [200100 200000]]]
    (let [file (changing-file env (str/join (repeat n "x")) length)
          answer (expect-status 200 (scene/answer-of env {:body file}))]
      (expect= [(str length) length]
               [(wire/header answer "content-length") (count (:body answer))]))))

(defcase shrinking-files-are-cut "4.3"
  "One that shrinks is cut off, or a 500 where nothing was sent of it yet."
  [env]
  (doseq [[n length] [[5 10] [9000 10000] [200000 200100]]]
    (let [file (changing-file env (str/join (repeat n "x")) length)
          answer (scene/answer-of env {:body file})]
      (when-not (= 500 (:status answer)) (scene/expect-cut answer)))))

(defcase handlers-date-is-sent "4.2"
  "A handler's own Date is sent, once, in place of the server's."
  [env]
  (let [date "Mon, 01 Jan 2024 00:00:00 GMT"]
    (doseq [body ["text" (list "a" "b")]]
      (expect= date
               (wire/header (scene/answer-of env {:headers {"Date" date}, :body body})
                            "date")))))
