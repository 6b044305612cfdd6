(ns thrum.server.tck.pipelining
  "Chapter: several requests on one connection, and requests in several pieces."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.refusal :refer [hidden read-all]]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.util.concurrent.atomic AtomicInteger)))

(set! *warn-on-reflection* true)

(defcase pipelined-requests-are-answered-in-order "4.2"
  "Pipelined requests are answered in their order."
  [env]
  (let [handler (fn [{:keys [uri]}]
                  (when (= "/1" uri) (Thread/sleep 30))
                  {:status 200, :headers {}, :body uri})
        c (scene/client env (scene/serve env handler {}))]
    (wire/send! c (wire/get "/1") (wire/get "/2") (wire/post "/3" "body") (wire/get "/4"))
    (expect= ["/1" "/2" "/3" "/4"] (mapv :body (repeatedly 4 #(wire/response c))))))

(defcase pipelined-requests-run-one-at-a-time "4.2"
  "Of pipelined requests the next one starts when the one before has been answered."
  [env]
  (let [now (AtomicInteger.)
        most (atom 0)
        handler (fn [r]
                  (swap! most max (.incrementAndGet now))
                  (Thread/sleep 10)
                  (.decrementAndGet now)
                  (scene/ok r))
        c (scene/client env (scene/serve env handler {}))]
    (apply wire/send! c (repeat 5 (wire/get "/")))
    (dotimes [_ 5] (expect-status 200 (wire/response c)))
    (expect= 1 @most)))

(defcase unread-body-is-not-a-request "4.8"
  "A body that the handler does not read is never taken for the next request."
  [env]
  (let [[c uris] (scene/noting-uris env scene/ok)]
    (expect-status 200 (wire/ask! c (wire/post "/" hidden)))
    (wire/try-send! c (wire/get "/second"))
    (let [answer (wire/response c)]
      (expect (or (:ended answer) (= 200 (:status answer)))
              "an answer or a closed connection"
              answer))
    (expect (not-any? #{"/hidden"} @uris) "no hidden request" @uris)))

(defcase split-requests-are-put-together "4.8"
  "A request that comes in many small pieces is one request."
  [env]
  (let [c (scene/client env (scene/serve env read-all {}))]
    (doseq [piece (partition-all 7 (wire/post "/" "abc"))]
      (wire/send! c (str/join piece))
      ;; So that the pieces do not arrive as one.
      (wire/after c 3))
    (expect= "abc" (:body (expect-status 200 (wire/response c))))))

(defcase requests-byte-by-byte-are-requests "4.8"
  "Two requests, the first in chunks, whose bytes come one by one are two requests, read whole and
  answered in order."
  [env]
  (let [server
        (scene/serve env
                     (fn [r] (update (read-all r) :body #(str (:uri r) (wire/text-of %))))
                     {:header-timeout-ms 60000}) ; on a slow machine the bytes take their time
        first-one (wire/chunked "/1" "ab" "c")
        bytewise (fn [c text]
                   (run! #(do
                            (wire/send! c (str %))
                            (wire/after c 1))
                         text))
        c (scene/client env server)]
    (bytewise c first-one)
    (let [answer (expect-status 200 (wire/response c))]
      (expect= "/1abc" (:body answer))
      ;; Some close behind chunks, and say so.
      (when-not (= "close" (wire/header answer "connection"))
        (bytewise c (wire/post "/2" "xyz"))
        (expect= "/2xyz" (:body (expect-status 200 (wire/response c))))))))

(defcase empty-lines-before-a-request-are-skipped "4.8"
  "An empty line in front of a request is skipped, also where its CR and LF come apart."
  [env]
  (let [server (scene/serve env scene/ok {})]
    (doseq [pieces [["\r\n"] ["\r" "\n"]], :let [c (scene/client env server)]]
      (doseq [piece (butlast pieces)]
        (wire/send! c piece)
        ;; So that the pieces do not arrive as one.
        (expect= :silent (wire/after c 20)))
      (wire/send! c (last pieces) (wire/get "/"))
      (expect-status 200 (wire/response c)))))

(defcase nothing-behind-a-close-is-served "4.8"
  "What is sent behind a request with Connection: close, together with it or later, never runs."
  [env]
  (let [[c uris] (scene/noting-uris env scene/ok)]
    (expect-status 200 (wire/ask! c (wire/get "/first" "Connection: close") (wire/get "/second")))
    (wire/try-send! c (wire/get "/third"))
    (expect-closed c)
    (expect= ["/first"] @uris)))

(defcase half-closed-clients-are-answered "4.8"
  "A client that has sent its FIN behind the request is answered."
  [env]
  (let [gate (scene/gate env)
        server (scene/serve env (fn [r] (deref gate 30000 nil) (scene/ok r)) {})
        c (wire/send! (scene/client env server) (wire/get "/"))]
    (wire/finish! c)
    (expect= :silent (wire/after c wire/quiet-ms))
    (deliver gate :open)
    (expect= "ok" (:body (expect-status 200 (wire/response c))))))

;; Aborts

(defcase nothing-follows-a-cut "4.3"
  "Behind a response that is cut nothing is sent and nothing is handled, also where requests were
  pipelined."
  [env]
  (let [last-one (promise)
        body #(lazy-seq (cons "some" (lazy-seq (throw (ex-info "cut" {})))))
        cut (fn [_] {:status 200, :headers {}, :body (body)})
        handled (fn [r] (deliver last-one :handled) (scene/ok r))
        c (scene/client env (scene/serve env (scene/routes {"/cut" cut, "/last" handled}) {}))]
    (wire/send! c (wire/get "/first") (wire/get "/cut") (wire/get "/last"))
    (expect-status 200 (wire/response c))
    (scene/expect-cut (wire/response c))
    (expect-closed c)
    (expect= :not-handled (deref last-one wire/quiet-ms :not-handled))))

(defcase nothing-follows-a-refusal "4.8"
  "Of a pipeline with a bad request what stands before it is answered, what stands behind it never
  reaches a handler."
  [env]
  (let [[c uris] (scene/noting-uris env scene/ok)]
    (wire/send! c
                (wire/get "/first")
                (wire/head-of "POST" "/bad" "Content-Length: 3" "Content-Length: 0")
                (wire/get "/last"))
    (expect-status 200 (wire/response c))
    (expect= 400 (:status (wire/response c)))
    (expect-closed c)
    (expect= ["/first"] @uris)))

(defcase reset-pipelines-give-their-permits-back "4.4"
  "A client that resets its connection while its pipelined requests run or wait leaves no permit
  behind."
  [env]
  (let [pipeline (str (wire/get "/wait") (wire/get "/second") (wire/post "/third" "abc"))
        {:keys [server client gate]} (scene/waiting env {:max-concurrent 1} pipeline)]
    (wire/reset!! client)
    (deliver gate :open)
    (scene/expect-served-soon env server)))
