(ns thrum.server.impl.respond
  "Chooses how a handler's response is sent: whole, head only, written out, as an event stream or as
  a websocket. thrum.server.impl.answer and thrum.server.impl.stream send it."
  {:no-doc true}
  (:require
   [thrum.server.impl.answer :as answer]
   [thrum.server.impl.body :as body]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.handshake :as handshake]
   [thrum.server.impl.response :as response]
   [thrum.server.impl.stream :as stream]
   [thrum.server.impl.traffic :as traffic])
  (:import
   (thrum.server.impl.events Stream)
   (thrum.server.impl.exchange Exchange)
   (thrum.server.impl.response Head)))

(set! *warn-on-reflection* true)

(defn draining?
  "True if the server is about to stop."
  [^Exchange x]
  (not (identical? :running (traffic/state (.-traffic x)))))

(defn- last-one?
  "True if the connection serves no other request after this response."
  [x]
  (or (draining? x) (identical? :broken (exchange/flaw x))))

(defn respond-with!
  "Sends a response that is no websocket."
  [x response]
  (let [^Head head (cond-> (response/head response) (last-one? x) response/closing)
        body (:body response)]
    (cond
      (response/bodiless? (:request-method (exchange/request x)) (.-status head))
      (answer/send-head! x head body)

      (instance? Stream body) (stream/stream-events! x head body)

      :else (if-some [bytes (body/whole body (.-charset head))]
              (answer/send-whole! x head bytes)
              (answer/write-body! x head response)))))

(defn- websocket? [response]
  (and (map? response) (:ring.websocket/listener response)))

(defn- respond-websocket! [^Exchange x response]
  (handshake/check-capable! (traffic/options (.-traffic x)))
  (if-some [refusal (handshake/refusal (exchange/request x) (exchange/option x :ws-origins))]
    (respond-with! x refusal)
    (stream/upgrade! x response)))

(defn respond!
  "Sends what the handler returned; 413 where it ignored that the request's body is too long."
  [x response]
  (cond
    (identical? :overlong (exchange/flaw x))
    (respond-with! x (response/plain 413 "Connection" "close"))

    (websocket? response) (respond-websocket! x response)
    :else (respond-with! x response)))
