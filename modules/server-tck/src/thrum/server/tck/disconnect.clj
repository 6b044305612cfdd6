(ns thrum.server.tck.disconnect
  "Chapter: what happens to a request whose client goes away, where that was asked for."
  (:require
   [thrum.server.tck.scene :as scene :refer [defcase expect expect-status expect=]]
   [thrum.server.tck.wire :as wire]))

(set! *warn-on-reflection* true)

(def ^:private asked {:interrupt-on-disconnect? true})

(defcase fin-interrupts "4.6"
  "A client that closes its connection has its request interrupted, where that was asked for."
  {:needs #{:disconnect}, :refuses asked}
  [env]
  (let [{:keys [client ended]} (scene/waiting env asked)]
    (wire/close! client)
    (expect= :interrupted (scene/within ended "an interrupt"))))

(defcase rst-interrupts "4.6"
  "A client that resets its connection has its request interrupted, where that was asked for."
  {:needs #{:disconnect}, :refuses asked}
  [env]
  (let [{:keys [client ended]} (scene/waiting env asked)]
    (wire/reset!! client)
    (expect= :interrupted (scene/within ended "an interrupt"))))

(defcase clients-that-go-behind-a-body-interrupt "4.6"
  "So has a client that goes when the body of its request has been read to its end."
  {:needs #{:disconnect}, :refuses asked}
  [env]
  (doseq [text [(wire/post "/wait" "body") (wire/chunked "/wait" "bo" "dy")]]
    (let [{:keys [client ended]} (scene/waiting env asked text)]
      (wire/close! client)
      (expect= :interrupted (scene/within ended "an interrupt")))))

(defcase watched-requests-are-answered "4.6"
  "A client that stays is answered, though its connection is watched, and so is what it has
  pipelined."
  {:needs #{:disconnect}, :refuses asked}
  [env]
  (let [{:keys [client gate]} (scene/waiting env asked)]
    (wire/send! client (wire/get "/second") (wire/get "/third"))
    (deliver gate :open)
    (dotimes [_ 3] (expect-status 200 (wire/response client)))
    (expect-status 200 (wire/ask! client (wire/get "/fourth")))))

(defcase bodies-behind-watched-requests-arrive "4.6"
  "So is a request whose head came while the one before was watched, and whose body comes later."
  {:needs #{:disconnect}, :refuses asked}
  [env]
  (let [gates (atom ())
        handler (scene/routes
                  {"/wait" (fn [r] (deref (first @gates) 30000 nil) (scene/ok r))
                   "/second" (fn [r] {:status 200, :headers {}, :body (slurp (:body r))})})
        client (scene/client env (scene/serve env handler asked))]
    (dotimes [_ 20]
      (let [gate (first (swap! gates conj (scene/gate env)))]
        (wire/send! client (wire/get "/wait"))
        (wire/send! client (wire/head-of "POST" "/second" "Content-Length: 4"))
        (deliver gate :open)
        (expect-status 200 (wire/response client))
        (wire/send! client "body")
        (expect= "body" (:body (expect-status 200 (wire/response client))))))))

(defcase watched-requests-may-be-echoed "4.6"
  "A watched request whose body is read while the response is sent is answered, and so is the one
  behind it."
  {:needs #{:disconnect}, :refuses asked}
  [env]
  (let [echo (fn [{:keys [uri body]}]
               {:status 200, :headers {}, :body (if (= "/echo" uri) body "second")})
        client (scene/client env (scene/serve env echo asked))]
    (dotimes [_ 3]
      (wire/send! client (wire/chunked "/echo" "bo" "dy"))
      (expect= "body" (:body (wire/response client)))
      (wire/send! client (wire/get "/second"))
      (expect= "second" (:body (wire/response client))))))

(defcase watched-connections-may-be-idle-too-long "4.4"
  "A kept connection that was watched, and is silent for :idle-timeout-ms, is closed."
  {:needs #{:disconnect}, :refuses asked}
  [env]
  (let [{:keys [client gate]} (scene/waiting env (assoc asked :idle-timeout-ms 500))]
    (deliver gate :open)
    (expect-status 200 (wire/response client))
    (scene/expect-closed client)))

(defcase disconnects-are-told "4.6"
  "A disconnect is counted, and reported to the observer."
  {:needs #{:disconnect}, :refuses asked, :uses #{:status}}
  [env]
  (let [told (promise)
        observer {:disconnect #(deliver told (:uri (:request %)))}
        {:keys [server client]} (scene/waiting env (assoc asked :observer observer))]
    (wire/close! client)
    (expect= "/wait" (scene/within told "a call of the observer"))
    (expect (scene/eventually #(= 1 (:disconnected (scene/tool env :status server))))
            "1 disconnected"
            (scene/tool env :status server))))

(defcase disconnects-do-not-interrupt-unasked "4.6"
  "Without :interrupt-on-disconnect? a handler whose client goes away runs on."
  [env]
  (let [{:keys [client gate ended]} (scene/waiting env {})]
    (wire/reset!! client)
    (expect (not (scene/eventually wire/quiet-ms #(realized? ended)))
            "a handler that runs on"
            ended)
    (deliver gate :open)
    (expect= :opened (scene/within ended "the handler's end"))))
