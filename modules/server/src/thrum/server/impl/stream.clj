(ns thrum.server.impl.stream
  "Responses that are streams, of events or as websockets: they leave :max-concurrent for
  :max-streams, have no deadline, and end when the server does."
  {:no-doc true}
  (:require
   [thrum.core :as t]
   [thrum.server.impl.admission :as admission]
   [thrum.server.impl.answer :as answer]
   [thrum.server.impl.ending :as ending]
   [thrum.server.impl.events :as events]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.handshake :as handshake]
   [thrum.server.impl.response :as response]
   [thrum.server.impl.sink :as sink]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.impl.websocket :as websocket]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (thrum.server.impl.events Events)
   (thrum.server.impl.exchange Exchange)
   (thrum.server.impl.response Head)))

(set! *warn-on-reflection* true)

(defn- stream-of
  "Returns the events or the websocket that the response is, nil for any other."
  [^Exchange x]
  (.stream x))

;; When the server stops

(defn open?
  "True if the response is a stream that is open."
  [x]
  (and (some? (stream-of x)) (not (exchange/settled? x))))

(defn awaited?
  "True if the end of the server waits for the exchange: for a handler until it ends, for a
  stream's function until its client has been answered."
  [x]
  (or (nil? (stream-of x)) (not (exchange/settled? x))))

(defn- bid-farewell! [x stream]
  (if (instance? Events stream)
    (events/end! stream #(t/cancel! (exchange/scope x) :shutdown))
    (websocket/close! stream 1001 "Going away")))

(defn end!
  "Ends a stream as its client expects it, on a thread of its own: a websocket is closed with 1001,
  events end with the response, and their function is cancelled. Nothing for any other exchange."
  [x]
  (when-some [stream (stream-of x)]
    (exchange/start-thread! x "http-farewell"
      #(try (bid-farewell! x stream) (catch IOException _)))))

(defn- cut-websocket! [x websocket]
  (try
    (websocket/abort! websocket)
    (t/cancel! (exchange/scope x) :shutdown)
    (finally (ending/settled-elsewhere! x))))

(defn cut!
  "Cuts the connection of a stream that has not ended, and cancels its function."
  [x]
  (when-some [stream (stream-of x)]
    (if (instance? Events stream)
      (ending/end! x :shutdown)
      (cut-websocket! x stream))))

;; When a handler asks for one

(defn- opened!
  "Notes the stream. One that opens while the others are ended is ended at once."
  [^Exchange x stream]
  (.setStream x stream)
  (when (= :ending (traffic/state (.-traffic x))) (end! x)))

(defn- lift-deadline! [x]
  (spi/lift-deadline! (exchange/scope x)))

(defn stream-events!
  "Sends events as long as the handler's function does."
  [x ^Head head stream]
  (admission/admit-stream! x)
  (lift-deadline! x)
  (let [answer (answer/answer x head :stream)
        sent (events/stream! stream answer
               {:opened #(opened! x %)
                :elsewhere #(exchange/start-thread! x "http-heartbeat" %)
                :lost #(ending/end! x :disconnected)})]
    (sink/end! answer)
    (exchange/finish! x (.-status head) sent)))

(defn upgrade!
  "Makes the request a websocket, and calls the listener of the response until it is closed."
  [^Exchange x response]
  (let [{:ring.websocket/keys [listener protocol]} response
        inbox (websocket/inbox listener)
        head (response/head (assoc response :status 200))]
    (handshake/check-protocol! (exchange/request x) protocol)
    (admission/admit-stream! x)
    (answer/commit! x :commit)
    (websocket/attend! inbox
                       (fn []
                         (engine/upgrade! (.-wire x) (.-headers head) protocol inbox)
                         (lift-deadline! x))
                       (fn [websocket]
                         (exchange/upgraded! x)
                         (opened! x websocket)))
    (exchange/finish! x 101 0)))
