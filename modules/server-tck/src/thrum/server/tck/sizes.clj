(ns thrum.server.tck.sizes
  "Chapter: how large a request may be."
  (:require
   [clojure.string :as str]
   [thrum.server.tck.refusal :refer [swallow]]
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-closed expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io IOException InputStream)))

(set! *warn-on-reflection* true)

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
  (let [[c uris] (scene/noting-uris env swallow {:max-body-bytes 100})
        evil (str/join (repeat 10 "GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n"))]
    (expect= 413 (:status (wire/ask! c (wire/post "/" evil))))
    (expect-closed c)
    (expect= [] @uris)))

(defn- expect-refused-head [env text options]
  (let [entered (promise)
        answer (scene/ask env (scene/serve env (entered-by entered scene/ok) options) text)]
    (expect (not (realized? entered)) "that the handler is not called" :called)
    (expect= 431 (:status answer))))

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
  "A request's line beyond :max-header-bytes is a 431, too."
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
    (expect (< (long (send-until-refused c (str "X-Some: " (xs 990) "\r\n") 12000)) 12000)
            "a connection that is closed" :open)))
