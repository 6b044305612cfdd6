(ns thrum.server.impl.failure
  "Answers on the exchange's own thread when its handler, body or fork has thrown: with the error
  handler's response, an error page, or a cut."
  {:no-doc true}
  (:require
   [thrum.server.impl.access-log :as access-log]
   [thrum.server.impl.ending :as ending]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.respond :as respond]
   [thrum.server.impl.response :as response]
   [thrum.server.impl.traffic :as traffic]
   [thrum.spi :as spi])
  (:import
   (java.io IOException)
   (java.lang System$Logger System$Logger$Level)
   (thrum.server.impl.exchange Exchange)))

(set! *warn-on-reflection* true)

(def ^:private ^System$Logger logger (System/getLogger "thrum.server"))

(defn log!
  "Logs what was thrown; its class alone where it cannot be printed."
  [x ^Throwable t]
  (let [{:keys [request-method uri], id :thrum/request-id} (exchange/request x)
        sentence (str "A request failed: " (some-> request-method name)
                      " " (access-log/escaped uri)
                      (when id (str " " (access-log/escaped id))))]
    (try
      (.log logger System$Logger$Level/ERROR sentence t)
      (catch Throwable _
        (try
          (.log logger System$Logger$Level/ERROR (str sentence ": " (.getName (class t))))
          (catch Throwable _))))))

(defn- count! [^Exchange x]
  (traffic/add! (.-traffic x) :failed 1))

(defn- ask-error-handler [x t]
  (if-some [f (exchange/option x :error-handler)]
    (f (exchange/request x) t)
    (do (log! x t) (response/plain 500))))

(defn- cut-off!
  "Cuts the connection, and logs why; not where that is the client's fault. One that has gone is
  counted as such."
  [x t]
  (let [flaw (exchange/flaw x)]
    (if (= :gone flaw)
      (ending/end! x :disconnected)
      (do
        (ending/cut! x)
        (when-not (and flaw (instance? IOException t)) (log! x t))))))

(defn- answer-plainly!
  "Answers for what was thrown while an answer was tried: 500, or a cut where that had begun."
  [x t]
  (case (first (exchange/step! x :fail))
    :answer (do (log! x t) (respond/respond! x (response/plain 500)))
    (:cut :log) (cut-off! x t)
    nil))

(defn- answer-failure! [x t]
  (try
    (respond/respond! x (ask-error-handler x t))
    (catch Throwable other (answer-plainly! x other))))

(defn- answer! [x t]
  (cond
    ;; Its deadline had come before it began.
    (nil? (exchange/scope x)) (ending/end! x :thrum/timeout)
    ;; The client's fault; of an overlong body respond! says so.
    (exchange/flaw x) (respond/respond! x (response/plain 400 "Connection" "close"))
    :else (do (count! x) (answer-failure! x t))))

(defn- cut! [x t]
  (when-not (exchange/flaw x) (count! x))
  (cut-off! x t))

(defn- fail-at-stage! [x t]
  (exchange/failed! x t)
  (case (first (exchange/step! x :fail))
    :answer (answer! x t)
    :cut (cut! x t)
    :log (when-not (spi/cancel-reason (exchange/scope x)) (log! x t))
    nil))

(defn fail!
  "Answers a request that failed, as far as it has not been answered yet. Never throws."
  [x t]
  (try
    (fail-at-stage! x t)
    (catch Throwable _
      (when-not (exchange/ended? x) (ending/cut! x)))))
