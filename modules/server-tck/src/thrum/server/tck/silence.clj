(ns thrum.server.tck.silence
  "Chapter: how long a client may be silent."
  (:require
   [thrum.server.tck.clients :as clients]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io IOException InputStream)))

(set! *warn-on-reflection* true)

(defn- expect-408-or-close
  [c]
  (let [answer (wire/response c)]
    (scene/expect-refusal #{408} answer)
    (when (:status answer) (expect-closed c))))

(defcase slow-headers-are-given-up "4.4"
  "A client that does not finish its headers within :header-timeout-ms gets 408 or the connection is
  closed."
  [env]
  (let [c (scene/client env (scene/serve env scene/ok {:header-timeout-ms 200}))]
    (expect-408-or-close (wire/send! c "GET / HTTP/1.1\r\nHost: loc"))))

(defn expect-end-of-trickle
  "Sends a byte, or other text, now and then, until the connection ends."
  [c & [text]]
  (let [end (+ (System/nanoTime) (* 1000000 (long wire/patience-ms)))
        early? #(neg? (- (System/nanoTime) end))]
    (while (and (= :silent (wire/after c 40)) (early?) (wire/try-send! c (or text "x"))))
    (expect (early?) "an end long before the client's patience" :none)))

(defcase trickled-headers-are-given-up "4.4"
  "A client that sends a byte now and then cannot stretch :header-timeout-ms."
  [env]
  (let [c (scene/client env (scene/serve env scene/ok {:header-timeout-ms 200}))]
    (wire/send! c "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    (expect-end-of-trickle c)))

(defcase trickled-empty-lines-are-given-up "4.4"
  "A client that sends empty lines in place of a request cannot stretch :header-timeout-ms, on a new
  connection or after a request."
  [env]
  (let [server (scene/serve env scene/ok {:header-timeout-ms 200})]
    (doseq [requests [0 1], :let [c (scene/client env server)]]
      (dotimes [_ requests] (expect-status 200 (wire/response (wire/send! c (wire/get "/")))))
      (expect-end-of-trickle c "\r\n"))))

(defcase trickled-rests-are-given-up "4.4"
  "A client that sends a byte now and then of a body that has been answered unread, with a body or
  without, cannot stretch :header-timeout-ms."
  [env]
  (doseq [status [200 204]
          :let [handler (scene/answering {:status status})
                server (scene/serve env handler {:header-timeout-ms 200})]
          [framing begun] {"Content-Length: 1000" "begun"
                           "Transfer-Encoding: chunked" "3e8\r\nbegun"}
          :let [c (scene/client env server)]]
    (wire/send! c (wire/head-of "POST" "/" framing) begun)
    (expect-status status (wire/response c))
    (expect-end-of-trickle c)))

(defcase slow-headers-hold-nobody-up "4.4"
  "Fifty clients that are slow with their headers do not delay another's request."
  [env]
  (let [server (scene/serve env scene/ok {:max-concurrent 2})]
    (dotimes [_ 50] (wire/send! (scene/client env server) "GET / HTTP/1.1\r\nHost: "))
    (expect-status 200 (scene/ask env server (wire/get "/")))))

(defcase idle-connections-are-closed "4.4"
  "A kept connection that is silent for :idle-timeout-ms is closed."
  [env]
  (let [server (scene/serve env scene/ok {:idle-timeout-ms 200})
        ;; On a busy machine a client may be too slow itself.
        c (scene/eventually #(let [c (scene/client env server)] (when (clients/served? c) c)))]
    (expect c "200" :none)
    (expect-closed c)))

(defcase silent-connections-are-closed "4.4"
  "A connection on which nothing was ever sent is closed."
  [env]
  (expect-408-or-close
    (scene/client env
                  (scene/serve env scene/ok {:idle-timeout-ms 200, :header-timeout-ms 200}))))

(defcase silent-bodies-are-given-up "4.4"
  "A body that falls silent for :idle-timeout-ms throws IOException where it is read, leaves no
  interrupt behind, and the connection ends."
  [env]
  (let [thrown (promise)
        read-all (fn [{:keys [^InputStream body] :as r}]
                   (try (.readAllBytes body) (scene/ok r)
                        (catch IOException e
                          (deliver thrown {:interrupted? (Thread/interrupted)})
                          (throw e))))
        c (scene/client env (scene/serve env read-all {:idle-timeout-ms 200}))]
    (wire/send! c (wire/head-of "POST" "/" "Content-Length: 100") "ten bytes.")
    (expect= {:interrupted? false} (scene/within thrown "an IOException from the body"))
    (let [answer (wire/response c)]
      (expect (not= 200 (:status answer)) "no success" answer)
      (expect-closed c))))

(defn- answers-of
  "Returns the bodies of the answers to these requests, sent at the same time."
  [env server requests]
  (->> (mapv #(apply scene/asked env server %) requests)
       (mapv #(:body (:value (scene/within % "an answer"))))))

(defcase handlers-may-be-slower-than-idle "4.4"
  "A handler that takes longer than :idle-timeout-ms is not idle: it may read the request's body
  then, and its response arrives."
  [env]
  (let [handler (fn [{:keys [^InputStream body]}]
                  (Thread/sleep 500)
                  {:status 200, :headers {}, :body (.readAllBytes body)})
        server (scene/serve env handler {:idle-timeout-ms 200, :header-timeout-ms 200})
        requests [[(wire/get "/")] [(wire/head-of "POST" "/" "Content-Length: 3") "abc"]]
        answers (atom nil)]
    ;; On a busy machine a client may be too slow itself.
    (scene/eventually #(= ["" "abc"] (reset! answers (answers-of env server requests))))
    (expect= ["" "abc"] @answers)))
