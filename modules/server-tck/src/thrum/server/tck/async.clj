(ns thrum.server.tck.async
  "Chapter: handlers of three arguments."
  (:require
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire])
  (:import
   (java.io InputStream)))

(set! *warn-on-reflection* true)

(defn- serve [env handler & [options]]
  (scene/serve env handler (merge {:async? true} options)))

(defn- answer-of [env handler]
  (scene/ask env (serve env handler) (wire/get "/")))

(defn- with-body [body]
  {:status 200, :headers {}, :body body})

(defcase async-responds-at-once "4.2"
  "An async handler may respond before it returns."
  [env]
  (expect= "now"
           (:body (expect-status
                    200
                    (answer-of env (fn [_ respond _] (respond (with-body "now"))))))))

(defcase async-responds-later "4.2"
  "An async handler may respond on another thread, after it has returned."
  [env]
  (let [handler (fn [_ respond _] (scene/start #(respond (with-body "later"))))]
    (expect= "later" (:body (expect-status 200 (answer-of env handler))))))

(defcase async-first-respond-wins "4.2"
  "A second respond is ignored, and does not throw."
  [env]
  (let [thrown (promise)
        handler (fn [_ respond _]
                  (respond (with-body "first"))
                  (deliver thrown (try (respond (with-body "second")) nil (catch Throwable t t))))
        c (scene/client env (serve env handler))]
    (expect= "first" (:body (wire/ask! c (wire/get "/"))))
    (expect= nil (scene/within thrown "a second respond"))
    (expect (not= :data (wire/after c wire/quiet-ms)) "one response" :data)))

(defn- secret [] (ex-info "secret-7391" {}))

(defn- expect-500 [env handler]
  (let [answer (expect-status 500 (answer-of env handler))]
    (expect= nil (scene/shows answer scene/telltale))))

(defcase async-raise-is-500 "4.3"
  "What is raised is answered with 500."
  [env]
  (expect-500 env (fn [_ _ raise] (raise (secret)))))

(defcase async-raise-later-is-500 "4.3"
  "What is raised on another thread is answered with 500."
  [env]
  (expect-500 env (fn [_ _ raise] (scene/start #(raise (secret))))))

(defcase async-throw-is-500 "4.3"
  "An async handler that throws is answered with 500."
  [env]
  (expect-500 env (fn [_ _ _] (throw (secret)))))

(defcase async-nil-is-500 "4.3"
  "An async handler that responds with nil is answered with 500."
  [env]
  (expect-500 env (fn [_ respond _] (respond nil))))

(defcase async-respond-does-not-throw "4.3"
  "respond throws at no argument: garbage is a 500."
  [env]
  (let [thrown (promise)
        handler (fn [_ respond _]
                  (deliver thrown
                           (try
                             (respond {:status "200", :headers 7, :body {}})
                             nil
                             (catch Throwable t t))))]
    (expect-500 env handler)
    (expect= nil (scene/within thrown "a respond"))))

(defcase async-throw-after-respond-is-ignored "4.3"
  "What an async handler throws after it has responded changes nothing."
  [env]
  (let [handler (fn [_ respond _] (respond (with-body "fine")) (throw (secret)))
        c (scene/client env (serve env handler))]
    (dotimes [_ 2] (expect= "fine" (:body (expect-status 200 (wire/ask! c (wire/get "/"))))))))

(defcase async-raise-after-respond-is-ignored "4.3"
  "What is raised after a respond changes nothing."
  [env]
  (let [handler (fn [_ respond raise] (respond (with-body "fine")) (raise (secret)))]
    (expect= "fine" (:body (expect-status 200 (answer-of env handler))))))

(defcase async-respond-after-raise-is-ignored "4.3"
  "A respond after a raise changes nothing."
  [env]
  (expect-500 env (fn [_ respond raise] (raise (secret)) (respond (with-body "fine")))))

(defcase async-body-may-come-slowly "4.2"
  "The body of an async response may be made after the handler has returned."
  [env]
  (let [gate (scene/gate env)
        body (lazy-seq (cons "some" (lazy-seq (deref gate 30000 nil) ["more"])))
        returned (promise)
        handler (fn [_ respond _] (scene/start #(respond (with-body body))) (deliver returned true))
        c (wire/send! (scene/client env (serve env handler)) (wire/get "/"))]
    (scene/within returned "the handler's return")
    (expect= 200 (:status (wire/head c)))
    (expect= "some" (wire/chunk c))
    (deliver gate :open)
    (expect= ["more" :last] [(wire/chunk c) (wire/chunk c)])))

(defcase async-body-may-be-read-later "4.2"
  "The body of a request may be read after an async handler has returned."
  [env]
  (let [returned (promise)
        read-later (fn [^InputStream body respond]
                     (scene/within returned "the handler's return")
                     (respond (with-body (.readAllBytes body))))
        handler (fn [{:keys [body]} respond _]
                  (scene/start #(read-later body respond))
                  (deliver returned true))
        answer (scene/ask env (serve env handler) (wire/post "/" "the body"))]
    (expect= "the body" (:body (expect-status 200 answer)))))

(defcase async-requests-count-until-responded "4.4"
  "An async request counts against :max-concurrent until it is responded to."
  [env]
  (let [responds (promise)
        handler (fn [{:keys [uri]} respond _]
                  (if (= "/wait" uri) (deliver responds respond) (respond (with-body "ok"))))
        server (serve env handler {:max-concurrent 1})
        waiting (scene/asked env server (wire/get "/wait"))
        respond (scene/within responds "a call of the handler")]
    (expect-status 503 (scene/ask env server (wire/get "/")))
    (respond (with-body "ok"))
    (expect-status 200 (:value (scene/within waiting "a response")))
    (scene/expect-served-soon env server)))

(defcase async-connection-is-kept "4.2"
  "The connection of an async request serves the next one, in order."
  [env]
  (let [handler (fn [{:keys [uri]} respond _] (scene/start #(respond (with-body uri))))
        c (wire/send! (scene/client env (serve env handler))
                      (wire/get "/1")
                      (wire/get "/2")
                      (wire/get "/3"))]
    (expect= ["/1" "/2" "/3"] (mapv :body (repeatedly 3 #(wire/response c))))))
