(ns thrum.server.impl.ending
  "Ends an exchange from another thread than its own: at its deadline, in a drain, for a client that
  has gone or is too slow. The client gets 503, or its connection is cut: thrum.server.impl.stage
  decides."
  {:no-doc true}
  (:require
   [thrum.core :as t]
   [thrum.server.impl.body :as body]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.pace :as pace]
   [thrum.server.impl.response :as response]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine]
   [thrum.spi :as spi])
  (:import
   (thrum.server.impl.exchange Exchange)
   (thrum.server.impl.response Head)))

(set! *warn-on-reflection* true)

(defn settled-elsewhere!
  "Another thread than the exchange's has answered the client, or cut its connection."
  [^Exchange x]
  (exchange/settle! x)
  (traffic/wake! (.-traffic x)))

(defn cut!
  "Cuts the connection."
  [^Exchange x]
  (try
    (exchange/unwatch! x)
    (engine/abort! (.-wire x))
    (finally (settled-elsewhere! x))))

(defn- write-unavailable!
  "Sends 503 and its reason; to a HEAD no more than the reason's length. Returns how many bytes its
  body had."
  [^Exchange x ^Head head]
  (let [reason (body/text-bytes "service unavailable" "utf-8")
        length (str (alength reason))]
    (if (response/bodiless? (:request-method (exchange/request x)) 503)
      (let [head (response/with-header head "Content-Length" length)]
        (engine/send! (.-wire x) 503 (.-headers head) nil)
        0)
      (do
        (engine/send! (.-wire x) 503 (.-headers head) reason)
        (alength reason)))))

(defn- send-unavailable! [^Exchange x]
  (let [head (response/closing (response/head (response/plain 503 "Retry-After" "1")))]
    (try
      (exchange/unwatch! x)
      (exchange/finish! x 503 (write-unavailable! x head))
      (catch Throwable _ (engine/abort! (.-wire x)))
      (finally (settled-elsewhere! x)))))

(defn- answer-instead!
  "Answers 503 from a thread of its own; the exchange's own may never come to it."
  [x]
  (try
    (exchange/start-thread! x "http-answer" #(send-unavailable! x))
    ;; No thread is to be had: the exchange's own waits for this.
    (catch Throwable _ (cut! x))))

(def ^:private counters
  {:thrum/timeout :timed-out, :slow :timed-out, :disconnected :disconnected})

(def ^:private observed
  {:thrum/timeout :timeout, :slow :timeout, :disconnected :disconnect})

(defn- perform! [^Exchange x reason observe! effect]
  (case effect
    :overdue (traffic/add! (.-traffic x) :overdue 1)
    :count (traffic/add! (.-traffic x) (counters reason) 1)
    :answer (answer-instead! x)
    :cut (cut! x)
    :cancel (some-> (exchange/scope x) (t/cancel! reason))
    :observe (observe! x (observed reason))))

(defn- end-with! [x reason observe!]
  (run! #(perform! x reason observe! %) (exchange/step! x reason)))

(defn end!
  "Ends the exchange for this reason, one of thrum.server.impl.stage/ends, if it has not ended: 503
  or a cut, as the table thrum.server.impl.stage/end has it. The handler is interrupted, once.
  Nothing for a websocket."
  [x reason]
  (end-with! x reason exchange/observe!))

(defn begin!
  "The scope of the request has begun; it is cancelled where the exchange has been ended already."
  [^Exchange x scope]
  (.setScope x scope)
  (run! #(perform! x (exchange/stage x) exchange/observe! %) (exchange/step! x :begin)))

(defn- observe-elsewhere! [x event]
  (exchange/start-thread! x "http-observer" #(exchange/observe! x event)))

(defn time-out!
  "Ends an exchange whose deadline has come, on the alarm's thread: where handlers keep every
  carrier, no virtual one would come to cancel them. An observer is called on another: it may
  block."
  [x]
  (end-with! x :thrum/timeout observe-elsewhere!))

(defn end-slow!
  "Ends those of the exchanges whose clients send or take too slowly, as time-out! does: where
  monitors pin, such clients may keep every carrier. Not on the thread that looks, which is there
  for all; and on one thread, since clients say how many of them are slow."
  [exchanges]
  (when-some [slow (seq (filterv #(pace/late? (.-wire ^Exchange %)) exchanges))]
    (spi/arm! (spi/deadline-in 0)
      (fn []
        (doseq [x slow]
          (try
            (end-with! x :slow observe-elsewhere!)
            (catch Throwable t (spi/uncaught! t))))))))
