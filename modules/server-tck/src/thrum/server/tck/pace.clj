(ns thrum.server.tck.pace
  "Chapter: how slowly a client may send a body or take a response."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.bodies :as bodies]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-cut expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io InputStream)
   (java.util.concurrent.atomic AtomicLong)))

(set! *warn-on-reflection* true)

(defn- trickle
  "Sends bytes, n every 40 ms, as long as the client's connection takes them."
  [c n times]
  (loop [left times]
    (when (and (pos? (long left)) (wire/try-send! c (apply str (repeat n "x"))))
      (Thread/sleep 40)
      (recur (dec (long left))))))

(defn- reading-all [{:keys [^InputStream body] :as r}]
  (.readAllBytes body)
  (scene/ok r))

(defcase slow-bodies-are-cut "4.4"
  "A body that comes more slowly than :min-bytes-per-second ends its request, however steadily it
  comes."
  [env]
  (let [c (scene/client
            env
            (scene/serve env reading-all {:min-bytes-per-second 1000, :rate-grace-ms 300}))]
    (wire/send! c (wire/head-of "POST" "/" "Content-Length: 10000"))
    (scene/start #(trickle c 1 200))
    (scene/expect-refusal #{408} (wire/response c))))

(defcase observers-hold-no-cut-up "4.4"
  "An observer that blocks when it is called for a slow client does not keep the next slow client
  from being cut."
  [env]
  (let [gate (scene/gate env)
        slow {:min-bytes-per-second 1000
              :rate-grace-ms 100
              :observer {:timeout (fn [_] (deref gate 30000 nil))}}
        server (scene/serve env reading-all slow)]
    (dotimes [_ 2]
      (scene/expect-refusal
        #{408}
        (scene/ask env server (wire/head-of "POST" "/" "Content-Length: 10000"))))))

(defcase steady-bodies-are-served "4.4"
  "A body that comes quickly enough may take longer than :rate-grace-ms."
  [env]
  (let [c (scene/client
            env
            (scene/serve env reading-all {:min-bytes-per-second 100, :rate-grace-ms 2000}))]
    (wire/send! c (wire/head-of "POST" "/" "Content-Length: 12000"))
    (trickle c 200 60)
    (expect-status 200 (wire/response c))))

(defn- counted
  "Returns a stream of so many bytes, how many of them have been read, and a promise of its being
  closed."
  [most]
  (let [closed (promise), taken (AtomicLong.)
        take! (fn [n] (if (< (.get taken) (long most)) (do (.addAndGet taken (long n)) n) -1))]
    [(proxy [InputStream] []
       (read
         ([] (if (neg? (long (take! 1))) -1 120))
         ([b] (take! (alength ^bytes b)))
         ([_ _ n] (take! n)))
       (close [] (deliver closed true)))
     taken
     closed]))

(defcase lost-clients-of-http-1-0-end-long-bodies "4.4"
  "A body without a length is not read on for long where its client, of HTTP/1.0, has gone: no more
  than 16 MiB of it are ever held."
  {:needs #{:http-1.0}}
  [env]
  (let [[body ^AtomicLong taken closed] (counted 25165824)
        c (wire/send! (scene/client env (scene/serve env (scene/answering {:body body}) {}))
                      "GET / HTTP/1.0\r\n\r\n")]
    (wire/reset!! c)
    (scene/within closed "the end of the body")
    (expect (< (.get taken) 16777216) "less than 16 MiB" (.get taken))))

(def ^:private quick
  "More than any client takes beyond what the sockets' buffers hold."
  {:min-bytes-per-second 1000000000, :rate-grace-ms 300})

(defcase slow-takers-are-cut "4.4"
  "A response that is taken more slowly than :min-bytes-per-second is cut."
  [env]
  (let [[body closed] (bodies/endless)
        c (wire/send! (scene/client env
                                    (scene/serve env (scene/answering {:body body}) quick))
                      (wire/get "/"))]
    (scene/within closed "the end of the body")
    (expect-cut (wire/response c))))

(defcase silent-takers-of-http-1-0-are-reset "4.3"
  "A body without a length whose client, of HTTP/1.0, takes nothing for :idle-timeout-ms ends in a
  reset: the end of the connection would look like the end of the body."
  {:needs #{:http-1.0}}
  [env]
  (let [[body closed] (bodies/endless)
        server (scene/serve env (scene/answering {:body body}) {:idle-timeout-ms 200})
        c (wire/send! (scene/client env server) "GET / HTTP/1.0\r\n\r\n")]
    (scene/within closed "the end of the body")
    (let [{:keys [status], :as answer} (wire/response c)]
      ;; An engine that holds such a body has not begun to send it.
      (when-not (= 500 status) (expect-cut answer)))))

(defcase slow-takers-of-bytes-are-cut "4.4"
  "A response whose body is at hand ends where it is taken more slowly than :min-bytes-per-second."
  [env]
  (let [end (promise)
        options (assoc quick :observer {:end #(deliver end %)})]
    (wire/send!
      (scene/client env (scene/serve env (scene/answering {:body (byte-array 64000000)}) options))
      (wire/get "/"))
    (scene/within end "the end of the request")))

(defcase steady-takers-are-served "4.4"
  "A response that is taken quickly enough arrives whole, with its Content-Length."
  [env]
  (let [body (byte-array 300000 (byte 120))
        server (scene/serve env
                            (scene/answering {:body body})
                            {:min-bytes-per-second 1000, :rate-grace-ms 4000})
        c (scene/client env server)]
    (dotimes [_ 2]
      (let [answer (expect-status 200 (wire/ask! c (wire/get "/")))]
        (expect= ["300000" 300000]
                 [(wire/header answer "content-length") (count (:body answer))])))))

(defcase silent-handlers-are-not-slow-clients "4.4"
  "Who is not waited for may be silent: a handler that takes its time, and a stream without events."
  {:uses #{:sse :send!}}
  [env]
  (let [gate (scene/gate env)
        options {:min-bytes-per-second 1000, :rate-grace-ms 1500}
        stream (fn [_]
                 (scene/tool
                   env
                   :sse
                   {}
                   (fn [events] (deref gate 2500 nil) (scene/tool env :send! events "last"))))
        server (scene/serve env
                            (scene/routes {"/" (fn [r] (deref gate 2500 nil) (scene/ok r))
                                           "/stream" stream})
                            options)]
    (expect= "ok" (:body (expect-status 200 (scene/ask env server (wire/get "/")))))
    (expect (str/includes? (:body (expect-status 200 (scene/ask env server (wire/get "/stream"))))
                           "last")
            "an event"
            :none)))
