(ns thrum.server.tck.admission
  "Chapter: how many requests run, and how many wait."
  (:require
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.util.concurrent CountDownLatch)
   (java.util.concurrent.atomic AtomicInteger)))

(set! *warn-on-reflection* true)

(defn- busy
  "Starts a server whose handler waits at /wait until :gate opens; n requests have reached it when
  this returns. Returns {:server :gate :waiting}, the last the promises of their responses."
  [env n options]
  (let [gate (scene/gate env)
        entered (CountDownLatch. n)
        handler (scene/routes {"/wait"
                               (fn [r] (.countDown entered) (deref gate 30000 nil) (scene/ok r))})
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
    (scene/expect-served-soon env server)))

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
    (scene/eventually #(= n (:queued (scene/tool env :status server))))
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
    (scene/expect-served-soon env server)))

(defcase shed-requests-keep-the-framing "4.4"
  "The body of a request that is shed is never taken for the next request."
  [env]
  (let [{:keys [server]} (busy env 1 {:max-concurrent 1})
        c (scene/client env server)]
    (expect-status 503 (wire/ask! c (wire/post "/" "GET /wait HTTP/1.1\r\nHost: evil\r\n\r\n")))
    (expect (#{:silent :eof :reset} (wire/after c wire/quiet-ms)) "no second answer" :data)))

(defcase status-counts "4.4"
  "The server's status counts the requests in flight and those shed."
  {:uses #{:status}}
  [env]
  (let [{:keys [server]} (busy env 2 {:max-concurrent 2})]
    (scene/ask env server (wire/get "/"))
    (expect (scene/eventually #(= [2 1]
                                  ((juxt :in-flight :shed) (scene/tool env :status server))))
            "2 in flight, 1 shed"
            (scene/tool env :status server))))
