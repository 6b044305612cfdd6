(ns thrum.server.tck.bounds
  "Chapter: every bound that the options set, and what is answered beyond it."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-cut expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io IOException InputStream)
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.atomic AtomicInteger AtomicLong)))

(set! *warn-on-reflection* true)

(defn busy
  "Starts a server whose handler waits at /wait until :gate opens; n requests have reached it when
  this returns. Returns {:server :gate :waiting}, the last the promises of their responses."
  [env n options]
  (let [gate (scene/gate env)
        entered (CountDownLatch. n)
        handler (scene/routes {"/wait"
                               (fn [r] (.countDown entered) (deref gate 8000 nil) (scene/ok r))})
        server (scene/serve env handler options)
        waiting (vec (repeatedly n #(scene/asked env server (wire/get "/wait"))))]
    (expect (scene/await-latch entered) (str n " requests in the handler") (.getCount entered))
    {:server server, :gate gate, :waiting waiting}))

(defn- status-of [asked]
  (:status (:value (scene/within asked "a response"))))

(defcase beyond-max-concurrent-is-503 "4.4"
  "A request beyond :max-concurrent is answered with 503 and Retry-After, while the others still
  run."
  [env]
  (let [{:keys [server gate]} (busy env 2 {:max-concurrent 2})
        answer (expect-status 503 (scene/ask env server (wire/get "/")))]
    (expect (not (realized? gate)) "an answer at once" :later)
    (expect (re-matches #"\d+" (str (wire/header answer "retry-after")))
            "Retry-After in seconds"
            answer)))

(defcase within-max-concurrent-all-are-served "4.4"
  "As many requests as :max-concurrent run at once, and are answered."
  [env]
  (let [{:keys [gate waiting]} (busy env 3 {:max-concurrent 3})]
    (deliver gate :open)
    (expect= [200 200 200] (mapv status-of waiting))))

(defcase permits-come-back "4.4"
  "When a request has ended, another is admitted."
  [env]
  (let [{:keys [server gate waiting]} (busy env 1 {:max-concurrent 1})]
    (expect-status 503 (scene/ask env server (wire/get "/")))
    (deliver gate :open)
    (run! status-of waiting)
    (expect (scene/eventually 2000 #(= 200 (:status (scene/ask env server (wire/get "/")))))
            "200"
            :none)))

(defcase never-more-than-max-concurrent "4.4"
  "Under a crowd, never more than :max-concurrent handlers run at once."
  [env]
  (let [now (AtomicInteger.)
        most (atom 0)
        handler (fn [r]
                  (swap! most max (.incrementAndGet now))
                  (Thread/sleep 2)
                  (.decrementAndGet now)
                  (scene/ok r))
        server
        (scene/serve env handler {:max-concurrent 3, :max-queued 100, :queue-timeout-ms 5000})]
    (expect= #{200}
             (set (map status-of (vec (repeatedly 40 #(scene/asked env server (wire/get "/")))))))
    (expect (<= @most 3) "at most 3 at once" @most)))

(defn- in-queue
  "Asks once more, and returns the promise when the server says that it waits; skips where it cannot
  say."
  [env server n]
  (let [asked (scene/asked env server (wire/get "/"))]
    (scene/eventually 2000 #(= n (:queued (scene/tool env :status server))))
    asked))

(defcase queued-requests-are-served "4.4"
  "A request that waits within :max-queued is served when its turn comes."
  {:uses #{:status}}
  [env]
  (let [{:keys [server gate]}
        (busy env 1 {:max-concurrent 1, :max-queued 1, :queue-timeout-ms 5000})
        queued (in-queue env server 1)]
    (expect (not (realized? queued)) "a request that waits" queued)
    (deliver gate :open)
    (expect= 200 (status-of queued))))

(defcase beyond-the-queue-is-503 "4.4"
  "A request beyond :max-queued is answered with 503 at once."
  {:uses #{:status}}
  [env]
  (let [{:keys [server]} (busy env 1 {:max-concurrent 1, :max-queued 1, :queue-timeout-ms 8000})
        queued (in-queue env server 1)]
    (expect-status 503 (scene/ask env server (wire/get "/")))
    (expect (not (realized? queued)) "that the one before still waits" queued)))

(defcase queue-time-is-bounded "4.4"
  "A request that has waited for :queue-timeout-ms is answered with 503 and Retry-After."
  [env]
  (let [{:keys [server]} (busy env 1 {:max-concurrent 1, :max-queued 5, :queue-timeout-ms 100})
        answer (expect-status 503 (scene/ask env server (wire/get "/")))]
    (expect (wire/header answer "retry-after") "Retry-After" answer)))

(defcase on-overload-may-be-a-status "4.4"
  "A number as :on-overload is the status of the answer."
  [env]
  (let [{:keys [server]} (busy env 1 {:max-concurrent 1, :on-overload 429})]
    (expect-status 429 (scene/ask env server (wire/get "/")))))

(defcase on-overload-may-be-a-function "4.4"
  "A function as :on-overload gets the request, and what it returns is sent."
  [env]
  (let [options {:max-concurrent 1
                 :on-overload (fn [{:keys [uri]}]
                                {:status 529, :headers {"X-Mine" "1"}, :body uri})}
        {:keys [server]} (busy env 1 options)
        answer (expect-status 529 (scene/ask env server (wire/get "/over")))]
    (expect= ["1" "/over"] [(wire/header answer "x-mine") (:body answer)])))

(defcase on-overload-may-fail "4.4"
  "A function as :on-overload that throws is a 500 or 503, and the server serves on."
  [env]
  (let [{:keys [server gate]}
        (busy env 1 {:max-concurrent 1, :on-overload (fn [_] (throw (ex-info "secret" {})))})
        answer (scene/ask env server (wire/get "/over"))]
    (expect (#{500 503} (:status answer)) "500 or 503" answer)
    (expect= nil (scene/shows answer scene/telltale))
    (deliver gate :open)
    (expect (scene/eventually 2000 #(= 200 (:status (scene/ask env server (wire/get "/")))))
            "200"
            :none)))

(defcase shed-requests-keep-the-framing "4.4"
  "The body of a request that is shed is never taken for the next request."
  [env]
  (let [{:keys [server]} (busy env 1 {:max-concurrent 1})
        c (scene/client env server)]
    (expect-status 503 (wire/ask! c (wire/post "/" "GET /wait HTTP/1.1\r\nHost: evil\r\n\r\n")))
    (expect (#{:silent :eof :reset} (wire/after c 100)) "no second answer" :data)))

(defcase status-counts "4.4"
  "The server's status tells what is in flight and what was shed."
  {:uses #{:status}}
  [env]
  (let [{:keys [server]} (busy env 2 {:max-concurrent 2})]
    (scene/ask env server (wire/get "/"))
    (expect (scene/eventually 2000
                              #(= [2 1]
                                  ((juxt :in-flight :shed) (scene/tool env :status server))))
            "2 in flight, 1 shed"
            (scene/tool env :status server))))

;; Bodies

(defn- swallow
  "A handler that reads the body, and swallows what that throws."
  [{:keys [^InputStream body] :as request}]
  (try (.readAllBytes body) (catch IOException _ nil))
  (scene/ok request))

(defn- entered-by [entered handler]
  (fn [request] (deliver entered true) (handler request)))

(defcase announced-body-too-large-is-413 "4.4"
  "A body whose announced length exceeds :max-body-bytes is a 413, and the handler is not called."
  [env]
  (let [entered (promise)
        server (scene/serve env (entered-by entered swallow) {:max-body-bytes 100})]
    (expect= 413 (:status (scene/ask env server (wire/post "/" (str/join (repeat 101 "x"))))))
    (expect (not (realized? entered)) "that the handler is not called" :called)))

(defcase huge-announcement-is-413-unread "4.4"
  "A 413 does not wait for the body that was announced."
  [env]
  (let [server (scene/serve env swallow {:max-body-bytes 100})]
    (expect= 413
             (:status (scene/ask env
                                 server
                                 (wire/head-of "POST" "/" "Content-Length: 9000000000"))))))

(defn- large-chunks
  [env handler]
  (scene/ask env
             (scene/serve env handler {:max-body-bytes 100})
             (apply wire/chunked "/" (repeat 20 "ten bytes."))))

(defcase chunked-body-too-large-is-413 "4.4"
  "A chunked body beyond :max-body-bytes throws where it is read, and is a 413."
  [env]
  (expect= 413
           (:status (large-chunks env
                                  (fn [{:keys [^InputStream body]}]
                                    (.readAllBytes body)
                                    {:status 200, :headers {}})))))

(defcase swallowed-413-is-413 "4.4"
  "A body too large is a 413 also where the handler swallows the exception."
  [env]
  (expect= 413 (:status (large-chunks env swallow))))

(defcase no-more-than-max-body-bytes-is-read "4.4"
  "A handler never gets more bytes than :max-body-bytes."
  [env]
  (let [read (atom 0)
        count-bytes (fn [{:keys [^InputStream body] :as request}]
                      (try (while (<= 0 (.read body)) (swap! read inc)) (catch IOException _ nil))
                      (scene/ok request))]
    (large-chunks env count-bytes)
    (expect (<= @read 100) "at most 100 bytes" @read)))

(defcase body-of-the-limit-is-served "4.4"
  "A body of exactly :max-body-bytes is served."
  [env]
  (let [server (scene/serve env swallow {:max-body-bytes 100})
        text (str/join (repeat 100 "x"))]
    (expect-status 200 (scene/ask env server (wire/post "/" text)))
    (expect-status 200 (scene/ask env server (wire/chunked "/" text)))))

(defcase unread-large-body-is-not-the-next-request "4.4"
  "After a 413 nothing of the body is taken for a request."
  [env]
  (let [uris (atom [])
        server
        (scene/serve env (fn [r] (swap! uris conj (:uri r)) (swallow r)) {:max-body-bytes 100})
        evil (str/join (repeat 10 "GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        c (scene/client env server)]
    (expect= 413 (:status (wire/ask! c (wire/post "/" evil))))
    (expect-closed c)
    (expect= [] @uris)))

;; Headers

(defn- expect-refused-head [env text options]
  (let [entered (promise)
        answer (scene/ask env (scene/serve env (entered-by entered scene/ok) options) text)]
    (expect (not (realized? entered)) "that the handler is not called" :called)
    (expect (#{431 414} (:status answer)) "431, or 414 for the line" answer)))

(defn- xs [n] (str/join (repeat n "x")))

(defcase large-headers-are-431 "4.4"
  "Headers beyond :max-header-bytes are a 431, and the handler is not called."
  [env]
  (expect-refused-head env (wire/get "/" (str "X-Long: " (xs 5000))) {:max-header-bytes 4096}))

(defcase many-headers-are-431 "4.4"
  "Many small headers beyond :max-header-bytes are a 431."
  [env]
  (expect-refused-head
    env
    (apply wire/get "/" (for [i (range 150)] (str "X-Header-" i ": " (xs 30))))
    {:max-header-bytes 4096}))

(defcase long-request-line-is-refused "4.4"
  "A request's line beyond :max-header-bytes is a 431 or 414."
  [env]
  (expect-refused-head env (wire/get (str "/" (xs 5000))) {:max-header-bytes 4096}))

(defcase headers-within-the-bound-are-served "4.4"
  "Headers of nearly :max-header-bytes are served."
  [env]
  (let [server (scene/serve env scene/ok {:max-header-bytes 8192})]
    (expect-status 200 (scene/ask env server (wire/get "/" (str "X-Long: " (xs 7000)))))))

(defn- send-until-refused
  "Sends text again and again, at most n times; returns how often the server's side took it."
  [c text n]
  (loop [i 0]
    (if (and (< i n) (wire/try-send! c text)) (recur (inc i)) i)))

(defcase endless-headers-are-not-read "4.4"
  "Headers without an end are not read for ever: the connection is closed."
  [env]
  (let [c (scene/client env (scene/serve env scene/ok {:max-header-bytes 4096}))]
    (wire/send! c "GET / HTTP/1.1\r\nHost: localhost\r\n")
    (expect (< (long (send-until-refused c (str "X-Some: " (xs 990) "\r\n") 40000)) 40000)
            "a connection that is closed" :open)))

;; Time

(defn- expect-408-or-close
  [c]
  (let [answer (wire/response c)]
    (expect (or (= 408 (:status answer)) (#{:eof :reset} (:ended answer)))
            "408 or a closed connection"
            answer)
    (when (:status answer) (expect-closed c))))

(defcase slow-headers-are-given-up "4.4"
  "A client that does not finish its headers within :header-timeout-ms gets 408 or the connection is
  closed."
  [env]
  (let [c (scene/client env (scene/serve env scene/ok {:header-timeout-ms 200}))]
    (expect-408-or-close (wire/send! c "GET / HTTP/1.1\r\nHost: loc"))))

(defcase trickled-headers-are-given-up "4.4"
  "A client that sends a byte now and then cannot stretch :header-timeout-ms."
  [env]
  (let [c (scene/client env (scene/serve env scene/ok {:header-timeout-ms 200}))
        start (System/nanoTime)]
    (wire/send! c "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    (while (and (= :silent (wire/after c 40))
                (< (- (System/nanoTime) start) 4000000000)
                (wire/try-send! c "x")))
    (expect (< (- (System/nanoTime) start) 3500000000) "an end long before 3500 ms" :none)))

(defcase slow-headers-hold-nobody-up "4.4"
  "Fifty clients that are slow with their headers do not delay another's request."
  [env]
  (let [server (scene/serve env scene/ok {:max-concurrent 2})]
    (dotimes [_ 50] (wire/send! (scene/client env server) "GET / HTTP/1.1\r\nHost: "))
    (expect-status 200 (scene/ask env server (wire/get "/")))))

(defn- served? [c]
  (= 200 (:status (try (wire/ask! c (wire/get "/")) (catch IOException _ nil)))))

(defcase idle-connections-are-closed "4.4"
  "A kept connection that is silent for :idle-timeout-ms is closed."
  [env]
  (let [server (scene/serve env scene/ok {:idle-timeout-ms 200})
        ;; On a busy machine a client may be too slow itself.
        c (scene/eventually 4000 #(let [c (scene/client env server)] (when (served? c) c)))]
    (expect c "200" :none)
    (expect-closed c)))

(defcase silent-connections-are-closed "4.4"
  "A connection on which nothing was ever sent is closed."
  [env]
  (expect-408-or-close
    (scene/client env
                  (scene/serve env scene/ok {:idle-timeout-ms 200, :header-timeout-ms 200}))))

(defcase silent-bodies-are-given-up "4.4"
  "A body that falls silent for :idle-timeout-ms throws IOException where it is read, and the
  connection ends."
  [env]
  (let [thrown (promise)
        read-all (fn [{:keys [^InputStream body] :as r}]
                   (try (.readAllBytes body) (scene/ok r)
                        (catch IOException e (deliver thrown e) (throw e))))
        c (scene/client env (scene/serve env read-all {:idle-timeout-ms 200}))]
    (wire/send! c (wire/head-of "POST" "/" "Content-Length: 100") "ten bytes.")
    (scene/within thrown "an IOException from the body")
    (let [answer (wire/response c)]
      (expect (not= 200 (:status answer)) "no success" answer)
      (expect-closed c))))

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
    (let [{:keys [status], :as answer} (wire/response c)]
      (expect (or (= 408 status) (#{:eof :reset} (:ended answer))) "408 or a cut" answer))))

(defcase observers-hold-no-cut-up "4.4"
  "An observer that blocks when it is told of a slow client does not keep the next slow client from
  being cut."
  [env]
  (let [gate (scene/gate env)
        slow {:min-bytes-per-second 1000
              :rate-grace-ms 100
              :observer {:timeout (fn [_] (deref gate 8000 nil))}}
        server (scene/serve env reading-all slow)]
    (dotimes [_ 2]
      (let [c (wire/send! (scene/client env server)
                          (wire/head-of "POST" "/" "Content-Length: 10000"))
            {:keys [status], :as answer} (wire/response c)]
        (expect (or (= 408 status) (#{:eof :reset} (:ended answer))) "408 or a cut" answer)))))

(defcase steady-bodies-are-served "4.4"
  "A body that comes quickly enough may take longer than :rate-grace-ms."
  [env]
  (let [c (scene/client
            env
            (scene/serve env reading-all {:min-bytes-per-second 100, :rate-grace-ms 2000}))]
    (wire/send! c (wire/head-of "POST" "/" "Content-Length: 12000"))
    (trickle c 200 60)
    (expect-status 200 (wire/response c))))

(defn- endless
  "Returns a stream without end, and a promise of its being closed."
  []
  (let [closed (promise)]
    [(proxy [InputStream] []
       (read
         ([] 120)
         ([b] (alength ^bytes b))
         ([_ _ n] n))
       (close [] (deliver closed true)))
     closed]))

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
  (let [[body closed] (endless)
        c (wire/send! (scene/client env
                                    (scene/serve env (scene/answering {:body body}) quick))
                      (wire/get "/"))]
    (scene/within closed "the end of the body")
    (expect-cut (wire/response c))))

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

(defcase handlers-may-be-slower-than-idle "4.4"
  "A handler that takes longer than :idle-timeout-ms is not idle: its response arrives."
  [env]
  (let [server (scene/serve env
                            (fn [r] (Thread/sleep 500) (scene/ok r))
                            {:idle-timeout-ms 200, :header-timeout-ms 200})]
    (expect-status 200 (scene/ask env server (wire/get "/")))))

(defcase connections-are-bounded "4.4"
  "Beyond :max-connections no further connection is served; when one closes, there is room again."
  [env]
  (let [server (scene/serve env scene/ok {:max-connections 3})
        served (vec (repeatedly 3 #(scene/client env server)))]
    (expect (every? served? served) "three served connections" :fewer)
    (let [fourth (scene/client env server)]
      (wire/try-send! fourth (wire/get "/"))
      (expect (not= :data (wire/after fourth 300)) "that the fourth is not served" :served)
      (run! wire/close! (conj served fourth))
      (expect (scene/eventually 3000 #(served? (scene/client env server)))
              "room for another"
              :none))))

(defn hit-often!
  "Has clients come to the port from one port of theirs and reset their connections, with each text
  10 times."
  [port texts]
  (reduce (fn [from text] (wire/hit! port from text))
          0
          (for [text texts, _ (range 10)] text)))

(defn all-served?
  "Whether so many new clients, (connect) each, are served while all of them are connected; closes
  them."
  [n connect]
  (let [clients (atom [])]
    (try
      (every? (fn [_] (let [c (connect)] (swap! clients conj c) (served? c))) (range n))
      (catch IOException _ false)
      (finally (run! wire/close! @clients)))))

(defcase lost-connections-give-their-places-back "4.4"
  "Connections that are reset at once, before a head, within it, within a body, or behind what is no
  HTTP, give their places of :max-connections back."
  [env]
  (let [server (scene/serve env scene/ok {:max-connections 3})
        port (scene/port-of env server)]
    (hit-often! port
                ["" "GET" "GET / HTTP/1.1\r\nHost: local"
                 (wire/head-of "POST" "/" "Content-Length: 9") "\u0016\u0003\u0001" (wire/get "/")])
    (expect (scene/eventually 4000 (fn [] (all-served? 3 #(wire/connect port))))
            "room for three"
            :less)))
