(ns thrum.server.tck.response
  "Chapter: how a response map becomes bytes."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io ByteArrayInputStream File FilterInputStream)
   (java.nio.file Files OpenOption)
   (java.nio.file.attribute FileAttribute)))

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

;; Bodies

(defcase string-is-utf-8 "4.2"
  "A String is encoded as UTF-8 where no charset is named."
  [env]
  (expect= (wire/text-of (String/.getBytes "grün €" "UTF-8")) (body-of env {:body "grün €"})))

(defcase string-follows-its-charset "4.2"
  "A String is encoded in the charset of the Content-Type."
  [env]
  (expect=
    "gr\u00fcn"
    (body-of env {:headers {"content-type" "text/plain; charset=ISO-8859-1"}, :body "grün"})))

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
                                                                    (lazy-seq (deref gate 8000 nil)
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

(defn- file-of [env ^String text]
  (let [path (Files/createTempFile "tck" ".txt" (make-array FileAttribute 0))]
    (scene/at-end env #(Files/deleteIfExists path))
    (.toFile (Files/writeString path text (make-array java.nio.file.OpenOption 0)))))

(defcase file-is-sent "4.2"
  "A File is sent whole."
  [env]
  (let [text (str/join (repeat 20000 "0123456789"))]
    (expect (= text (body-of env {:body (file-of env text)})) "the file's text" :another)))

(defcase file-of-unknown-length-is-sent "4.2"
  "A File whose length is 0 but that has bytes, as a FIFO, is sent to its end; one that has none is
  an empty body."
  [env]
  (let [text (str/join (repeat 20000 "0123456789"))
        ^java.io.File file (file-of env text)
        of-no-length (proxy [java.io.File] [(str file)] (length [] 0))]
    (expect (= text (body-of env {:body of-no-length})) "the file's text" :another)
    (expect= "" (body-of env {:body (file-of env "")}))))

(defn- stream
  "Returns an InputStream of text that notes in trail when it is read and when it is closed."
  [trail text]
  (proxy [FilterInputStream] [(ByteArrayInputStream. (wire/bytes-of text))]
    (read ([] (swap! trail conj :read) (let [^FilterInputStream this this] (proxy-super read)))
          ([bs] (swap! trail conj :read) (let [^FilterInputStream this this] (proxy-super read bs)))
          ([bs off n]
           (swap! trail conj :read)
           (let [^FilterInputStream this this] (proxy-super read bs off n))))
    (close [] (swap! trail conj :closed) (let [^FilterInputStream this this] (proxy-super close)))))

(defn- expect-trail [wanted unwanted trail]
  (scene/eventually 2000 #(some #{wanted} @trail))
  (expect (some #{wanted} @trail) wanted @trail)
  (expect (not-any? #{unwanted} @trail) (str "no " unwanted) @trail))

(defcase stream-is-sent-and-closed "4.2"
  "An InputStream is sent whole, and closed."
  [env]
  (let [trail (atom [])]
    (expect= "streamed" (body-of env {:body (stream trail "streamed")}))
    (expect-trail :closed nil trail)))

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
                                 :body (stream (atom []) "streamed")})]
    (expect= [:length "8" "streamed"]
             [(:framing answer) (wire/header answer "content-length") (:body answer)])))

;; Without a body

(defn- head! [env response]
  (expect-status 200 (scene/answer-of env response (wire/head-of "HEAD" "/"))))

(defn- expect-nothing-more
  "Fails if bytes follow the answer to raw; the connection must stay usable."
  [env response raw status]
  (let [c (scene/client env (scene/serve env (scene/answering response) {}))
        ask #(wire/ask! c raw)]
    (expect= status (:status (ask)))
    (expect= :silent (wire/after c 60))
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
    (head! env {:body (stream trail "never")})
    (expect-trail :closed :read trail)))

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
    (scene/answer-of env {:status 204, :body (stream trail "never")})
    (expect-trail :closed :read trail)))

;; Connections

(defn- many-bodies [env]
  {"/string" (scene/answering {:body "a"})
   "/seq" (fn [_] {:status 200, :headers {}, :body (map str [1 2])})
   "/stream" (fn [_] {:status 200, :headers {}, :body (stream (atom []) "b")})
   "/file" (let [file (file-of env "c")] (scene/answering {:body ^File file}))
   "/nil" (scene/answering {:body nil})})

(defcase connection-is-kept "4.2"
  "The connection serves on after every kind of body."
  [env]
  (let [c (scene/client env (scene/serve env (scene/routes (many-bodies env)) {}))
        bodies (mapv #(:body (wire/ask! c (wire/get %)))
                     ["/string" "/seq" "/stream" "/file" "/nil" "/string"])]
    (expect= ["a" "12" "b" "c" "" "a"] bodies)))

(defcase client-may-close "4.2"
  "A client's Connection: close is obeyed."
  [env]
  (let [c (scene/client env (scene/serve env scene/ok {}))]
    (expect-status 200 (wire/ask! c (wire/get "/" "Connection: close")))
    (scene/expect-closed c)))

(defcase handler-may-close "4.2"
  "A handler's Connection: close is sent, and obeyed."
  [env]
  (let [c (scene/client
            env
            (scene/serve env (scene/answering {:headers {"Connection" "close"}, :body "x"}) {}))]
    (expect= "close"
             (some-> (wire/header (wire/ask! c (wire/get "/")) "connection")
                     str/lower-case))
    (scene/expect-closed c)))

;; What never reaches the wire

(defcase product-is-not-told "4.3"
  "No header names the server's product or version."
  [env]
  (let [answer (scene/answer-of env {:body "x"})]
    (expect= [nil nil] [(wire/header answer "server") (wire/header answer "x-powered-by")])))

(defcase handlers-server-header-is-sent "4.3"
  "The Server header of a handler is sent."
  [env]
  (expect= "mine" (wire/header (scene/answer-of env {:headers {"Server" "mine"}}) "server")))

(defn- expect-500 [env response]
  (let [answer (scene/answer-of env response)]
    (expect= 500 (:status answer) answer)
    (expect= nil (scene/shows answer ["evil" "injected"]))))

(defcase line-ends-in-values-are-refused "4.8"
  "A CR LF in a response header's value is a 500, never another header."
  [env]
  (expect-500 env {:headers {"X-Text" "a\r\nX-Evil: injected"}, :body "x"}))

(defcase bare-line-ends-in-values-are-refused "4.8"
  "A lone CR, LF or NUL in a response header's value is a 500."
  [env]
  (doseq [value ["a\rX-Evil: 1" "a\nX-Evil: 1" "a\u0000evil"]]
    (expect-500 env {:headers {"X-Text" value}, :body "x"})))

(defcase wide-chars-in-values-are-no-line-ends "4.8"
  "A char whose low byte is CR or LF never ends a header's line."
  [env]
  (let [answer (scene/answer-of env {:headers {"X-Text" "a\u010d\u010aX-Evil: 1"}, :body "x"})]
    (expect= nil (wire/header answer "x-evil"))
    (expect (not= :garbage (:ended answer)) "an HTTP response" answer)))

(defcase line-ends-in-repeated-values-are-refused "4.8"
  "A line's end in one value of a vector is a 500."
  [env]
  (expect-500 env {:headers {"Set-Cookie" ["a=1" "b=2\r\nX-Evil: 1"]}, :body "x"}))

(defcase header-names-are-tokens "4.8"
  "A response header whose name is no token is a 500."
  [env]
  (doseq [name ["X Evil" "X-Evil:" "" "X-Evil\r\nY" "X-\u00c9vil"]]
    (expect-500 env {:headers {name "1"}, :body "x"})))

(defcase transfer-encoding-is-the-servers "4.8"
  "A handler's Transfer-Encoding never reaches the wire."
  [env]
  (doseq [coding ["gzip" "chunked" "identity"]]
    (let [answer (scene/answer-of env {:headers {"Transfer-Encoding" coding}, :body "x"})]
      (expect (wire/complete? answer) "a complete response" answer)
      (expect= nil (wire/header answer "transfer-encoding")))))

(defcase upgrade-is-the-servers "4.8"
  "A handler's Connection: upgrade never reaches the wire."
  [env]
  (let [answer (scene/answer-of env
                                {:headers {"Connection" "upgrade", "Upgrade" "evil"}, :body "x"})]
    (expect (not (str/includes? (str/lower-case (str (wire/header answer "connection"))) "upgrade"))
            "no upgrade"
            answer)))

(defn- expect-right-length
  [env value]
  (let [server
        (scene/serve env (scene/answering {:headers {"Content-Length" value}, :body "hello"}) {})
        answer (scene/ask env server (wire/get "/"))]
    (expect (wire/complete? answer) "a complete response" answer)
    (expect (or (= 500 (:status answer)) (= "hello" (:body answer)))
            "500 or the whole body"
            answer)))

(defcase wrong-lengths-are-not-sent "4.8"
  "A handler's wrong Content-Length for a body of known length never reaches the wire."
  [env]
  (run! #(expect-right-length env %) ["999" "2" "0"]))

(defcase garbled-lengths-are-not-sent "4.8"
  "A handler's Content-Length that is no number never reaches the wire."
  [env]
  (run! #(expect-right-length env %) ["five" "+5" "5,5" "-5" ""]))

(defcase two-lengths-are-not-sent "4.8"
  "A handler's Content-Length of two values never reaches the wire."
  [env]
  (expect-right-length env ["5" "6"]))

(defn- changing-file
  "Returns a file that holds n bytes, and says that it has length, as one does that grows or shrinks
  while it is sent."
  [env n length]
  (let [path (Files/createTempFile "thrum-tck" ".txt" (make-array FileAttribute 0))]
    (scene/at-end env #(Files/deleteIfExists path))
    (Files/write path
                 (byte-array n (byte 120))
                 ^"[Ljava.nio.file.OpenOption;" (make-array OpenOption 0))
    (proxy [File] [(str path)] (length [] length))))

(defcase growing-files-are-sent-as-announced "4.3"
  "Of a File that grows while it is sent, as many bytes are sent as were announced."
  [env]
  (doseq [[n length] [[10 5] [10000 9000] [200100 200000]]]
    (let [answer (expect-status 200
                                (scene/answer-of env {:body (changing-file env n length)}))]
      (expect= [(str length) length]
               [(wire/header answer "content-length") (count (:body answer))]))))

(defcase shrinking-files-are-cut "4.3"
  "One that shrinks is cut off, or a 500 where nothing was sent of it yet."
  [env]
  (doseq [[n length] [[5 10] [9000 10000] [200000 200100]]]
    (let [answer (scene/answer-of env {:body (changing-file env n length)})]
      (when-not (= 500 (:status answer)) (scene/expect-cut answer)))))

(defcase handlers-date-is-sent "4.2"
  "A handler's own Date is sent, once, in place of the server's."
  [env]
  (let [date "Mon, 01 Jan 2024 00:00:00 GMT"]
    (doseq [body ["text" (list "a" "b")]]
      (expect= date
               (wire/header (scene/answer-of env {:headers {"Date" date}, :body body})
                            "date")))))

(defcase connection-headers-are-the-servers "4.8"
  "A handler's Trailer, TE, Keep-Alive, Proxy-Connection and Upgrade never reach the wire, and its
  response does."
  [env]
  (doseq [body ["text" (list "te" "xt")]
          [name value] [["Trailer" "X-Trailer"] ["TE" "trailers"] ["Keep-Alive" "timeout=9"]
                        ["Proxy-Connection" "keep-alive"] ["Upgrade" "h2c"]]]
    (let [answer (expect-status 200 (scene/answer-of env {:headers {name value}, :body body}))]
      (expect= ["text" nil] [(:body answer) (wire/header answer (str/lower-case name))] name))))
