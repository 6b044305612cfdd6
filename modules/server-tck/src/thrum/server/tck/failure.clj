(ns thrum.server.tck.failure
  "Chapter: what a client sees when a handler or its body fails. A truncated body never looks
  complete."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.bodies :as bodies]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-cut expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (clojure.lang IExceptionInfo)
   (java.io ByteArrayInputStream File IOException InputStream SequenceInputStream)))

(set! *warn-on-reflection* true)

(defn- boom [& _]
  (throw (ex-info "secret-7391" {:type ::boom})))

(defn- expect-plain-500 [answer]
  (expect-status 500 answer)
  (expect= nil (scene/shows answer (conj scene/telltale "7391" "echoed")))
  answer)

(def ^:private telling-request
  (wire/get "/echoed?echoed" "X-Echoed: echoed"))

(defn- expect-500-for [env handler]
  (expect-plain-500 (scene/ask env (scene/serve env handler {}) telling-request)))

(defcase exception-is-500 "4.3"
  "A handler that throws is answered with 500, which shows nothing of the exception, the request or
  the server."
  [env]
  (expect-500-for env boom))

(defcase error-is-500 "4.3"
  "A handler that throws an Error is answered with 500."
  [env]
  (expect-500-for env (fn [_] (throw (StackOverflowError. "secret-7391")))))

(defn- treacherous
  "Returns throwables that throw themselves where they are asked what they are, or never come to an
  end."
  []
  (let [fail #(throw (Error. "secret"))]
    [(proxy [RuntimeException] [] (getMessage [] (fail)))
     (proxy [RuntimeException] [] (getCause [] (fail)))
     (proxy [RuntimeException] [] (getCause [] this))
     (proxy [RuntimeException] [] (toString [] (fail)))
     (proxy [RuntimeException IExceptionInfo] [] (getData [] (fail)))
     (ex-info "boom" (sorted-map "a" 1))]))

(defcase treacherous-throwables-are-500 "4.3"
  "A handler that throws what throws itself, when it is asked for its message, cause or data, is
  answered with 500, and its permit comes back."
  [env]
  (let [thrown (atom nil)
        server (scene/serve env (scene/routes {"/boom" (fn [_] (throw @thrown))})
                            {:max-concurrent 1, :max-queued 1, :queue-timeout-ms 4000})]
    (doseq [t (treacherous)]
      (reset! thrown t)
      (let [answer (expect-status 500 (scene/ask env server (wire/get "/boom")))]
        (expect= nil (scene/shows answer scene/telltale)))
      (expect-status 200 (scene/ask env server (wire/get "/"))))))

(defcase long-response-heads-are-500 "4.3"
  "Headers of a response that are too long to be sent are a 500, not a connection that is cut."
  [env]
  (let [headers (fn [n size]
                  (into {} (for [i (range n)] [(str "X-" i) (str/join (repeat size "x"))])))
        server (scene/serve env
                            (fn [{:keys [query-string]}]
                              (let [[n size] (map parse-long (str/split query-string #","))]
                                {:status 200, :headers (headers n size), :body "ok"}))
                            {})
        status #(:status (scene/ask env server (wire/get (str "/?" %))))]
    (doseq [[expected sizes] [[200 "1,15000"] [200 "15,1000"] [500 "1,16384"] [500 "20,1000"]
                              [500 "1,70000"] [500 "300,1000"] [200 "1,1"]]]
      (expect= expected (status sizes) sizes))))

(defcase nil-response-is-500 "4.3"
  "A handler that returns nil is answered with 500."
  [env]
  (expect-500-for env (constantly nil)))

(defcase no-map-is-500 "4.3"
  "A handler that returns no map is answered with 500."
  [env]
  (expect-500-for env (fn [_] 7391)))

(defcase no-status-is-500 "4.3"
  "A response without a status is a 500."
  [env]
  (expect-500-for env (fn [_] {:headers {}, :body "secret-7391"})))

(defcase wrong-status-is-500 "4.3"
  "A response whose status is no integer from 200 to 599 is a 500."
  [env]
  (doseq [status ["200" 42 100 199 600 1000 :ok]]
    (expect-500-for env (scene/answering {:status status, :body "secret-7391"}))))

(defcase wrong-header-value-is-500 "4.3"
  "A header value that is neither a string nor a collection of strings is a 500."
  [env]
  (expect-500-for env (scene/answering {:headers {"X-Key" :secret-7391}, :body "x"})))

(defcase wrong-body-is-500 "4.3"
  "A body of an unknown type is a 500."
  [env]
  (expect-500-for env (scene/answering {:body {:secret 7391}})))

(defcase missing-file-is-500 "4.3"
  "A File that does not exist is a 500."
  [env]
  (expect-500-for env (scene/answering {:body (File. "secret-7391.txt")})))

(defcase missing-file-is-500-to-head-too "4.3"
  "A File that does not exist, and a folder, are no success for HEAD, as for GET."
  [env]
  (doseq [file [(File. "secret-7391.txt") (File. ".")]
          :let [server (scene/serve env (scene/answering {:body file}) {})]]
    (expect-status 500 (scene/ask env server (wire/head-of "HEAD" "/")))))

(defn- failing-stream ^InputStream []
  (proxy [InputStream] []
    (read ([] (throw (IOException. "secret-7391"))) ([_] (throw (IOException. "secret-7391")))
      ([_ _ _] (throw (IOException. "secret-7391"))))))

(defcase stream-failing-at-once-is-500 "4.3"
  "An InputStream that throws before its first byte is a 500."
  [env]
  (expect-500-for env (fn [_] {:status 200, :headers {}, :body (failing-stream)})))

(defcase seq-failing-at-once-is-500 "4.3"
  "A seq that throws before its first element is a 500."
  [env]
  (expect-500-for env (fn [_] {:status 200, :headers {}, :body (lazy-seq (boom))})))

;; Half-way

(defn- some-then-boom []
  (lazy-seq (cons "some" (lazy-seq (boom)))))

(defn- stream-then-boom [n]
  (SequenceInputStream. (ByteArrayInputStream. (byte-array n (byte 120))) (failing-stream)))

(defn- expect-cut-for [env body & [headers]]
  (let [handler (fn [_] {:status 200, :headers (or headers {}), :body (body)})
        answer (scene/ask env (scene/serve env handler {}) (wire/get "/"))]
    (expect= nil (scene/shows answer ["7391"]))
    (expect-cut answer)))

(defcase seq-failing-half-way-is-cut "4.3"
  "A seq that throws half-way ends without the terminal chunk, and the connection ends."
  [env]
  (doseq [headers [{} {"Connection" "close"}]]
    (expect= 200 (:status (expect-cut-for env some-then-boom headers)) headers)))

(defcase stream-failing-half-way-is-cut "4.3"
  "An InputStream that throws half-way ends without the terminal chunk, and the connection ends."
  [env]
  (expect-cut-for env #(stream-then-boom 300000)))

(defn- bytes-stream [n]
  (ByteArrayInputStream. (byte-array n (byte 120))))

(defcase short-body-is-cut "4.3"
  "A body shorter than the stated Content-Length ends the connection."
  [env]
  (expect-cut-for env #(bytes-stream 100000) {"Content-Length" "200000"}))

(defcase tiny-short-body-is-no-success "4.3"
  "A body of a few bytes that is shorter than its Content-Length is cut off, or a 500."
  [env]
  (let [handler (fn [_]
                  {:status 200, :headers {"Content-Length" "10"}, :body (bytes-stream 5)})
        answer (scene/ask env (scene/serve env handler {}) (wire/get "/"))]
    (expect (or (= 500 (:status answer)) (not (wire/complete? answer)))
            "a 500 or a cut response"
            answer)))

(defcase body-failing-under-a-length-is-cut "4.3"
  "A body that fails before its stated Content-Length is reached ends the connection."
  [env]
  (expect-cut-for env #(stream-then-boom 100000) {"Content-Length" "200000"}))

(defcase long-body-sends-no-extra-byte "4.3"
  "A body longer than its stated Content-Length never sends an extra byte."
  [env]
  (let [handler (fn [_] {:status 200, :headers {"Content-Length" "5"}, :body (bytes-stream 500)})
        c (scene/client env (scene/serve env handler {}))
        answer (wire/ask! c (wire/get "/"))]
    (expect (or (= 500 (:status answer)) (= "xxxxx" (:body answer)))
            "the stated bytes, or a 500"
            answer)
    (expect (not= "xxxxxx"
                  (some->> (:body answer)
                           (re-find #"x{6}")))
            "no sixth byte"
            answer)
    (expect (not= :data (wire/after c wire/quiet-ms)) "nothing after the body" :data)))

(defn- http-1-0
  [env body]
  (scene/ask env
             (scene/serve env (fn [_] {:status 200, :headers {}, :body (body)}) {})
             "GET / HTTP/1.0\r\n\r\n"))

(defcase eof-delimited-body-failing-is-reset "4.3"
  "On HTTP/1.0, where the end of the connection ends the body, a failing body ends in a reset,
  unless nothing was sent of it."
  {:needs #{:http-1.0}}
  [env]
  (let [answer (expect-cut (http-1-0 env #(stream-then-boom 300000)))]
    (expect (or (nil? (:status answer)) (= :reset (:ended answer))) "a reset, or nothing" answer)))

(defcase eof-delimited-body-ends-cleanly "4.3"
  "On HTTP/1.0 a body of unknown length that does not fail ends with a clean end of the connection."
  {:needs #{:http-1.0}}
  [env]
  (let [answer (http-1-0 env #(map str [1 2 3]))]
    (expect= ["123" true] [(:body answer) (wire/complete? answer)] answer)))

(defcase failing-stream-is-closed "4.3"
  "An InputStream that throws is closed."
  [env]
  (let [closed (promise)
        body #(proxy [InputStream] []
                (read ([] (boom)) ([_] (boom)) ([_ _ _] (boom)))
                (close [] (deliver closed true)))]
    (scene/ask env
               (scene/serve env (fn [_] {:status 200, :headers {}, :body (body)}) {})
               (wire/get "/"))
    (scene/within closed "a closed stream")))

(defcase body-is-closed-when-the-client-goes "4.3"
  "The body of a response is closed when the client goes away half-way."
  [env]
  (let [[body closed] (bodies/endless)
        server (scene/serve env (scene/answering {:body body}) {})
        c (wire/send! (scene/client env server) (wire/get "/"))]
    (wire/head c)
    (wire/reset!! c)
    (scene/within closed "a closed stream")))

;; Who answers

(defcase error-handler-answers "4.3"
  "The :error-handler is called with the request and what was thrown, and its response is sent."
  [env]
  (let [seen (promise)
        on-error (fn [request t]
                   (deliver seen [(:uri request) (:type (ex-data t))])
                   {:status 502, :headers {}, :body "mine"})
        answer (scene/ask env (scene/serve env boom {:error-handler on-error}) (wire/get "/it"))]
    (expect= [502 "mine"] [(:status answer) (:body answer)])
    (expect= ["/it" ::boom] (scene/within seen "a call of the :error-handler"))))

(defcase error-handler-may-fail "4.3"
  "An :error-handler that throws is a 500 without details."
  [env]
  (expect-plain-500 (scene/ask env (scene/serve env boom {:error-handler boom}) telling-request)))

(defcase error-handler-may-return-garbage "4.3"
  "An :error-handler that returns garbage is a 500 without details."
  [env]
  (expect-plain-500 (scene/ask env
                               (scene/serve env boom {:error-handler (constantly 7391)})
                               telling-request)))

(defcase failures-return-their-permits "4.4"
  "A failed request gives back its permit, whether the handler failed or the body."
  [env]
  (let [handler (scene/routes {"/throw" boom
                               "/body" (fn [_] {:status 200, :headers {}, :body (some-then-boom)})
                               "/nil" (constantly nil)})
        server (scene/serve env handler {:max-concurrent 1})]
    (doseq [uri ["/throw" "/body" "/nil" "/throw" "/body"]] (scene/ask env server (wire/get uri)))
    (scene/expect-served-soon env server)))

(defcase own-error-pages-tell-nothing "4.3"
  "The server's own error pages show no message, product, version or echoed input."
  [env]
  (let [server (scene/serve env scene/ok {:max-header-bytes 4096, :max-body-bytes 10})]
    (doseq [bad ["GET /echoed HTTP/1.1\r\n\r\n"
                 "GET /echoed HTTP/1.1\r\nHost: echoed\r\nContent-Length: echoed\r\n\r\n"
                 "GET /echoed%zz HTTP/1.1\r\nHost: a\r\nHost: echoed\r\n\r\n"
                 (wire/post "/echoed" "echoed echoed echoed")
                 (wire/get (str "/echoed" (str/join (repeat 8000 "x"))))]]
      (let [answer (scene/ask env server bad)]
        (expect (nil? (scene/shows answer (conj scene/telltale "echoed")))
                "a page that reveals nothing"
                answer)
        (expect= nil (wire/header answer "server"))))))
