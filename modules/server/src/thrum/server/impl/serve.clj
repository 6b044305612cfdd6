(ns thrum.server.impl.serve
  "Serves an exchange from its first line to its last byte: it is read, admitted, handled within
  its deadline, and left."
  {:no-doc true}
  (:require
   [thrum.server.impl.admission :as admission]
   [thrum.server.impl.async-handler :as async-handler]
   [thrum.server.impl.ending :as ending]
   [thrum.server.impl.exchange :as exchange]
   [thrum.server.impl.failure :as failure]
   [thrum.server.impl.health :as health]
   [thrum.server.impl.input :as input]
   [thrum.server.impl.request :as request]
   [thrum.server.impl.respond :as respond]
   [thrum.server.impl.response :as response]
   [thrum.server.impl.traffic :as traffic]
   [thrum.server.spi :as engine]
   [thrum.server.spi.exchanges :as exchanges]
   [thrum.spi :as spi])
  (:import
   (clojure.lang ExceptionInfo)
   (java.io IOException InputStream)
   (thrum.server.impl.exchange Exchange)))

(set! *warn-on-reflection* true)

;; The handler

(defn- watch-client! [x]
  (exchange/watch! x #(exchange/start-thread! x "http-gone" (fn [] (ending/end! x :disconnected)))))

(defn- admit! [^Exchange x]
  (if (.-observers x)
    (let [start (System/nanoTime)]
      (admission/admit-request! x)
      (.setQueued x (- (System/nanoTime) start)))
    (admission/admit-request! x)))

(defn- handle [^Exchange x handler]
  (admit! x)
  (let [settings (exchange/settings x)]
    (when (.-interrupt? settings) (watch-client! x))
    (exchange/proceed! x :handle)
    (if (.-async? settings)
      (async-handler/call handler (exchange/request x))
      (handler (exchange/request x)))))

(defn- overload [^Exchange x]
  (exchange/proceed! x :handle)
  (let [answer (exchange/option x :on-overload)]
    (traffic/add! (.-traffic x) :shed 1)
    (exchange/observe! x :shed)
    (if (int? answer)
      (response/plain answer "Retry-After" "1")
      (answer (exchange/request x)))))

(defn- converse!
  "Runs the handler and sends its answer. A full server is not a failure: it is answered here."
  [x handler]
  (try
    (respond/respond! x (handle x handler))
    (catch ExceptionInfo e
      (if (admission/overload? e)
        (respond/respond! x (overload x))
        (throw e)))))

;; The deadline

(defn- serve-in!
  "Runs observer and handler, and answers for what they throw: all of it within the scope's
  deadline."
  [x handler scope]
  (try
    (ending/begin! x scope)
    (exchange/observe! x :start)
    (converse! x handler)
    (catch Throwable t (failure/fail! x t))))

(defn- run-handler! [^Exchange x handler]
  (try
    (spi/call-in-scope
      {:name "request", :deadline (.-deadline x), :on-deadline #(ending/time-out! x)
       :unregistered? true}
      #(serve-in! x handler %))
    ;; Its deadline had come before it began, or what it forked has failed.
    (catch Throwable t (failure/fail! x t))))

;; Without a handler

(defn- answer-here!
  "Answers outside the request's scope, where no handler is asked."
  [x response]
  (try
    (respond/respond-with! x response)
    (catch Throwable _
      (when-not (exchange/ended? x) (ending/cut! x)))))

(defn- refuse! [x status & {:as headers}]
  (answer-here! x (response/plain status (merge {"Connection" "close"} headers))))

(defn- too-long? [x]
  (when-some [most (.-max-body-bytes (exchange/settings x))]
    (when-some [length (:content-length (exchange/request x))]
      (< (long most) (long length)))))

(defn- probed
  "Returns the answer to a probe, nil for any other request."
  [x]
  (when-some [paths (.-health (exchange/settings x))]
    (health/answer paths (exchange/request x) (not (respond/draining? x)))))

(defn- closed? [^Exchange x]
  (case (traffic/state (.-traffic x))
    (:closing :ending :stopped) true
    false))

(defn- accept!
  "Runs the handler, unless the request is a probe, or is refused before."
  [x handler]
  (let [answer (probed x)]
    (cond
      answer (answer-here! x answer)
      (closed? x) (refuse! x 503 "Retry-After" "1")
      (too-long? x) (refuse! x 413)
      :else (run-handler! x handler))))

;; The request

(defn- reader [^Exchange x]
  (reify input/Reader
    (read-begins [_]
      (when-not (exchange/allowed? x :read)
        (throw (IOException. "The request is over"))))
    (read-ends [_] (exchange/step! x :read-ended))
    (overlong [_] (.setFlaw x :overlong))
    (broken [_] (when-not (.flaw x) (.setFlaw x :broken)))))

(defn- body-of ^InputStream [^Exchange x]
  (if-some [in (engine/body (.-wire x))]
    (input/guarded in (reader x) (.-max-body-bytes (exchange/settings x)))
    (InputStream/nullInputStream)))

(defn- read-request
  "Returns the request as its client made it."
  [^Exchange x]
  (let [settings (exchange/settings x), as-asked (or (.-as-asked settings) identity)]
    (as-asked (request/->request (.-wire x) (body-of x) settings))))

(defn- receive!
  "Reads the request. Returns whether it is one that can be handled; any other has been answered."
  [^Exchange x]
  (try
    (exchange/received! x (read-request x))
    true
    (catch ExceptionInfo e
      (exchange/received! x (request/unchecked (.-wire x)))
      (refuse! x (:status (ex-data e) 400))
      false)
    (catch Throwable t
      (exchange/received! x (request/unchecked (.-wire x)))
      (exchange/failed! x t)
      (failure/log! x t)
      (refuse! x 500)
      false)))

;; From the first line to the last byte

(defn- leave! [^Exchange x]
  (let [traffic (.-traffic x)]
    ;; First, while the stage says how it has ended.
    (some-> (.-observers x) (exchanges/ended! x))
    (when-not (exchange/allowed? x :leave) (traffic/add! traffic :overdue -1))
    (admission/release! x)
    (exchange/settle! x)
    (traffic/add! traffic :served 1)
    (exchange/observe! x :end)
    (traffic/leave! traffic x)))

(defn serve!
  "Serves one request on the calling thread, a fresh virtual one. Returns when its last byte has
  been sent, or its connection cut, and all that its handler forked has ended."
  [traffic handler wire]
  (let [x (exchange/exchange traffic wire)]
    (traffic/enter! traffic x)
    (some-> (.-observers x) (exchanges/began! x))
    (try
      (spi/give-way!)
      (when (receive! x) (accept! x handler))
      (when (exchange/ended? x) (exchange/await-settled! x))
      (finally (leave! x)))))
